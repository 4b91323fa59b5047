"""Values that go into a partition log and come out of it.

Leader epochs and the offsets that each wrote: the answer to OffsetForLeaderEpoch (KIP-101, KIP-320).

Kafka keeps it in ``leader-epoch-checkpoint``; here it is rebuilt from the batches, each of which carries its epoch.
An epoch in which nothing was written is forgotten when the next one begins, as by ``LeaderEpochFileCache.assign``.

Decoding of what clients sent, where it cannot hold up anybody else.

A batch of a few kilobytes may stand for millions of records. What is large or compressed is decoded in a thread, and
in `_THREADS` at a time, so that all clients together can make the decoder hold that many batches and no more.
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
from spark_2pc_sink.reference.log.producer_state import NO_TIMESTAMP
from spark_2pc_sink.reference.storage.batches import decode_records
from spark_2pc_sink.reference.storage.errors import BatchError
from spark_2pc_sink.wire.batch_format import BatchHeader, Buffer, Record

NO_EPOCH: Final = -1


@dataclass(frozen=True)
class EpochEnd:
    """An epoch and the offset behind its last record; -1 and -1 where it is not known."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """The epochs of one partition (``LeaderEpochFileCache``)."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def begin(self, epoch: int, start_offset: int) -> None:
        """From ``start_offset`` on everything is written in ``epoch``; an epoch that is not later changes nothing."""
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

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end of the largest epoch that is not later than ``epoch``."""
        if epoch < 0 or epoch > self.latest:
            return EpochEnd(NO_EPOCH, NO_OFFSET)
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        later = bisect_right(self._epochs, epoch)
        floor = self._epochs[later - 1] if later else epoch
        return EpochEnd(floor, self._starts[later])


NO_OFFSET: Final = -1


class Isolation(IntEnum):
    """The values are those of Fetch and ListOffsets."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The broker and topic properties that a partition goes by; the defaults are Kafka's.

    Args:
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


#: Decoding is work of the interpreter, of which there is one; the second thread is there for small batches behind a
#: large one. Each holds a batch of `spark_2pc_sink.wire.batch_reader.DECOMPRESSED_BYTES_MAX` at most.
_THREADS: Final = 2
#: Up to here the change to a thread takes longer than the work.
_INLINE_BYTES_MAX: Final = 16 * 1024
_decoders: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="decode")
_Result = TypeVar("_Result")


async def decoded(header: BatchHeader, work: Callable[[], _Result]) -> _Result:
    """What ``work`` makes of the records of a batch."""
    if not header.compression and header.size_bytes <= _INLINE_BYTES_MAX:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_decoders, work)


def first_from(batch: bytes, header: BatchHeader, timestamp_ms: int, offset: int) -> Record | None:
    """The first record of a batch that is not older than a time and not before an offset."""
    found = decode_records(batch, header)
    return next((each for each in found if each.timestamp_ms >= timestamp_ms and each.offset >= offset), None)


def max_timestamp_from(batch: bytes, header: BatchHeader, offset: int) -> int:
    """The newest time in a batch, of the records that are not before an offset."""
    return max(record.timestamp_ms for record in decode_records(batch, header) if record.offset >= offset)


def all_have_keys(records: Buffer, header: BatchHeader) -> bool:
    """What a compacted topic asks of a batch; no batch that cannot be read has it."""
    try:
        return all(record.key is not None for record in decode_records(bytes(records), header))
    except BatchError:
        return False
