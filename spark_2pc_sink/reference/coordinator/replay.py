"""Recovery: the state from the records of ``__transaction_state``, and what is owed after it.

A loaded coordinator differs from the one that wrote the log in what lives in memory only: the last epoch of an
InitProducerId (so its retry is fenced after a reload) and the progress of markers (so every partition of a decided
transaction gets its marker a second time, which leaders accept).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, TopicPartition
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState, Leadership, StatePartition
from spark_2pc_sink.reference.coordinator.end_txn import owed
from spark_2pc_sink.reference.coordinator.events import AddPartitionsToTxn
from spark_2pc_sink.reference.coordinator.machine import apply
from spark_2pc_sink.reference.coordinator.plans import Effect, Plan
from spark_2pc_sink.reference.coordinator.records import LogRecord
from spark_2pc_sink.reference.coordinator.states import AT_REST, DECIDED, Pair, TransactionState


def replay(state: CoordinatorState, records: Iterable[LogRecord]) -> CoordinatorState:
    """``state`` with the records applied, in the order of the log.

    Only the last record of each id is applied, as compaction might have left no other.
    """
    latest = {record.transactional_id: record for record in records}
    for record in latest.values():
        state = apply(state, Plan(records=(record,)))
    return state


def start_loading(state: CoordinatorState, index: int) -> CoordinatorState:
    """A partition of the log whose leadership was won: requests for its ids are answered that it is loading."""
    return state.with_partition(index, StatePartition(Leadership.LOADING, state.partitions[index].coordinator_epoch))


def finish_loading(
    state: CoordinatorState, index: int, *, coordinator_epoch: int, records: Iterable[LogRecord]
) -> tuple[CoordinatorState, tuple[Effect, ...]]:
    """The partition loaded, and the effects owed: every decided transaction is driven to its end again at once.

    Args:
        state: may hold other partitions; this one is replaced.
        index: of the partition.
        coordinator_epoch: the leader epoch under which it was won.
        records: of this partition.
    """
    empty = state.with_partition(index, StatePartition(Leadership.LOADING, coordinator_epoch))
    loaded = replay(empty, records)
    loaded = loaded.with_partition(index, replace(loaded.partitions[index], leadership=Leadership.OWNED))
    return loaded, redrive(loaded, index)


def resign(state: CoordinatorState, index: int) -> CoordinatorState:
    """A partition of the log whose leadership was lost: nothing of it is kept."""
    return state.with_partition(index, StatePartition(Leadership.ELSEWHERE, state.partitions[index].coordinator_epoch))


def redrive(state: CoordinatorState, index: int) -> tuple[Effect, ...]:
    """What the decided transactions of a partition need, in the order of their ids."""
    found = (metadata for metadata in state.partitions[index].transactions.values() if metadata.state in DECIDED)
    return tuple(owed(state, metadata) for metadata in sorted(found, key=lambda each: each.transactional_id))


def unrecorded(
    state: CoordinatorState, found: Mapping[Pair, AbstractSet[TopicPartition]]
) -> tuple[AddPartitionsToTxn, ...]:
    """What a loss of power took from the log, once more: the implicit adds whose records are there without them.

    A leader that adds its partition itself makes durable the first records of a transaction, and not the record that
    adds the partition (`plans`), so the disk may have kept those only. Added now, the partition is where it was: the
    transaction ends with a marker in it too. The transaction did not end before: what ends it is written behind the
    record that was lost, in the same log.

    From transaction.version 2 on each transaction has a pair of its own, so records of the pair in use belong to the
    transaction in use. Any other open transaction is one that nobody knows, and left to who looks for it (KIP-664).

    Args:
        state: loaded.
        found: by pair, the partitions in which it has a transaction open.
    """
    if state.settings.transaction_version < EPOCH_BUMP_VERSION:
        return ()
    return tuple(
        AddPartitionsToTxn(
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            partitions=tuple(sorted(lost)),
        )
        for metadata in sorted(state, key=lambda each: each.transactional_id)
        if (metadata.state in AT_REST or (metadata.state is TransactionState.ONGOING and not metadata.kept))
        and (lost := found.get(metadata.pair, frozenset()) - metadata.partitions)
    )
