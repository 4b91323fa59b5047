"""The segments of one partition as one log: append, roll, find, read, and what is not on disk yet.

Every segment but the last is on disk as a whole: rolling waits for fdatasync of the segment that it ends. That is the
one place where the event loop waits for the disk, for what was written since the last group commit, once in
``log.segment.bytes``; in return a damaged batch in an earlier segment can only be damage, never a torn write.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from spark_2pc_sink.reference.storage.batches import Stamped
from spark_2pc_sink.reference.storage.errors import CorruptLogError, ShortLogError
from spark_2pc_sink.reference.storage.files import SegmentFile, SegmentStore, TornFileError
from spark_2pc_sink.reference.storage.recovery import recover_segment
from spark_2pc_sink.reference.storage.segments import NO_TIMESTAMP, RELATIVE_OFFSET_MAX, Segment
from spark_2pc_sink.wire.batch_format import LOG_OVERHEAD, LOG_OVERHEAD_BYTES, BatchHeader


@dataclass(frozen=True)
class ReadBytes:
    """What a read found.

    Args:
        data: whole batches.
        upper_offset: up to where aborted transactions matter to the reader: the offset of the next index entry
            behind ``data``, else the end of the segment, which is the log's end in the last one.
    """

    data: bytes
    upper_offset: int


class SegmentedLog:
    """The bytes of one partition. Call `recover` before anything else.

    Args:
        store: where the segments are.

    Attributes:
        failure: why nothing can be appended any more, or ''.
        recovered_cut_bytes: what `recover` cut off the end: a write that a crash had torn.
        unsynced_bytes: appended since `take_unsynced`.
    """

    def __init__(self, store: SegmentStore) -> None:
        self.failure: str = ""
        self.recovered_cut_bytes: int = 0
        self.unsynced_bytes: int = 0
        self._store = store
        self._segments: list[Segment] = []
        self._base_offsets: list[int] = []
        self._unsynced: list[SegmentFile] = []
        self._names_unsynced = False

    @property
    def path(self) -> str:
        """Where the log is, for messages."""
        return self._store.path

    def path_of(self, offset: int) -> str:
        """The file that holds ``offset``, for messages."""
        return self._segments[max(bisect_right(self._base_offsets, offset) - 1, 0)].file.path

    @property
    def end_offset(self) -> int:
        """Behind the last record."""
        return self._segments[-1].end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._segments)

    def recover(self, take: Callable[[BatchHeader, bytes], None], *, durable_end: int = 0) -> None:
        """Open what is in the store; each batch is checked and given to ``take``. Blocks.

        Args:
            take: called with each header and batch, in order.
            durable_end: the offset up to which the log is known to have been on disk.

        Raises:
            CorruptLogError: damage that no crash explains, see `recovery`.
            ShortLogError: the log ends before ``durable_end``.
        """
        base_offsets = self._store.base_offsets()
        if base_offsets and base_offsets[0]:
            detail = f"its first segment is missing, the first that is there begins at offset {base_offsets[0]}"
            raise CorruptLogError(path=self.path, position_bytes=0, detail=detail)
        if not base_offsets and durable_end:
            raise ShortLogError(path=self.path, end_offset=0, durable_end=durable_end)
        for base_offset in base_offsets or [0]:
            self._add(Segment(base_offset, self._store.segment(base_offset)))
        for segment in self._segments:
            self.recovered_cut_bytes = recover_segment(
                segment, take, last=segment is self._segments[-1], durable_end=durable_end
            )
        for before, after in pairwise(self._segments):
            if before.end_offset != after.base_offset:
                detail = f"it ends at offset {before.end_offset}, the next segment begins at {after.base_offset}"
                raise CorruptLogError(path=before.file.path, position_bytes=before.size_bytes, detail=detail)
        if self.end_offset < durable_end:
            raise ShortLogError(path=self.path, end_offset=self.end_offset, durable_end=durable_end)
        if self.end_offset == 0:
            self._names_unsynced = True  # with the first record
            return
        # What an earlier process wrote may not have reached the disk, and readers are about to see it.
        self._segments[-1].file.sync()
        self._store.sync()

    def refuse(self, reason: str) -> None:
        """Take nothing more, for good; the first reason is kept."""
        self.failure = self.failure or reason

    def append(self, stamped: Stamped, *, segment_bytes: int) -> None:
        """Write a batch, in a new segment if this one would grow beyond ``segment_bytes``.

        Raises:
            OSError: nothing was written; `failure` says whether later appends may succeed.
        """
        if self.failure:
            raise OSError(self.failure)
        assert stamped.header.base_offset == self.end_offset
        segment = self._segments[-1]
        try:
            if self._full(segment, stamped.header, segment_bytes):
                segment = self._roll(segment)
            segment.append(stamped)
        except TornFileError as error:
            self.refuse(str(error))
            raise
        if segment.file not in self._unsynced:
            self._unsynced.append(segment.file)
        self.unsynced_bytes += stamped.header.size_bytes

    def read(self, offset: int, *, max_bytes: int, min_one: bool, limit_offset: int) -> ReadBytes:
        """Whole batches from the one with ``offset`` on, all below ``limit_offset``, from one segment.

        Args:
            offset: below ``limit_offset``.
            max_bytes: of data; more only for one batch, and only with ``min_one``.
            min_one: give the first batch whatever its size.
            limit_offset: where a batch begins, or the log's end.
        """
        index = bisect_right(self._base_offsets, offset) - 1
        segment = self._segments[index]
        position = segment.position_of(offset)
        head = segment.file.read(position, LOG_OVERHEAD_BYTES)
        first_bytes = LOG_OVERHEAD.unpack(head)[1] + LOG_OVERHEAD_BYTES
        count = max(max_bytes, first_bytes) if min_one else max_bytes
        data = segment.file.read(position, count)
        end, reached_limit = _whole_batches(data, limit_offset)
        # Kafka returns a cut batch at the end, and looks for aborted transactions behind that.
        returned = end if reached_limit else len(data)
        upper = segment.upper_offset(position + returned)
        return ReadBytes(data if end == len(data) else data[:end], segment.end_offset if upper is None else upper)

    def batches(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Every batch from the one that holds ``offset`` on, to the log's end."""
        first = max(bisect_right(self._base_offsets, offset) - 1, 0)
        for segment in self._segments[first:]:
            for header, position in segment.batches(segment.position_of(offset)):
                yield header, segment.batch(header, position)

    def batches_with_timestamp(self, timestamp_ms: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """The batches that hold ``timestamp_ms`` or a later one, in order."""
        for segment in self._segments:
            if segment.max_timestamp_ms >= timestamp_ms:
                for header, position in segment.batches(segment.position_before_timestamp(timestamp_ms)):
                    if header.max_timestamp_ms >= timestamp_ms:
                        yield header, segment.batch(header, position)

    def max_timestamp_from(self, offset: int) -> int:
        """The largest of any batch that begins at ``offset`` or behind it, or -1."""
        following = bisect_left(self._base_offsets, offset)
        found_ms = [segment.max_timestamp_ms for segment in self._segments[following:]]
        if not found_ms or self._segments[following].base_offset != offset:
            # The segment before has a part that counts; only its headers tell which.
            begun = self._segments[following - 1]
            left = (header for header, _ in begun.batches(begun.position_of(offset)) if header.base_offset >= offset)
            found_ms += [header.max_timestamp_ms for header in left]
        return max(found_ms, default=NO_TIMESTAMP)

    def take_unsynced(self) -> Callable[[], None] | None:
        """What must be done in a thread to make durable what is written now; it is not given a second time.

        None where nothing is to be waited for. The work raises OSError, after which nothing may be appended.
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
        """Give the files back; nothing is appended or read any more."""
        self.refuse("it is closed")
        for segment in self._segments:
            segment.file.close()

    def _full(self, segment: Segment, header: BatchHeader, segment_bytes: int) -> bool:
        if segment.size_bytes == 0:
            return False
        return (
            segment.size_bytes + header.size_bytes > segment_bytes
            or header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        )

    def _roll(self, segment: Segment) -> Segment:
        try:
            segment.file.sync()
        except OSError as error:
            self.refuse(f"fdatasync of {segment.file.path} failed: {error}")
            raise
        rolled = Segment(segment.end_offset, self._store.segment(segment.end_offset))
        self._names_unsynced = True
        self._add(rolled)
        return rolled

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)


def _whole_batches(data: bytes, limit_offset: int) -> tuple[int, bool]:
    """Bytes of the whole batches below ``limit_offset`` at the front, and whether the limit ended them."""
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
