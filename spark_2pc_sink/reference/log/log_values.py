"""Values that go into a partition log and come out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.log.leader_epochs import NO_EPOCH
from spark_2pc_sink.reference.log.producer_state import NO_TIMESTAMP, ProducerEntry

NO_OFFSET: Final = -1


class Isolation(IntEnum):
    """What a reader wants to see; the values are those of Fetch and ListOffsets."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The broker and topic properties that a partition goes by; the defaults are Kafka's.

    Args:
        segment_bytes: log.segment.bytes, segment.bytes.
        message_max_bytes: message.max.bytes, max.message.bytes.
        log_append_time: message.timestamp.type=LogAppendTime.
        timestamp_after_max_ms: message.timestamp.after.max.ms, how far a client's clock may be ahead.
        verification: transaction.partition.verification.enable.
        producer_id_expiration_ms: producer.id.expiration.ms.
        cleanup_policy: log.cleanup.policy, cleanup.policy. Nothing is removed, but what Kafka refuses is refused.
    """

    segment_bytes: int = 1_073_741_824
    message_max_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_after_max_ms: int = 3_600_000
    verification: bool = True
    producer_id_expiration_ms: int = 86_400_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})

    @property
    def compacted(self) -> bool:
        """True where every record of a client needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def deletable(self) -> bool:
        """False where compaction alone says what goes, so that DeleteRecords is refused."""
        return not self.compacted or "delete" in self.cleanup_policy


@dataclass(frozen=True)
class Appended:
    """The outcome of an append.

    Args:
        base_offset: of the batch; that of the first time for a duplicate; -1 unless the code is NONE.
        log_append_time_ms: what Produce answers: the broker's timestamp, a duplicate's timestamp, or -1.
        log_start_offset: of the partition; -1 unless the code is NONE.
        duplicate: nothing was written, it stands in the log already.
    """

    code: Code
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    duplicate: bool = False


@dataclass(frozen=True)
class FetchedData:
    """What a fetch of one partition found.

    Args:
        records: whole batches; the first may begin before the offset that was asked for.
        aborted: (producer id, first offset) in the order of the markers, also beyond ``records`` (as Kafka does);
            None for read_uncommitted.
    """

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class FoundOffset:
    """What ListOffsets answers for one partition; -1 for what there is not."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


#: No record is that late.
NOWHERE: Final = FoundOffset(NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


@dataclass(frozen=True)
class ProducerDescription:
    """One row of DescribeProducers (KIP-664); -1 for what there is not."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_start_offset: int

    @classmethod
    def of(cls, entry: ProducerEntry) -> ProducerDescription:
        """The row of an entry."""
        return cls(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_timestamp_ms,
            entry.coordinator_epoch,
            NO_OFFSET if entry.txn_start_offset is None else entry.txn_start_offset,
        )
