"""One segment: a file of batches and the sparse index that finds a batch in it.

The index is in memory and has an entry for about every 4 KiB, under the same rule as Kafka's ``.index`` files
(``LogSegment.append``): the rule decides which aborted transactions a fetch lists, so that it must be the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from spark_2pc_sink.reference.storage.batches import Stamped
from spark_2pc_sink.reference.storage.errors import CorruptLogError
from spark_2pc_sink.reference.storage.files import SegmentFile
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, read_header

#: index.interval.bytes: more than so many bytes are between two entries.
INDEX_INTERVAL_BYTES: Final = 4096
#: Bytes read at once while walking from an index entry to a batch: one interval, and the header behind it.
_WALK_BYTES: Final = INDEX_INTERVAL_BYTES + HEADER_BYTES
#: A batch's offset in a segment is an int32 relative to its base in Kafka's index files.
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
NO_TIMESTAMP: Final = -1


class Segment:
    """The batches from ``base_offset`` on, in one file.

    Attributes:
        end_offset: behind the last record.
        max_timestamp_ms: the largest of any batch, or -1.
    """

    def __init__(self, base_offset: int, file: SegmentFile) -> None:
        self.base_offset = base_offset
        self.end_offset: int = base_offset
        self.max_timestamp_ms: int = NO_TIMESTAMP
        self.file = file
        self._last_offsets = array("q")
        self._positions = array("q")
        # The largest timestamp of all batches before the entry: where a search by timestamp may begin.
        self._timestamps_before = array("q")
        self._unindexed_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.file.size_bytes

    def append(self, stamped: Stamped) -> None:
        """Write a batch at the end.

        Raises:
            OSError: see `SegmentFile.append`; the segment is as before.
        """
        position = self.file.size_bytes
        self.file.append(stamped.parts)
        self.index(stamped.header, position)

    def index(self, header: BatchHeader, position: int) -> None:
        """Take a batch into account that begins at ``position``, behind all others."""
        if self._unindexed_bytes > INDEX_INTERVAL_BYTES:
            self._last_offsets.append(header.last_offset)
            self._positions.append(position)
            self._timestamps_before.append(self.max_timestamp_ms)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size_bytes
        self.end_offset = header.last_offset + 1
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp_ms)

    def position_of(self, offset: int) -> int:
        """Where the batch begins that holds ``offset``, or the first one behind it; the end if there is none."""
        entry = bisect_right(self._last_offsets, offset) - 1
        position = self._positions[entry] if entry >= 0 else 0
        for found, header in self._walk(position):
            if header.last_offset >= offset:
                return found
        return self.file.size_bytes

    def upper_offset(self, position: int) -> int | None:
        """The offset in the first index entry at or behind a position (``OffsetIndex.fetchUpperBoundOffset``)."""
        entry = bisect_left(self._positions, position)
        return self._last_offsets[entry] if entry < len(self._positions) else None

    def position_before_timestamp(self, timestamp_ms: int) -> int:
        """A position before which every batch is earlier than ``timestamp_ms``."""
        entry = bisect_left(self._timestamps_before, timestamp_ms) - 1
        return self._positions[entry] if entry >= 0 else 0

    def batches(self, position: int) -> Iterator[tuple[BatchHeader, int]]:
        """Headers and positions of the batches from ``position`` on, which must be where one begins."""
        return ((header, found) for found, header in self._walk(position))

    def batch(self, header: BatchHeader, position: int) -> bytes:
        """The bytes of a batch."""
        return self.file.read(position, header.size_bytes)

    def _walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Header by header; several in one read where batches are small."""
        chunk, chunk_position = b"", position
        while position + HEADER_BYTES <= self.file.size_bytes:
            start = position - chunk_position
            if start + HEADER_BYTES > len(chunk):
                chunk, chunk_position, start = self.file.read(position, _WALK_BYTES), position, 0
            header = read_header(chunk, start)
            if header.length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
                raise CorruptLogError(path=self.file.path, position_bytes=position, detail=f"length {header.length}")
            yield position, header
            position += header.size_bytes
