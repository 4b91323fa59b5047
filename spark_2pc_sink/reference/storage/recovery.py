"""Recovery of a segment: every batch is read and checked, and a torn end is cut off.

Every start checks everything, which costs about a second per gigabyte and per hundred thousand batches. In the last
segment the log ends at the first batch whose length, CRC or offset is wrong. Below the offset up to which the log is
known to have been on disk, at the last start or a clean stop, that is damage too, and an error. Above it everything
behind is removed, as Kafka does after an unclean end (``LogSegment.recover``): the disk may have stored
the pages of the last, unfinished writes in any order, so that what looks whole behind a torn batch was never
acknowledged. In an earlier segment, which was on disk as a whole before the next one was begun, the same is damage, and
an error that names the file: Kafka would drop all segments behind it, with records that it has acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spark_2pc_sink.reference.storage.batches import whole
from spark_2pc_sink.reference.storage.errors import CorruptLogError, ShortLogError
from spark_2pc_sink.reference.storage.segments import Segment
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, read_header

#: Read at once; a batch that is larger is read by itself.
READ_BYTES = 4 * 1024 * 1024


def recover_segment(
    segment: Segment, take: Callable[[BatchHeader, bytes], None], *, last: bool, durable_end: int = 0
) -> int:
    """Index a segment's batches and give each to ``take``.

    Args:
        segment: just opened.
        take: called with each header and batch, in order.
        last: it is the one that was being written; a torn end is cut off.
        durable_end: the offset up to which the log is known to have been on disk.

    Returns:
        the bytes cut off.

    Raises:
        CorruptLogError: damage in a segment that is not the last.
        ShortLogError: damage in the last one, below ``durable_end``.
    """
    position = 0
    for header, batch in _whole_batches(segment):
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


def _whole_batches(segment: Segment) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches from the front, up to the first that is not right."""
    position = 0
    offset = segment.base_offset
    chunk, chunk_position = b"", 0
    while position + HEADER_BYTES <= segment.file.size_bytes:
        start = position - chunk_position
        if start + HEADER_BYTES > len(chunk):
            chunk, chunk_position, start = segment.file.read(position, READ_BYTES), position, 0
        header = read_header(chunk, start)
        if header.length < HEADER_BYTES - LOG_OVERHEAD_BYTES or position + header.size_bytes > segment.file.size_bytes:
            return
        batch = chunk[start : start + header.size_bytes]
        if len(batch) < header.size_bytes:
            chunk, chunk_position = segment.file.read(position, max(READ_BYTES, header.size_bytes)), position
            batch = chunk[: header.size_bytes]
        if header.base_offset != offset or not whole(batch, header):
            return
        yield header, batch
        offset = header.last_offset + 1
        position += header.size_bytes
