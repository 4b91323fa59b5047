"""Hanging transactions: they are open, and nobody will end them (KIP-664, "Finding Hanging Transactions").

A partition leader knows that a transaction is open, and not whose it is; a coordinator knows which partitions it will
write end markers to. A transaction hangs where the first says "open" and no coordinator has the partition on its list.
How long it has been open proves nothing by itself: a transaction with two-phase commit may be old and well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.ids import ENDING_STATES, TopicPartition, TransactionState
from spark_2pc_sink.transactions.queries import TransactionQueries
from spark_2pc_sink.transactions.values import HangingTransaction, OpenTransaction, TransactionDetails
from spark_2pc_sink.wire.replies import ActiveProducer

#: The only states in which partitions of a transaction are open: between Produce and the last end marker.
_STATES_WITH_OPEN_PARTITIONS: Final = ENDING_STATES | {TransactionState.ONGOING}


def open_transactions(producers: Mapping[TopicPartition, Sequence[ActiveProducer]]) -> dict[OpenTransaction, int]:
    """The open transactions among the producers of partitions, each with the timestamp of its last record."""
    found = {
        OpenTransaction(
            topic=partition.topic,
            partition=partition.partition,
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            coordinator_epoch=state.coordinator_epoch,
            start_offset=state.txn_start_offset,
        ): state.last_timestamp_ms
        for partition, states in producers.items()
        for state in states
        if state.txn_start_offset >= 0
    }
    return dict(sorted(found.items(), key=lambda item: item[0].identity))


@dataclass(frozen=True)
class Judgement:
    """What the coordinators say about an open transaction.

    Args:
        owner: the transactional id that has its producer id, None where no coordinator knows that.
        reason: why nobody will end the transaction; None where its coordinator will.
    """

    owner: TransactionDetails | None
    reason: str | None


def why_hanging(found: OpenTransaction, details: TransactionDetails | None) -> str | None:
    """Why no coordinator will end an open transaction; None where one will.

    Args:
        found: the open transaction.
        details: of the transactional id that has its producer id, None where no coordinator knows that producer id.
    """
    if details is None or details.producer_id != found.producer_id:
        return f"no coordinator knows producer id {found.producer_id}"
    owner = f"transactional id {details.transactional_id!r}"
    if details.state not in _STATES_WITH_OPEN_PARTITIONS:
        return f"{owner} is in state {details.state}, so its coordinator has ended all that it knows of"
    if found.where not in details.partitions:
        return f"{owner} is in state {details.state}, and its transaction does not include {found.where}"
    # From Prepare on the coordinator shows the epoch of the markers (KIP-890), and these end whatever is older.
    if details.state == TransactionState.ONGOING and details.producer_epoch != found.producer_epoch:
        return (
            f"it has epoch {found.producer_epoch}, and the ongoing transaction of {owner} has epoch "
            f"{details.producer_epoch}: it was left behind by an earlier one"
        )
    return None


def judge(queries: TransactionQueries, candidates: Sequence[OpenTransaction]) -> dict[OpenTransaction, Judgement]:
    """Ask every coordinator about open transactions.

    Raises:
        AuthorizationError, KafkaError, KafkaTimeoutError: a coordinator could not be asked, or hides something.
    """
    if not candidates:
        return {}
    owners = queries.owners(sorted({found.producer_id for found in candidates}))
    details = {owner: queries.details(owner) for owner in sorted(set(owners.values()))}
    judged = {}
    for found in candidates:
        owner = details.get(owners.get(found.producer_id, ""))
        judged[found] = Judgement(owner, why_hanging(found, owner))
    return judged


def find_hanging(
    queries: TransactionQueries,
    *,
    topic: str | None,
    partition: int | None,
    broker_id: int | None,
    max_timeout_ms: int,
) -> tuple[HangingTransaction, ...]:
    """Search partitions for transactions that nobody will end; changes nothing. See `TransactionTool.find_hanging`."""
    searched = [
        found for found in queries.partitions(topic, broker_id) if partition is None or found.partition == partition
    ]
    now_ms = queries.now_ms()
    seen = open_transactions(queries.producers(searched, broker_id=broker_id))
    judged = judge(queries, [found for found, last_ms in seen.items() if now_ms - last_ms > max_timeout_ms])
    suspected = {item: verdict.reason for item, verdict in judged.items() if verdict.reason is not None}
    # A transaction that was ended between the two looks was not hanging: what hangs is still open now.
    again = queries.producers({found.where for found in suspected}, broker_id=broker_id)
    still_open = {found.identity for found in open_transactions(again)}
    return tuple(
        HangingTransaction(
            **vars(found), last_timestamp_ms=seen[found], duration_ms=now_ms - seen[found], reason=reason
        )
        for found, reason in suspected.items()
        if found.identity in still_open
    )
