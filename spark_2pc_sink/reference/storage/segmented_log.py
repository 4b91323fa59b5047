"""The segments of one partition as one log: append, roll, find, read, and track what is not on disk yet.

Every segment but the last is completely on disk: rolling waits for fdatasync of the segment that it ends. Only there
does the event loop wait for the disk, once per ``log.segment.bytes``; in return, a bad batch in an earlier segment is
always damage, never a torn write.

A segment's index is in memory, under the same rule as Kafka's ``.index`` files (``LogSegment.append``), because it
decides which aborted transactions a fetch lists.

Every start checks everything, which costs about a second per gigabyte and per hundred thousand batches. In the last
segment the log ends at the first batch whose length, CRC or offset is wrong, and is truncated there, as Kafka does
after an unclean shutdown (``LogSegment.recover``): the disk may have stored the pages of unfinished writes in any
order, so an intact batch after a torn one was never acknowledged. In an earlier segment, or below the offset up to
which the log was on disk at the last start or clean stop, it is damage, and an error that names the file: Kafka would
drop all later segments, with records that it has acknowledged.

`GroupSync` is group commit: however many callers wait, one fdatasync runs and at most one more is pending. A caller
that arrives while one is running waits for the next, which covers everything written before it begins. So the disk
limits the number of fdatasyncs per second, but not the number of appends. A thread keeps a slow disk from blocking the
event loop, but the switch costs more than an fdatasync of a fast disk. So small writes are synced on the loop itself
for as long as that has been quick.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Final, TypeAlias

from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.reference.coordinator.states import NO_TIMESTAMP
from spark_2pc_sink.reference.storage.batches import Stamped, is_whole
from spark_2pc_sink.reference.storage.files import SegmentFile, SegmentStore, TornFileError
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, LOG_OVERHEAD, LOG_OVERHEAD_BYTES, BatchHeader, read_header

#: index.interval.bytes: more than this many bytes are between two entries.
INDEX_INTERVAL_BYTES: Final = 4096
#: Bytes per read while walking from an index entry to a batch: one interval, and the next header.
_WALK_BYTES: Final = INDEX_INTERVAL_BYTES + HEADER_BYTES
#: A batch's offset in a segment is an int32 relative to its base in Kafka's index files.
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
_logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class CorruptLogError(DualWriteError):
    """A segment file is damaged where a crash cannot have damaged it. Nothing was changed."""

    path: str
    position_bytes: int
    detail: str

    def __str__(self) -> str:
        return (
            f"{self.path} is damaged at byte {self.position_bytes}: {self.detail}. It was complete on disk before the "
            "next segment was begun, so this is not a torn write; nothing was changed. Restore the file from a copy, "
            "or delete the directory of the partition if its records are not needed"
        )


@dataclass(eq=False, kw_only=True)
class ShortLogError(DualWriteError):
    """A log is shorter than it was on disk before: acknowledged records are missing. Nothing was changed."""

    path: str
    end_offset: int
    durable_end: int

    def __str__(self) -> str:
        return (
            f"{self.path} ends at offset {self.end_offset}, and was on disk up to offset {self.durable_end} when the "
            "node last started or stopped: acknowledged records are damaged or missing, which no crash explains. "
            "Nothing was changed. Restore the file from a copy; or, to give these records up, remove log-ends.json "
            "from the data directory: logs are then accepted as they are"
        )


@dataclass(eq=False, kw_only=True)
class LogFailedError(DualWriteError):
    """The disk failed under a partition. Writes not known to be durable may be lost; the log takes no more."""

    path: str
    detail: str

    def __str__(self) -> str:
        return (
            f"making records durable of {self.path} failed: {self.detail}; the partition refuses records with "
            "KAFKA_STORAGE_ERROR (56). Repair the disk and restart the node: intact records are kept"
        )


class Segment:
    def __init__(self, base_offset: int, file: SegmentFile) -> None:
        self.base_offset = base_offset
        self.end_offset: int = base_offset
        self.max_timestamp_ms: int = NO_TIMESTAMP
        self.file = file
        self._last_offsets = array("q")
        self._positions = array("q")
        # The largest timestamp of all batches before the entry: a search by timestamp starts there.
        self._timestamps_before = array("q")
        self._unindexed_bytes = 0

    def index(self, header: BatchHeader, position: int) -> None:
        if self._unindexed_bytes > INDEX_INTERVAL_BYTES:
            self._last_offsets.append(header.last_offset)
            self._positions.append(position)
            self._timestamps_before.append(self.max_timestamp_ms)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size_bytes
        self.end_offset = header.last_offset + 1
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp_ms)

    def position_of(self, offset: int) -> int:
        """Position of the batch with ``offset``, or of the next one; the end if there is none."""
        entry = bisect_right(self._last_offsets, offset) - 1
        position = self._positions[entry] if entry >= 0 else 0
        for header, found in self.batches(position):
            if header.last_offset >= offset:
                return found
        return self.file.size_bytes

    def upper_offset(self, position: int) -> int:
        """The offset in the first index entry at or after a position, or the end (``fetchUpperBoundOffset``)."""
        entry = bisect_left(self._positions, position)
        return self._last_offsets[entry] if entry < len(self._positions) else self.end_offset

    def position_before_timestamp(self, timestamp_ms: int) -> int:
        """A position such that every earlier batch is older than ``timestamp_ms``."""
        entry = bisect_left(self._timestamps_before, timestamp_ms) - 1
        return self._positions[entry] if entry >= 0 else 0

    def batches(self, position: int) -> Iterator[tuple[BatchHeader, int]]:
        """Headers and positions from the batch at ``position`` on; small batches share one read."""
        chunk, chunk_position = b"", position
        while position + HEADER_BYTES <= self.file.size_bytes:
            start = position - chunk_position
            if start + HEADER_BYTES > len(chunk):
                chunk, chunk_position, start = self.file.read(position, _WALK_BYTES), position, 0
            header = read_header(chunk, start)
            if header.length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
                raise CorruptLogError(path=self.file.path, position_bytes=position, detail=f"length {header.length}")
            yield header, position
            position += header.size_bytes


_base_offset_of: Final = attrgetter("base_offset")
#: Bytes per read; a larger batch is read separately.
READ_BYTES = 4 * 1024 * 1024


def recover_segment(
    segment: Segment, take: Callable[[BatchHeader, bytes], None], *, last: bool, durable_end: int
) -> int:
    """Index a segment's batches, pass each to ``take``, and return the number of truncated bytes.

    Only in the ``last`` segment, the one that was being written, a torn end is truncated, unless it is below
    ``durable_end``.
    """
    position = 0
    chunk, chunk_position = b"", 0
    while position + HEADER_BYTES <= segment.file.size_bytes:
        start = position - chunk_position
        if start + HEADER_BYTES > len(chunk):
            chunk, chunk_position, start = segment.file.read(position, READ_BYTES), position, 0
        header = read_header(chunk, start)
        if header.length < HEADER_BYTES - LOG_OVERHEAD_BYTES or position + header.size_bytes > segment.file.size_bytes:
            break
        batch = chunk[start : start + header.size_bytes]
        if len(batch) < header.size_bytes:
            chunk, chunk_position = segment.file.read(position, max(READ_BYTES, header.size_bytes)), position
            batch = chunk[: header.size_bytes]
        if header.base_offset != segment.end_offset or not is_whole(batch, header):
            break
        segment.index(header, position)
        take(header, batch)
        position += header.size_bytes
    torn_bytes = segment.file.size_bytes - position
    if not torn_bytes:
        return 0
    if not last:
        detail = f"no whole batch at offset {segment.end_offset}, {torn_bytes} bytes before the end of the file"
        raise CorruptLogError(path=segment.file.path, position_bytes=position, detail=detail)
    if segment.end_offset < durable_end:
        raise ShortLogError(path=segment.file.path, end_offset=segment.end_offset, durable_end=durable_end)
    segment.file.truncate(position)
    return torn_bytes


class SegmentedLog:
    """One partition's bytes. Call `recover` first. ``failure`` says why appends are no longer possible, or is ''."""

    def __init__(self, store: SegmentStore) -> None:
        self.failure: str = ""
        self.recovered_cut_bytes: int = 0
        self.unsynced_bytes: int = 0
        self.path: str = store.path
        self._store = store
        self._segments: list[Segment] = []
        self._unsynced: list[SegmentFile] = []
        self._names_unsynced = False

    def path_of(self, offset: int) -> str:
        return self._segments[self._at(offset)].file.path

    @property
    def end_offset(self) -> int:
        return self._segments[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.file.size_bytes for segment in self._segments)

    def recover(self, take: Callable[[BatchHeader, bytes], None], *, durable_end: int = 0) -> None:
        """Open the store; each batch is validated and passed to ``take``. Blocks."""
        base_offsets = self._store.base_offsets()
        if base_offsets and base_offsets[0]:
            detail = f"its first segment is missing; the earliest one begins at offset {base_offsets[0]}"
            raise CorruptLogError(path=self.path, position_bytes=0, detail=detail)
        if not base_offsets and durable_end:
            raise ShortLogError(path=self.path, end_offset=0, durable_end=durable_end)
        self._segments = [Segment(each, self._store.segment(each)) for each in base_offsets or [0]]
        for segment in self._segments:
            last = segment is self._segments[-1]
            self.recovered_cut_bytes = recover_segment(segment, take, last=last, durable_end=durable_end)
        for before, after in pairwise(self._segments):
            if before.end_offset != after.base_offset:
                detail = f"it ends at offset {before.end_offset}, the next segment begins at {after.base_offset}"
                raise CorruptLogError(path=before.file.path, position_bytes=before.file.size_bytes, detail=detail)
        if self.end_offset < durable_end:
            raise ShortLogError(path=self.path, end_offset=self.end_offset, durable_end=durable_end)
        if self.end_offset == 0:
            self._names_unsynced = True  # with the first record
            return
        # Earlier writes may not have reached the disk, and are about to become visible to readers.
        self._segments[-1].file.sync()
        self._store.sync()

    def refuse(self, reason: str) -> None:
        """Refuse all further appends; the first reason is kept."""
        self.failure = self.failure or reason

    def append(self, stamped: Stamped, *, segment_bytes: int) -> None:
        """Write a batch, in a new segment if this one would grow beyond ``segment_bytes``.

        After an OSError nothing was written; `failure` says whether later appends may succeed.
        """
        if self.failure:
            raise OSError(self.failure)
        assert stamped.header.base_offset == self.end_offset
        segment, header = self._segments[-1], stamped.header
        too_long = segment.file.size_bytes + header.size_bytes > segment_bytes
        too_far = header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        try:
            if segment.file.size_bytes and (too_long or too_far):
                segment = self._roll(segment)
            position = segment.file.size_bytes
            segment.file.append(stamped.parts)
        except TornFileError as error:
            self.refuse(str(error))
            raise
        segment.index(header, position)
        if segment.file not in self._unsynced:
            self._unsynced.append(segment.file)
        self.unsynced_bytes += header.size_bytes

    def read(self, offset: int, *, max_bytes: int, min_one: bool, limit_offset: int) -> tuple[bytes, int]:
        """Whole batches from the one with ``offset``, all below ``limit_offset``, from one segment.

        Only a single batch may exceed ``max_bytes``, and only with ``min_one``. ``limit_offset`` is the start of a
        batch, or the log's end. The second value is the end of the range in which aborted transactions matter to the
        reader: the offset of the next index entry after the batches, else the end of the segment.
        """
        segment = self._segments[self._at(offset)]
        position = segment.position_of(offset)
        head = segment.file.read(position, LOG_OVERHEAD_BYTES)
        first_bytes = LOG_OVERHEAD.unpack(head)[1] + LOG_OVERHEAD_BYTES
        count = max(max_bytes, first_bytes) if min_one else max_bytes
        data = segment.file.read(position, count)
        end, reached_limit = _whole_batches(data, limit_offset)
        # Kafka returns a cut batch at the end, and looks for aborted transactions after that.
        returned = end if reached_limit else len(data)
        return data if end == len(data) else data[:end], segment.upper_offset(position + returned)

    def batches(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        for segment in self._segments[self._at(offset) :]:
            for header, position in segment.batches(segment.position_of(offset)):
                yield header, segment.file.read(position, header.size_bytes)

    def batches_with_timestamp(self, timestamp_ms: int) -> Iterator[tuple[BatchHeader, bytes]]:
        for segment in self._segments:
            if segment.max_timestamp_ms >= timestamp_ms:
                for header, position in segment.batches(segment.position_before_timestamp(timestamp_ms)):
                    if header.max_timestamp_ms >= timestamp_ms:
                        yield header, segment.file.read(position, header.size_bytes)

    def max_timestamp_from(self, offset: int) -> int:
        """The largest timestamp in any batch that begins at or after ``offset``, or -1."""
        following = bisect_left(self._segments, offset, key=_base_offset_of)
        found_ms = [segment.max_timestamp_ms for segment in self._segments[following:]]
        if not found_ms or self._segments[following].base_offset != offset:
            # A part of the previous segment counts too; only its headers tell which.
            begun = self._segments[following - 1]
            left = (header for header, _ in begun.batches(begun.position_of(offset)) if header.base_offset >= offset)
            found_ms += [header.max_timestamp_ms for header in left]
        return max(found_ms, default=NO_TIMESTAMP)

    def take_unsynced(self) -> Callable[[], None] | None:
        """The work that makes current writes durable, for a thread, or None; it is returned only once.

        The work raises OSError, after which appends must stop.
        """
        files, self._unsynced = self._unsynced, []
        self.unsynced_bytes = 0
        names, self._names_unsynced = self._names_unsynced, False
        if not self._store.on_disk:
            return None

        def work() -> None:
            for file in files:
                file.sync()
            if names:
                self._store.sync()

        return work

    def close(self) -> None:
        self.refuse("it is closed")
        for segment in self._segments:
            segment.file.close()

    def _roll(self, segment: Segment) -> Segment:
        try:
            segment.file.sync()
        except OSError as error:
            self.refuse(f"fdatasync of {segment.file.path} failed: {error}")
            raise
        rolled = Segment(segment.end_offset, self._store.segment(segment.end_offset))
        self._names_unsynced = True
        self._segments.append(rolled)
        return rolled

    def _at(self, offset: int) -> int:
        return max(bisect_right(self._segments, offset, key=_base_offset_of) - 1, 0)


def _whole_batches(data: bytes, limit_offset: int) -> tuple[int, bool]:
    """Bytes of the whole leading batches below ``limit_offset``, and whether the limit ended them."""
    end = 0
    while end + LOG_OVERHEAD_BYTES <= len(data):
        base_offset, length = LOG_OVERHEAD.unpack_from(data, end)
        if base_offset >= limit_offset:
            return end, True
        following = end + LOG_OVERHEAD_BYTES + length
        if following > len(data):
            break
        end = following
    return end, False


#: Done when everything written before the request is durable; a failure is its result, so that an uncollected
#: exception cannot occur. Each belongs to one caller: cancelling it does not affect the others.
Synced: TypeAlias = "asyncio.Future[LogFailedError | None]"

#: Limits for syncing on the event loop: bytes to sync, and duration of the last fdatasync.
INLINE_BYTES_MAX: Final = 64 * 1024
INLINE_SECONDS_MAX: Final = 0.001
#: Shared by all logs; each has at most one fdatasync in progress.
_THREADS: Final = 8
_syncers: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="sync")


class GroupSync:
    """The durability of one log. For the event loop only; fdatasync runs in a thread unless it is quick.

    The log's recovered content counts as durable; a failed fdatasync sets its ``failure``. ``on_synced`` is called with
    the new durable end offset, before waiting callers are woken.
    """

    def __init__(self, log: SegmentedLog, on_synced: Callable[[int], None]) -> None:
        self._log = log
        self._on_synced = on_synced
        self._durable_end = log.end_offset
        self._running: list[Synced] = []
        self._running_end: int | None = None
        self._waiting: list[Synced] = []
        self._closed = False
        self._last_seconds = math.inf

    def request(self) -> Synced:
        asked: Synced = asyncio.get_running_loop().create_future()
        end_offset = self._log.end_offset
        if end_offset <= self._durable_end:
            asked.set_result(None)
        elif self._log.failure:
            asked.set_result(self._failure())
        elif self._running_end is None:
            self._start([asked])
        elif self._running_end >= end_offset:
            self._running.append(asked)
        else:
            self._waiting.append(asked)
        return asked

    def close(self) -> None:
        """Refuse further records; the files are closed once no thread uses them. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._log.refuse("it is closed")
        if self._running_end is None:
            self._log.close()

    def _start(self, asked: list[Synced]) -> None:
        self._running, self._running_end = asked, self._log.end_offset
        little = self._log.unsynced_bytes <= INLINE_BYTES_MAX
        work = self._log.take_unsynced()
        if work is not None and (not little or self._last_seconds > INLINE_SECONDS_MAX):
            submitted = _syncers.submit(self._timed, work)
            # Directly back to the loop: asyncio's own wrapping costs a future and two more turns of the loop.
            submitted.add_done_callback(partial(self._tell, asyncio.get_running_loop()))
            return
        failure = None
        try:
            if work is not None:
                self._timed(work)
        except OSError as error:
            failure = error
        self._finished(failure)

    def _timed(self, work: Callable[[], None]) -> None:
        begun = time.perf_counter()
        work()
        self._last_seconds = time.perf_counter() - begun

    def _tell(self, loop: asyncio.AbstractEventLoop, work: Future[None]) -> None:
        """Runs in the thread. If the loop was closed in the meantime, there are no waiting callers."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finished, work.exception())

    def _finished(self, error: BaseException | None) -> None:
        assert self._running_end is not None
        asked, waiting, failure = self._running, self._waiting, None
        if error is None:
            self._durable_end = self._running_end
            self._on_synced(self._running_end)
        else:
            self._log.refuse(f"fdatasync failed: {error}")
            message = "%s: fdatasync failed, refusing records until the next start reads what the disk has: %s"
            _logger.error(message, self._log.path, error)
            asked, waiting, failure = asked + waiting, [], self._failure()
        self._running, self._waiting, self._running_end = [], [], None
        for each in asked:
            if not each.done():
                each.set_result(failure)
        if waiting:
            self._start(waiting)
        if self._closed and self._running_end is None:
            self._log.close()

    def _failure(self) -> LogFailedError:
        return LogFailedError(path=self._log.path, detail=self._log.failure)
