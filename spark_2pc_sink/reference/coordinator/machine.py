"""The coordinator as a machine: `step`, `reserve`, `settle`, and `apply`; recovery, and queries for operators.

Nothing here waits, reads a clock, draws random numbers or keeps state; `plans` defines the order of calls.

A reloaded coordinator lacks what was in memory only: the last epoch of an InitProducerId (so its retry is fenced) and
the progress of markers (so every partition of a decided transaction gets its marker again, which leaders accept).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, TopicPartition
from spark_2pc_sink.reference.coordinator import events, plans, states
from spark_2pc_sink.reference.coordinator.add_partitions import add_offsets, add_partitions
from spark_2pc_sink.reference.coordinator.end_txn import abort_timed_out, end_txn, expire, markers_answered
from spark_2pc_sink.reference.coordinator.events import AclOperation, Resource
from spark_2pc_sink.reference.coordinator.init_producer_id import init_producer_id
from spark_2pc_sink.reference.coordinator.plans import LogRecord, append_error
from spark_2pc_sink.reference.coordinator.states import CoordinatorState, TransactionMetadata

_DESCRIBE = AclOperation.DESCRIBE


def list_transactions(
    state: CoordinatorState, request: Any, access: events.Access, now_ms: int
) -> tuple[Code, list[str], list[TransactionMetadata]]:
    """ListTransactions v0 to v2 (KIP-664, KIP-994, KIP-1152): unknown states, and the ids that pass all filters."""
    found = [metadata for metadata in state if _passes(metadata, request, now_ms)]
    if request.transactional_id_pattern:
        matched = _matching(request.transactional_id_pattern, [metadata.transactional_id for metadata in found])
        if matched is None:
            return Code.INVALID_REGULAR_EXPRESSION, [], []
        found = [metadata for metadata, match in zip(found, matched, strict=True) if match]
    unknown = [label for label in request.state_filters if label not in states.STATES_BY_LABEL]
    kind = Resource.TRANSACTIONAL_ID
    return Code.NONE, unknown, [each for each in found if access.allows(_DESCRIBE, kind, each.transactional_id)]


def describe_transaction(state: CoordinatorState, name: str, access: events.Access) -> TransactionMetadata | Code:
    """DescribeTransactions (KIP-664) for one id, with those of its partitions that the principal may see.

    They are all while Ongoing, and those that still lack a marker afterwards.
    """
    if not access.allows(_DESCRIBE, Resource.TRANSACTIONAL_ID, name):
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not name:
        return Code.INVALID_REQUEST
    metadata = state.get(name)
    if metadata is None:
        return Code.TRANSACTIONAL_ID_NOT_FOUND
    visible = (each for each in metadata.partitions if access.allows(_DESCRIBE, Resource.TOPIC, each.topic))
    return replace(metadata, partitions=frozenset(visible))


def _passes(metadata: TransactionMetadata, request: Any, now_ms: int) -> bool:
    """Whether an id passes every filter except the pattern; an empty list, and a negative duration (v1), pass all."""
    if request.producer_id_filters and metadata.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and metadata.state.label not in request.state_filters:
        return False
    # Empty has start -1, so it passes every duration filter: Kafka does not check whether a transaction is open.
    duration_ms: int = request.duration_filter
    return duration_ms < 0 or now_ms - metadata.start_ms > duration_ms


def _matching(pattern: str, names: Sequence[str]) -> list[bool] | None:
    """For each name whether the pattern matches all of it, or None if the pattern is not valid RE2 (KIP-1152).

    The pattern comes from a client, so its matching time must be linear in the id: Python's ``re`` backtracks, and one
    request could stop the broker. Kafka uses RE2/J; here Arrow's kernel uses RE2 itself.
    """
    # Imported here because it takes a quarter of a second, and most brokers never receive a pattern.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    try:
        # Checked alone first, on one name (for an empty array Arrow does not read the pattern): with the anchors, an
        # unbalanced parenthesis could become balanced.
        pc.match_substring_regex(pa.array([""]), pattern)
        matched = pc.match_substring_regex(pa.array(names, pa.string()), rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid:
        return None
    return list(matched.to_pylist())


HANDLERS: dict[type, Callable[[CoordinatorState, Any, int], plans.Plan]] = {
    events.InitProducerId: init_producer_id,
    events.AddPartitionsToTxn: add_partitions,
    events.AddOffsetsToTxn: add_offsets,
    events.EndTxn: end_txn,
    events.MarkersAnswered: markers_answered,
    events.AbortTimedOut: abort_timed_out,
    events.ExpireTransactionalId: expire,
}


def step(state: CoordinatorState, event: events.Event, now_ms: int) -> plans.Plan:
    return HANDLERS[type(event)](state, event, now_ms)


def reserve(state: CoordinatorState, plan: plans.Plan) -> CoordinatorState:
    """Right after `step`, before any other event: mark the id as pending, and the producer ids it took as used."""
    if plan.producer_ids is not None:
        state = replace(state, producer_ids=plan.producer_ids)
    return state if plan.reserved is None else state.with_metadata(plan.reserved.transactional_id, plan.reserved)


def apply(state: CoordinatorState, plan: plans.Plan) -> CoordinatorState:
    """Apply the plan's outcome, once its records are durable; recovery does the same with the records of the log."""
    for record in plan.records:
        state = state.with_metadata(record.transactional_id, record.value)
    if plan.unwritten is not None:
        state = state.with_metadata(plan.unwritten.transactional_id, plan.unwritten)
    return state


class Settled(NamedTuple):
    """A finished plan: the new state, then the reply to send, then the effects to carry out."""

    state: CoordinatorState
    reply: plans.Reply | None
    effects: tuple[plans.SendMarkers, ...]


def settle(state: CoordinatorState, plan: plans.Plan, append_code: int = Code.NONE) -> Settled:
    """End a plan that was reserved; ``append_code`` is Kafka's code of a failed append, else 0."""
    if append_code == Code.NONE:
        return Settled(apply(state, plan), plan.reply, plan.effects)
    code, before = append_error(append_code), plan.reserved
    reply = None if plan.reply is None else plan.reply.failed(code)
    assert before is not None, "only a record can fail to be appended, and a plan with one has a reservation"
    # The pending change is cleared, and the taken producer ids stay unused. The record that closes a transaction must
    # always be written, so it is retried.
    closing = before.marking is states.Marking.DONE
    pending = states.COMPLETION[before.state] if closing else None
    effects = (plans.next_effect(state, before),) if closing else ()
    cleared = replace(before, pending=pending, marking=states.Marking.SENDING)
    return Settled(state.with_metadata(before.transactional_id, cleared), reply, effects)


def replay(state: CoordinatorState, records: Iterable[LogRecord]) -> CoordinatorState:
    """``state`` with the records applied in log order, only the last of each id: compaction may have removed others."""
    latest = {record.transactional_id: record for record in records}
    return apply(state, plans.Plan(records=tuple(latest.values())))


def finish_loading(
    state: CoordinatorState, index: int, *, coordinator_epoch: int, records: Iterable[LogRecord]
) -> tuple[CoordinatorState, tuple[plans.SendMarkers, ...]]:
    """The loaded partition and pending effects: every decided transaction is driven to its end again at once."""
    loaded = replay(state.with_partition(index, states.StatePartition(coordinator_epoch)), records)
    transactions = sorted(loaded.partitions[index].transactions.items())
    return loaded, tuple(plans.next_effect(loaded, each) for _, each in transactions if each.state in states.DECIDED)


def unrecorded(
    state: CoordinatorState, found: Mapping[states.Pair, AbstractSet[TopicPartition]]
) -> tuple[events.AddPartitionsToTxn, ...]:
    """Implicit adds that a power loss removed from the log although their partitions' records survived.

    ``found`` has the partitions with an open transaction by pair (`plans` says when leaders do not wait for that log).
    The transaction cannot have ended earlier: its end is written after the lost record, in the same log.

    From transaction.version 2 on each transaction has its own pair, so records with the current pair belong to the
    current transaction. Any other open transaction is hanging, and left to operators (KIP-664).
    """
    if state.settings.transaction_version < EPOCH_BUMP_VERSION:
        return ()
    return tuple(
        events.AddPartitionsToTxn(**metadata.ids, partitions=tuple(sorted(lost)))
        for metadata in sorted(state, key=lambda each: each.transactional_id)
        if (metadata.state in states.AT_REST or (metadata.state is states.StateId.ONGOING and not metadata.kept))
        and (lost := found.get(metadata.pair, frozenset()) - metadata.partitions)
    )
