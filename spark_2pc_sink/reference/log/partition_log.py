"""The leader of one partition: what may be appended, what is durable, and what a reader may see.

Everything runs on one event loop. An append is in the log when the call returns, and durable after `flush`; the high
watermark is the durable end, so that readers never see records that a crash could take back. A caller must not answer
its client before `flush` is done.

The rules are those of Kafka 4.4.0's ``UnifiedLog`` and ``LocalLog``. There is no retention and no compaction; records
deleted by DeleteRecords become unreadable, and their bytes are removed with the topic.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.coordinator.states import NO_EPOCH, NO_PAIR, NO_TIMESTAMP, Pair
from spark_2pc_sink.reference.log import producer_state
from spark_2pc_sink.reference.log.producer_state import AbortedIndex, ProducerStates, VerificationGuard
from spark_2pc_sink.reference.storage import batches
from spark_2pc_sink.reference.storage.files import DiskStore, MemoryStore, SegmentStore
from spark_2pc_sink.reference.storage.segmented_log import GroupSync, SegmentedLog, Synced
from spark_2pc_sink.wire.batch_format import NO_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader, Buffer, Record, read_header

NO_OFFSET: Final = -1
_logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class UnreadableRecordError(DualWriteError):
    """A record in a coordinator's own log that this version cannot decode. Nothing was changed."""

    path: str
    topic: str
    partition: int
    offset: int
    detail: str

    def __str__(self) -> str:
        return (
            f"the record at offset {self.offset} of {self.topic}-{self.partition}, in {self.path}, cannot be "
            f"decoded: {self.detail}. The coordinator does not start, because the record's content would be lost; "
            "nothing was changed. Start the version that wrote it, or restore the data directory from a copy"
        )


class OffsetOutOfRangeError(Exception):
    """An offset that the log does not have: before its start, or after its end (code 1)."""


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

    def latest_ms(self, now_ms: int) -> float:
        """The latest time that a record may have; there is no bound where the broker gives it its own."""
        return math.inf if self.log_append_time else now_ms + self.timestamp_after_max_ms


@dataclass(frozen=True)
class Appended:
    """The outcome of an append; ``base_offset`` is -1 unless the code is NONE.

    For a duplicate (nothing was written; the log already contains the batch) offset and timestamp are those of the
    first append. ``log_append_time_ms`` is for the Produce answer: the broker's timestamp, or -1.
    """

    code: Code
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP


class FoundOffset(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int


#: Later than any record.
NOT_FOUND: Final = FoundOffset(NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


class LeaderEpochs:
    """The leader epochs of one partition and where each begins, for OffsetForLeaderEpoch (KIP-101, KIP-320).

    Rebuilt from the batches, each of which carries its epoch. An epoch without records is forgotten when the next one
    begins, as in ``LeaderEpochFileCache.assign``.
    """

    def __init__(self) -> None:
        # Each epoch with its start; both only grow.
        self._begun: list[tuple[int, int]] = []

    @property
    def latest(self) -> int:
        return self._begun[-1][0] if self._begun else NO_EPOCH

    def begin(self, epoch: int, start_offset: int) -> None:
        """Begin ``epoch`` at ``start_offset``; an epoch that is not later changes nothing."""
        if epoch <= self.latest:
            return
        if self._begun and self._begun[-1][1] == start_offset:
            self._begun.pop()
        self._begun.append((epoch, start_offset))

    def at(self, offset: int) -> int:
        position = bisect_right(self._begun, offset, key=itemgetter(1))
        return self._begun[position - 1][0] if position else NO_EPOCH

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not later than ``epoch``, and the offset after its last record; -1 and -1 if unknown."""
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        later = bisect_right(self._begun, epoch, key=itemgetter(0))
        floor = self._begun[later - 1][0] if later else epoch
        return floor, self._begun[later][1]


class LogState:
    """The state derived from a partition's batches: producers, aborted transactions, leader epochs, stable offset.

    The same batches in the same order give the same state, whether they are appended or read back.
    """

    def __init__(self) -> None:
        self.producers: ProducerStates = ProducerStates()
        self.aborted: AbortedIndex = AbortedIndex()
        self.epochs: LeaderEpochs = LeaderEpochs()
        # Transactions whose markers are not visible to readers yet: they still hold back the stable offset.
        self._ended: list[producer_state.EndedTransaction] = []

    def recovered(self, header: BatchHeader, batch: bytes) -> None:
        """Apply a batch that is already in the log, and was valid when it was written."""
        self.epochs.begin(header.leader_epoch, header.base_offset)
        if header.has_producer and not header.control:
            self.producers.batch_written(header)
        elif header.has_producer and (marker := batches.read_marker(batch, header)) is not None:
            self.marker_written(header, commit=marker.commit, coordinator_epoch=marker.coordinator_epoch)

    def marker_written(self, header: BatchHeader, *, commit: bool, coordinator_epoch: int) -> None:
        ended = self.producers.marker_written(header, coordinator_epoch=coordinator_epoch)
        if ended is not None:
            self._ended.append(ended)
            if not commit:
                self.aborted.add(ended, self.producers.first_open_offset(ended.marker_offset + 1))

    def stable_offset(self, high_watermark: int) -> int:
        """The last stable offset at a high watermark, which only grows from call to call.

        It is at most the start of the first open transaction, or of the first ended one whose marker is not below the
        high watermark (``ProducerStateManager.firstUnstableOffset``).
        """
        self._ended = [each for each in self._ended if each.marker_offset >= high_watermark]
        first_open = self.producers.first_open_offset(high_watermark)
        return min(high_watermark, first_open, *(each.first_offset for each in self._ended))


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
    found = batches.decode_records(batch, header)
    return next((each for each in found if each.timestamp_ms >= timestamp_ms and each.offset >= offset), None)


def max_timestamp_from(batch: bytes, header: BatchHeader, offset: int) -> int:
    return max(record.timestamp_ms for record in batches.decode_records(batch, header) if record.offset >= offset)


class PartitionLog:
    """One partition, made by :meth:`open`; for use on the event loop only.

    ``leader_epoch`` counts the starts of the node. Everything below ``high_watermark`` is durable and visible to
    readers, everything below ``last_stable_offset`` to read_committed ones. Only `delete_before` raises
    ``log_start_offset``.
    """

    def __init__(
        self,
        name: tuple[str, int],
        log: SegmentedLog,
        state: LogState,
        *,
        leader_epoch: int,
        settings: LogSettings,
        log_start_offset: int,
    ) -> None:
        self.topic: str = name[0]
        self.partition: int = name[1]
        self.leader_epoch = leader_epoch
        self._state = state
        self.settings = settings
        self.recovered_cut_bytes: int = log.recovered_cut_bytes
        self._log = log
        self.log_start_offset: int = log_start_offset
        self.high_watermark: int = log.end_offset
        self.last_stable_offset: int = self._stable_offset()
        self._sync = GroupSync(log, self._became_durable)
        self._changed: asyncio.Future[None] | None = None
        # Why the disk refused the last append; '' if it did not.
        self._disk_error = ""
        state.epochs.begin(leader_epoch, log.end_offset)

    @classmethod
    def open(
        cls,
        place: Path | SegmentStore | None,
        *,
        topic: str,
        partition: int,
        leader_epoch: int,
        settings: LogSettings,
        log_start_offset: int = 0,
        durable_end: int = 0,
    ) -> PartitionLog:
        """Open a partition and recover its directory: every batch is read and its CRC checked.

        Blocks; needs no event loop, so that startup may open logs in threads. A torn end is truncated; damage in a
        segment that was complete on disk is a CorruptLogError, an end before ``durable_end`` (the offset up to which
        the log was on disk at an earlier start or stop) a ShortLogError. Without a ``place`` everything is in memory.
        """
        log = SegmentedLog(DiskStore(place) if isinstance(place, Path) else place or MemoryStore())
        state = LogState()
        log.recover(state.recovered, durable_end=durable_end)
        name, start = (topic, partition), log_start_offset
        return cls(name, log, state, leader_epoch=leader_epoch, settings=settings, log_start_offset=start)

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    def start_verification(
        self, pair: Pair, sequence: int = NO_SEQUENCE, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | Code:
        """Whether the coordinator must be asked before a transactional batch is appended (KIP-890, "Verification")."""
        producers = self._state.producers
        return producers.start_verification(pair, sequence, supports_epoch_bump=supports_epoch_bump, now_ms=now_ms)

    def append(
        self,
        records: Buffer,
        header: BatchHeader,
        *,
        now_ms: int,
        guard: VerificationGuard | None = None,
        sequenced: bool = True,
    ) -> Appended:
        """Append a client's batch. Durable after `flush`; nothing is written unless the code is NONE.

        ``records`` are exactly the bytes that ``storage.batches.inspect`` returned ``header`` for, and are not kept;
        ``guard`` is from `start_verification`. `flush` is required before the answer to a duplicate too. The broker's
        own records are not ``sequenced``.
        """
        settings, producers, code = self.settings, self._state.producers, Code.NONE
        # UnifiedLog's checks, in its order.
        if header.size_bytes > settings.message_max_bytes:
            code = Code.MESSAGE_TOO_LARGE
        elif header.size_bytes > settings.segment_bytes:
            code = Code.RECORD_LIST_TOO_LARGE
        elif header.max_timestamp_ms > settings.latest_ms(now_ms):
            code = Code.INVALID_TIMESTAMP
        elif header.has_producer:
            repeated = producers.duplicate(header) if sequenced else None
            if repeated is not None:
                return Appended(Code.NONE, repeated.first_offset, repeated.timestamp_ms)
            code = producers.check_batch(header, guard, verification=settings.verification, sequenced=sequenced)
        if code is not Code.NONE:
            return Appended(code)
        written = self._written(records, header, now_ms)
        if written is None:
            return Appended(Code.KAFKA_STORAGE_ERROR)
        if written.has_producer:
            producers.batch_written(written)
        append_time_ms = now_ms if settings.log_append_time else NO_TIMESTAMP
        return Appended(Code.NONE, written.base_offset, append_time_ms)

    def append_records(
        self,
        records: Sequence[batches.KeyValue],
        *,
        now_ms: int,
        producer: Pair | None = None,
        guard: VerificationGuard | None = None,
    ) -> Appended:
        """Append the broker's own records as one batch: of state logs, or of groups' offsets, also in a transaction."""
        batch = batches.build_batch(
            batches.encode_key_values(records),
            record_count=len(records),
            timestamp_ms=now_ms,
            producer=producer or NO_PAIR,
            attributes=TRANSACTIONAL_BIT if producer else 0,
        )
        return self.append(batch, read_header(batch), now_ms=now_ms, guard=guard, sequenced=False)

    def append_marker(self, marker: EndMarker, *, now_ms: int) -> Code:
        """Append the end marker of a transaction. Durable after `flush`; nothing is written unless the code is NONE.

        As in Kafka, a marker for an unknown producer or transaction is also written.
        """
        code = self._state.producers.check_marker(marker)
        if code is not Code.NONE:
            return code
        batch = batches.build_marker(marker, timestamp_ms=now_ms)
        written = self._written(batch, read_header(batch), now_ms)
        if written is None:
            return Code.KAFKA_STORAGE_ERROR
        self._state.marker_written(written, commit=marker.commit, coordinator_epoch=marker.coordinator_epoch)
        return Code.NONE

    def flush(self) -> Synced:
        """Done when everything appended before this call is durable and visible. Many callers share one fdatasync.

        The result is a failure, or None. After a failure pending writes are in doubt, and the log takes no more.
        """
        return self._sync.request()

    def delete_before(self, offset: int) -> None:
        """Make records below an offset unreadable (DeleteRecords). The caller persists the offset."""
        assert offset <= self.high_watermark
        self.log_start_offset = max(self.log_start_offset, offset)
        self.last_stable_offset = self._stable_offset()
        self._wake()

    def expire_producers(self, now_ms: int) -> None:
        self._state.producers.expire(now_ms, self.settings.producer_id_expiration_ms)

    def read(
        self, offset: int, *, max_bytes: int, isolation: Isolation, min_one: bool
    ) -> tuple[bytes, tuple[tuple[int, int], ...] | None]:
        """Whole batches from the one with ``offset``, as far as ``isolation`` allows, from one segment.

        The second value has (producer id, first offset) of aborted transactions in the order of their markers, also
        beyond the batches (as Kafka does); None for read_uncommitted.

        With ``min_one`` the first batch is returned whatever its size, so that a reader always makes progress. Raises
        OffsetOutOfRangeError outside of the log, and OSError if the disk failed.
        """
        if not self.log_start_offset <= offset <= self._log.end_offset:
            raise OffsetOutOfRangeError(offset)
        limit = self.limit(isolation)
        committed = isolation is Isolation.READ_COMMITTED
        if offset >= limit:
            return b"", () if committed else None
        data, upper_offset = self._log.read(offset, max_bytes=max_bytes, min_one=min_one, limit_offset=limit)
        return data, self._state.aborted.between(offset, upper_offset) if committed else None

    def limit(self, isolation: Isolation) -> int:
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.high_watermark

    def changed(self) -> asyncio.Future[None]:
        """Done when the high watermark or the last stable offset moves next, or the log is closed.

        All callers get the same future: wait with ``asyncio.wait`` or ``asyncio.shield``, which do not cancel it, and
        check again afterwards.
        """
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def records(self, offset: int = 0) -> Iterator[Record]:
        """Every record from ``offset`` to the log's end, including control records, for loading state logs."""
        for header, batch in self._log.batches(offset):
            try:
                yield from (record for record in batches.decode_records(batch, header) if record.offset >= offset)
            except batches.BatchError as error:
                raise self.unreadable(header.base_offset, error.detail) from error

    def unreadable(self, offset: int, detail: str) -> UnreadableRecordError:
        return UnreadableRecordError(
            path=self._log.path_of(offset), topic=self.topic, partition=self.partition, offset=offset, detail=detail
        )

    def earliest(self) -> FoundOffset:
        return FoundOffset(self.log_start_offset, NO_TIMESTAMP, self._state.epochs.at(self.log_start_offset))

    def latest(self, isolation: Isolation) -> FoundOffset:
        return FoundOffset(self.limit(isolation), NO_TIMESTAMP, self._state.epochs.latest)

    async def offset_for_timestamp(self, timestamp_ms: int, isolation: Isolation) -> FoundOffset:
        """ListOffsets: the first record visible to the reader with this timestamp or a later one, or `NOT_FOUND`."""
        start = self.log_start_offset
        for header, batch in self._log.batches_with_timestamp(timestamp_ms):
            record = await decoded(header, partial(first_from, batch, header, timestamp_ms, start))
            if record is not None:
                seen = record.offset < self.limit(isolation)
                return FoundOffset(record.offset, record.timestamp_ms, record.batch.leader_epoch) if seen else NOT_FOUND
        return NOT_FOUND

    async def offset_of_max_timestamp(self, isolation: Isolation) -> FoundOffset:
        """ListOffsets MAX_TIMESTAMP (-3, KIP-734): the first record with the largest timestamp, or `NOT_FOUND`.

        Considers available records only; Kafka 4.4.0 may still return a record that DeleteRecords deleted.
        """
        start = self.log_start_offset
        largest_ms = self._log.max_timestamp_from(start)
        header, batch = next(self._log.batches(start), (None, b"")) if start else (None, b"")
        if header is not None and header.base_offset < start:
            # The log starts in this batch.
            largest_ms = max(largest_ms, await decoded(header, partial(max_timestamp_from, batch, header, start)))
        return NOT_FOUND if largest_ms < 0 else await self.offset_for_timestamp(largest_ms, isolation)

    def offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self._state.epochs.end_of(epoch, self._log.end_offset)

    def producers(self) -> Iterator[producer_state.ProducerEntry]:
        return self._state.producers.entries()

    def close(self) -> None:
        """Take no more records and wake waiting readers; files are closed when a running fdatasync is over.

        Does not flush. A second call does nothing.
        """
        self._sync.close()
        self._wake()

    def _written(self, batch: Buffer, header: BatchHeader, now_ms: int) -> BatchHeader | None:
        """The batch's header in the log; None if the disk refused, and the log is unchanged."""
        stamped = batches.stamp_batch(
            batch,
            header,
            base_offset=self._log.end_offset,
            leader_epoch=self.leader_epoch,
            append_time_ms=now_ms if self.settings.log_append_time else None,
        )
        try:
            self._log.append(stamped, segment_bytes=self.settings.segment_bytes)
        except OSError as error:
            # Once for each reason: clients retry many times a second.
            if str(error) != self._disk_error:
                _logger.error("%s: cannot write records, refusing them: %s", self._log.path, error)  # noqa: TRY400
            self._disk_error = str(error)
            return None
        if self._disk_error:
            _logger.warning("%s: records can be written again", self._log.path)
            self._disk_error = ""
        return stamped.header

    def _became_durable(self, end_offset: int) -> None:
        self.high_watermark = end_offset
        self.last_stable_offset = self._stable_offset()
        self._wake()

    def _stable_offset(self) -> int:
        return max(self.log_start_offset, self._state.stable_offset(self.high_watermark))

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
