"""Results of the tool for transactions, as small frozen values that print as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, TopicPartition


@dataclass(frozen=True)
class ListFilter:
    """Which transactional ids to list; what is given must all fit.

    Args:
        states: Kafka's names, such as Ongoing or PrepareCommit; none for all.
        producer_ids: none for all.
        running_longer_than_ms: only transactions that began longer ago; None or a negative number for all (KIP-994).
            An id whose transaction has no beginning, because none is open, passes.
        transactional_id_pattern: an RE2 expression for the whole id; None or '' for all (KIP-1152).
        broker_id: only ids that this broker coordinates, and no other broker is asked; None for all (KIP-664).
    """

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    running_longer_than_ms: int | None = None
    transactional_id_pattern: str | None = None
    broker_id: int | None = None


@dataclass(frozen=True, order=True)
class TransactionListing:
    """One transactional id, as the broker that coordinates it lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True)
class TransactionDetails:
    """One transactional id, as its coordinator describes it.

    Args:
        coordinator: the broker.
        producer_id, producer_epoch: the pair; -1 while an id is just being created.
        state: Kafka's name of the state.
        timeout_ms: 2147483647 where transactions never time out (KIP-939).
        start_time_ms: when the current or the last transaction began; None if there was none.
        duration_ms: since then, also where it has ended.
        partitions: those that have no end marker yet.
    """

    coordinator: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    duration_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def two_phase_commit(self) -> bool:
        """True where transactions of this id never time out."""
        return self.timeout_ms == TIMEOUT_NEVER_MS


@dataclass(frozen=True)
class ProducerDetails:
    """One producer that a partition remembers.

    Args:
        coordinator_epoch: of the last end marker, -1 if there was none.
        last_sequence: -1 where no data batch is remembered.
        last_timestamp_ms: of its last record as the producer set it, or of its last end marker.
        start_offset: where its open transaction begins; None where none is open.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is open in a partition, as the partition's leader knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int

    @property
    def where(self) -> TopicPartition:
        """The partition with its topic."""
        return TopicPartition(self.topic, self.partition)

    @property
    def identity(self) -> tuple[TopicPartition, int, int, int]:
        """What no other transaction has, as long as it is open; the order of results."""
        return self.where, self.start_offset, self.producer_id, self.producer_epoch


@dataclass(frozen=True)
class HangingTransaction(OpenTransaction):
    """A transaction that is open in a partition and that no coordinator will end.

    Args:
        last_timestamp_ms: of its last record.
        duration_ms: since then.
        reason: why nobody will end it.
    """

    last_timestamp_ms: int
    duration_ms: int
    reason: str


@dataclass(frozen=True)
class AbortedOpenTransaction(OpenTransaction):
    """A hanging transaction that was ended.

    Args:
        marker_written: False where the answer to the marker was lost, and the transaction was found ended after that.
        reason: why it was hanging.
    """

    marker_written: bool
    reason: str


@dataclass(frozen=True)
class TerminatedTransaction:
    """A transactional id whose open transaction, if it had one, was aborted by its coordinator, and that was fenced.

    Args:
        state_before: of its transaction.
        producer_id, producer_epoch: the new pair, which nobody uses.
        timeout_ms: the transaction timeout that the coordinator stores now, until the owner comes back.
        warnings: what the operator must know or do.
    """

    transactional_id: str
    state_before: str
    partitions_before: tuple[TopicPartition, ...]
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    warnings: tuple[str, ...]
