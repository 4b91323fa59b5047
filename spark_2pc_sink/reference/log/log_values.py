"""Values that are written to and read from a partition log; leader epochs; decoding in threads.

A batch of a few kilobytes may contain millions of records. Large or compressed batches are decoded in a thread, at most
`_THREADS` at a time, which bounds the number of decoded batches held in memory for all clients together.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.log.producer_state import NO_EPOCH, NO_TIMESTAMP
from spark_2pc_sink.reference.storage.batches import decode_records
from spark_2pc_sink.reference.storage.errors import BatchError
from spark_2pc_sink.wire.batch_format import BatchHeader, Buffer, Record

NO_OFFSET: Final = -1


class LeaderEpochs:
    """The leader epochs of one partition and where each begins, for OffsetForLeaderEpoch (KIP-101, KIP-320).

    Rebuilt from the batches, each of which carries its epoch. An epoch without records is forgotten when the next one
    begins, as in ``LeaderEpochFileCache.assign``.
    """

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def begin(self, epoch: int, start_offset: int) -> None:
        """Begin ``epoch`` at ``start_offset``; an epoch that is not later changes nothing."""
        if epoch <= self.latest:
            return
        if self._starts and self._starts[-1] == start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def at(self, offset: int) -> int:
        position = bisect_right(self._starts, offset)
        return self._epochs[position - 1] if position else NO_EPOCH

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not later than ``epoch``, and the offset after its last record; -1 and -1 if unknown."""
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        later = bisect_right(self._epochs, epoch)
        floor = self._epochs[later - 1] if later else epoch
        return floor, self._starts[later]


class Isolation(IntEnum):
    """The values are those of Fetch and ListOffsets."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The broker and topic properties that apply to a partition; the defaults are Kafka's.

    Under ``cleanup_policy`` nothing is removed, but Kafka's refusals apply.
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
        return "compact" in self.cleanup_policy

    @property
    def deletable(self) -> bool:
        """False where compaction alone says what goes, so that DeleteRecords is refused."""
        return not self.compacted or "delete" in self.cleanup_policy


@dataclass(frozen=True)
class Appended:
    """The outcome of an append; ``base_offset`` is -1 unless the code is NONE.

    For a duplicate (nothing was written; the log already contains the batch) offset and timestamp are those of the
    first append. ``log_append_time_ms`` is for the Produce answer: the broker's timestamp, or -1.
    """

    code: Code
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP


@dataclass(frozen=True)
class FetchedData:
    """What a fetch of one partition found: whole batches, of which the first may begin before the requested offset.

    ``aborted`` has (producer id, first offset) in the order of the markers, also beyond ``records`` (as Kafka does);
    None for read_uncommitted.
    """

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class FoundOffset:
    offset: int
    timestamp_ms: int
    leader_epoch: int


#: Later than any record.
NOT_FOUND: Final = FoundOffset(NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


#: Decoding holds the interpreter lock; the second thread is for small batches queued after a large one.
_THREADS: Final = 2
#: Below this size, switching to a thread takes longer than the work.
_INLINE_BYTES_MAX: Final = 16 * 1024
_decoders: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="decode")
_Result = TypeVar("_Result")


async def decoded(header: BatchHeader, work: Callable[[], _Result]) -> _Result:
    """Apply ``work`` to the records of a batch, in a thread if they are large or compressed."""
    if not header.compression and header.size_bytes <= _INLINE_BYTES_MAX:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_decoders, work)


def first_from(batch: bytes, header: BatchHeader, timestamp_ms: int, offset: int) -> Record | None:
    found = decode_records(batch, header)
    return next((each for each in found if each.timestamp_ms >= timestamp_ms and each.offset >= offset), None)


def max_timestamp_from(batch: bytes, header: BatchHeader, offset: int) -> int:
    return max(record.timestamp_ms for record in decode_records(batch, header) if record.offset >= offset)


def all_have_keys(records: Buffer, header: BatchHeader) -> bool:
    """True if all records have keys, as a compacted topic requires; False for an unreadable batch."""
    try:
        return all(record.key is not None for record in decode_records(bytes(records), header))
    except BatchError:
        return False
