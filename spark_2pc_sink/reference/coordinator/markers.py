"""Markers of a decided transaction: the leaders' answers, and the record that closes it."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, NO_PRODUCER_ID
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState
from spark_2pc_sink.reference.coordinator.end_txn import owed
from spark_2pc_sink.reference.coordinator.events import CompleteTransaction, MarkersAnswered
from spark_2pc_sink.reference.coordinator.plans import NOTHING, Plan, change
from spark_2pc_sink.reference.coordinator.states import (
    COMPLETION,
    NO_EPOCH,
    SAME_TIMEOUT_MS,
    Marking,
    Pair,
    TransactionMetadata,
)


class Reaction(Enum):
    """What the coordinator does about a leader's answer for one partition."""

    WRITTEN = "nothing is owed to the partition any more"
    RETRY = "send the marker again"
    GIVE_UP = "leave the transaction as it is until the log partition is loaded again"


#: TransactionMarkerRequestCompletionHandler, by code. For any other code Kafka throws IllegalStateException out of the
#: handler, which comes to the same as giving up.
REACTIONS: dict[int, Reaction] = {
    Code.NONE: Reaction.WRITTEN,
    # The partition keeps no transactional data in a format without markers.
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: Reaction.WRITTEN,
    Code.UNSUPPORTED_VERSION: Reaction.WRITTEN,
    Code.UNKNOWN_TOPIC_OR_PARTITION: Reaction.RETRY,
    Code.NOT_LEADER_OR_FOLLOWER: Reaction.RETRY,
    Code.REQUEST_TIMED_OUT: Reaction.RETRY,
    Code.NOT_ENOUGH_REPLICAS: Reaction.RETRY,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Reaction.RETRY,
    Code.KAFKA_STORAGE_ERROR: Reaction.RETRY,
    # A newer producer or coordinator was there: this one has no say any more.
    Code.INVALID_PRODUCER_EPOCH: Reaction.GIVE_UP,
    Code.TRANSACTION_COORDINATOR_FENCED: Reaction.GIVE_UP,
}


def markers_answered(state: CoordinatorState, event: MarkersAnswered, now_ms: int) -> Plan:
    """Note which partitions have their marker; with the last one, close the transaction."""
    metadata = _awaiting(state, event)
    if metadata is None:
        return NOTHING
    reactions = {each: REACTIONS.get(code, Reaction.GIVE_UP) for each, code in event.results.items()}
    written = {each for each, reaction in reactions.items() if reaction is Reaction.WRITTEN}
    left = replace(metadata, partitions=metadata.partitions - written - event.gone)
    if Reaction.GIVE_UP in reactions.values():
        return _unwritten(replace(left, marking=Marking.GIVEN_UP))
    if not left.partitions:
        return _closing(state, left, now_ms)
    again = frozenset(each for each in left.partitions if reactions.get(each) is Reaction.RETRY)
    effects = (owed(state, replace(left, partitions=again)),) if again else ()
    return replace(_unwritten(left), effects=effects)


def complete(state: CoordinatorState, event: CompleteTransaction, now_ms: int) -> Plan:
    """Close a decided transaction to which no marker is owed."""
    metadata = _awaiting(state, event)
    return NOTHING if metadata is None or metadata.partitions else _closing(state, metadata, now_ms)


def _awaiting(state: CoordinatorState, event: MarkersAnswered | CompleteTransaction) -> TransactionMetadata | None:
    """The transaction that the event speaks of, if it is the one being ended by this coordinator."""
    code, metadata = state.find(event.transactional_id)
    epoch = state.partitions[state.partition_of(event.transactional_id)].coordinator_epoch
    if code or metadata is None or metadata.state not in COMPLETION or event.coordinator_epoch != epoch:
        return None
    current = metadata.pair == (event.producer_id, event.producer_epoch)
    return metadata if current and metadata.marking is Marking.SENDING else None


def _unwritten(metadata: TransactionMetadata) -> Plan:
    return Plan(transactional_id=metadata.transactional_id, unwritten=metadata)


def _closing(state: CoordinatorState, metadata: TransactionMetadata, now_ms: int) -> Plan:
    """KIP-890, COMPLETE: the next pair takes the place of the transaction's own.

    The start time is kept, although KIP-664 wants -1: Kafka shows the old one.
    """
    moved = metadata.next_producer_id != NO_PRODUCER_ID and metadata.client_transaction_version >= EPOCH_BUMP_VERSION
    kept = metadata.next_producer_epoch != NO_EPOCH
    pair = Pair(metadata.next_producer_id, metadata.next_producer_epoch if kept else 0) if moved else metadata.pair
    same_timeout = metadata.timeout_after_keep_ms == SAME_TIMEOUT_MS
    after = metadata.moved_to(
        COMPLETION[metadata.state],
        now_ms,
        producer_id=pair.producer_id,
        producer_epoch=pair.epoch,
        previous_producer_id=metadata.previous_producer_id if kept else metadata.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_EPOCH,
        partitions=frozenset(),
        timeout_ms=metadata.timeout_ms if same_timeout else metadata.timeout_after_keep_ms,
        timeout_after_keep_ms=SAME_TIMEOUT_MS,
    )
    return change(state, metadata, after)
