"""Queries for operators: ListTransactions and DescribeTransactions (KIP-664), and counts for metrics."""

from __future__ import annotations

from collections.abc import Sequence

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState, Leadership
from spark_2pc_sink.reference.coordinator.events import DescribeTransactions, ListTransactions, Operation, Resource
from spark_2pc_sink.reference.coordinator.plans import (
    DescribeTransactionsReply,
    ListTransactionsReply,
    Plan,
    TransactionDescription,
    TransactionListing,
    answer,
)
from spark_2pc_sink.reference.coordinator.states import STATES_BY_LABEL, TransactionMetadata


def list_transactions(state: CoordinatorState, event: ListTransactions, now_ms: int) -> Plan:
    """Answer ListTransactions: every id that passes all filters and that the principal may describe."""
    if not state.active:
        return answer(ListTransactionsReply(Code.COORDINATOR_NOT_AVAILABLE))
    if any(partition.leadership is Leadership.LOADING for partition in state.partitions):
        return answer(ListTransactionsReply(Code.COORDINATOR_LOAD_IN_PROGRESS))
    unknown = tuple(label for label in event.state_filters if label not in STATES_BY_LABEL)
    found = [metadata for metadata in state if _passes(metadata, event, now_ms)]
    if event.pattern:
        matched = _matching(event.pattern, [metadata.transactional_id for metadata in found])
        if matched is None:
            return answer(ListTransactionsReply(Code.INVALID_REGULAR_EXPRESSION))
        found = [metadata for metadata, match in zip(found, matched, strict=True) if match]
    rows = tuple(
        TransactionListing(metadata.transactional_id, metadata.producer_id, metadata.state.label)
        for metadata in found
        if event.access.allows(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, metadata.transactional_id)
    )
    return answer(ListTransactionsReply(Code.NONE, unknown, rows))


def describe_transactions(state: CoordinatorState, event: DescribeTransactions, _now_ms: int) -> Plan:
    """Answer DescribeTransactions: each id by itself."""
    rows = tuple(_description(state, event, transactional_id) for transactional_id in event.transactional_ids)
    return answer(DescribeTransactionsReply(rows))


def _passes(metadata: TransactionMetadata, event: ListTransactions, now_ms: int) -> bool:
    if event.producer_id_filters and metadata.producer_id not in event.producer_id_filters:
        return False
    if event.state_filters and metadata.state.label not in event.state_filters:
        return False
    # Empty has start -1, so it passes every duration filter: Kafka does not ask whether anything is open.
    return event.duration_ms < 0 or now_ms - metadata.start_ms > event.duration_ms


def _description(state: CoordinatorState, event: DescribeTransactions, name: str) -> TransactionDescription:
    if not event.access.allows(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name):
        return TransactionDescription(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, name)
    if not name:
        return TransactionDescription(Code.INVALID_REQUEST, name)
    if not state.active:
        return TransactionDescription(Code.COORDINATOR_NOT_AVAILABLE, name)
    code, metadata = state.find(name)
    if metadata is None:
        return TransactionDescription(code or Code.TRANSACTIONAL_ID_NOT_FOUND, name)
    visible = (
        each for each in metadata.partitions if event.access.allows(Operation.DESCRIBE, Resource.TOPIC, each.topic)
    )
    return TransactionDescription(
        Code.NONE,
        name,
        metadata.state.label,
        metadata.timeout_ms,
        metadata.start_ms,
        metadata.pair,
        tuple(sorted(visible)),
    )


def _matching(pattern: str, names: Sequence[str]) -> list[bool] | None:
    """For each name whether the whole of it matches, or None when the pattern is no RE2 pattern (KIP-1152).

    The pattern comes from a client, so its matching time must be linear in the id: Python's ``re`` backtracks, and one
    request could stop the broker. Kafka uses RE2/J; here Arrow's kernel does it, whose engine is RE2 itself.

    Args:
        pattern: without anchors; ``orders-.*`` does not match ``my-orders-1``.
        names: the transactional ids.
    """
    # Imported here because it takes a quarter of a second and most brokers are never asked for a pattern.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    try:
        # Alone first, on one name (an empty array is answered without looking at the pattern): in the anchors a stray
        # parenthesis could find a partner.
        pc.match_substring_regex(pa.array([""]), pattern)
        matched = pc.match_substring_regex(pa.array(names, pa.string()), rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid:
        return None
    return list(matched.to_pylist())
