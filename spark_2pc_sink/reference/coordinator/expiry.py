"""Expiry: transactions that are open for too long, and transactional ids that nobody uses any more.

The shell asks `due_timeouts` and `due_expirations` at the intervals of the broker properties (every 10 s and every
hour by default) and steps the events that come out, one plan each.
"""

from __future__ import annotations

from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState, Leadership
from spark_2pc_sink.reference.coordinator.end_txn import timed_out
from spark_2pc_sink.reference.coordinator.events import AbortTimedOut, ExpireTransactionalId
from spark_2pc_sink.reference.coordinator.plans import NOTHING, Plan, change
from spark_2pc_sink.reference.coordinator.states import AT_REST, TransactionMetadata, TransactionState


def due_timeouts(state: CoordinatorState, now_ms: int) -> tuple[AbortTimedOut, ...]:
    """The open transactions whose timeout, counted from their first partition, is over; never one with 2PC."""
    return tuple(
        AbortTimedOut(transactional_id=metadata.transactional_id, producer_id=metadata.producer_id)
        for metadata in _owned(state)
        if timed_out(metadata, now_ms)
    )


def due_expirations(state: CoordinatorState, now_ms: int) -> tuple[ExpireTransactionalId, ...]:
    """The ids at rest that have not changed for ``transactional.id.expiration.ms``."""
    return tuple(
        ExpireTransactionalId(transactional_id=metadata.transactional_id)
        for metadata in _owned(state)
        if _expired(state, metadata, now_ms)
    )


def expire(state: CoordinatorState, event: ExpireTransactionalId, now_ms: int) -> Plan:
    """Forget an id with a tombstone, unless it was used since it was found."""
    code, metadata = state.find(event.transactional_id)
    if code or metadata is None or not _expired(state, metadata, now_ms):
        return NOTHING
    dead = metadata.moved_to(TransactionState.DEAD, now_ms, partitions=frozenset())
    return change(state, metadata, dead)


def _owned(state: CoordinatorState) -> tuple[TransactionMetadata, ...]:
    return tuple(
        metadata
        for partition in state.partitions
        if partition.leadership is Leadership.OWNED
        for metadata in partition.transactions.values()
    )


def _expired(state: CoordinatorState, metadata: TransactionMetadata, now_ms: int) -> bool:
    unused = metadata.state in AT_REST and metadata.pending is None
    return unused and metadata.last_update_ms <= now_ms - state.settings.transactional_id_expiration_ms
