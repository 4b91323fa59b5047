"""The records of a batch one by one, so that some of them can go into another batch.

What a record says does not depend on where it stands: from its key length on, its bytes are the same in any batch
(see `spark_2pc_sink.wire.arrow_records`). So a record is taken out of one batch and put into another without being
understood. Only batches that `encode_unassigned_batch` made are taken apart, and nobody else has touched those.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.wire.arrow_layout import INT32_BYTES_MAX, data_of, join_rows, offsets_of
from spark_2pc_sink.wire.arrow_records import RecordsSection, with_header_room
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, read_header
from spark_2pc_sink.wire.compression import Compression, decompress
from spark_2pc_sink.wire.record_rows import ZERO_BYTES
from spark_2pc_sink.wire.varint_columns import Varints, encode_varint_rows
from spark_2pc_sink.wire.varints import BITS, LOW_BITS, MORE_FOLLOW, read_varint

if TYPE_CHECKING:
    from spark_2pc_sink.wire.arrow_layout import ArrowBuffer, ArrowColumn, Int64Array
    from spark_2pc_sink.wire.framed_request import RecordBytes


def contents_of(batch: RecordBytes | ArrowBuffer, record_count: int) -> ArrowColumn:
    """What each record of a batch says: key, value and headers, each behind its length.

    Args:
        batch: from `encode_unassigned_batch`.
        record_count: how many records it has.

    Returns:
        a binary array without nulls.
    """
    view = memoryview(batch).cast("B")
    compression = Compression(read_header(view).compression)
    # The package's own batch: it was as large as this before it was compressed.
    section = decompress(view[HEADER_BYTES:], compression, bytes_max=INT32_BYTES_MAX)
    bodies, ends = _bounds(section, record_count)
    # Attributes, timestamp delta and offset delta stand between a record's length and its content.
    starts = bodies + ZERO_BYTES + Varints.of(np.arange(record_count, dtype=np.int64)).sizes
    bounds = np.zeros(2 * record_count + 1, np.int32)
    bounds[1::2], bounds[2::2] = starts, ends
    # Every other row is what stands before a content.
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(section)]
    rows = pa.Array.from_buffers(pa.binary(), 2 * record_count, buffers)
    return rows.take(pa.array(np.arange(1, 2 * record_count, 2)))


def key_of_content(content: bytes) -> bytes | None:
    """The key of a record."""
    length, start = read_varint(content, 0)
    return None if length < 0 else content[start : start + length]


def value_of_content(content: bytes) -> bytes | None:
    """The value of a record."""
    length, start = read_varint(content, 0)
    length, start = read_varint(content, start + max(length, 0))
    return None if length < 0 else content[start : start + length]


def content_digests(contents: ArrowColumn) -> frozenset[bytes]:
    """What `RecordRefusedError` has of records, from `contents_of`."""
    return frozenset(blake2b(content, digest_size=16).digest() for content in contents.to_pylist())


def section_of_contents(contents: ArrowColumn) -> RecordsSection:
    """The records of a new batch, in this order.

    Args:
        contents: from `contents_of`, at least one.
    """
    count = len(contents)
    lengths = np.asarray(pc.binary_length(contents)).astype(np.int64)
    deltas = Varints.of(np.arange(count, dtype=np.int64))
    bodies = lengths + ZERO_BYTES + deltas.sizes
    sizes = Varints.of(bodies)
    bounds = offsets_of(bodies + sizes.sizes)
    heads = with_header_room(*encode_varint_rows([sizes, None, None, deltas], count), np.array([count]))
    buffer = data_of(join_rows([heads, contents], count))
    return RecordsSection(
        buffer=buffer.slice(HEADER_BYTES, int(bounds[-1])),
        ends=bounds[1:],
        content_starts=bounds[1:] - lengths,
        frame=memoryview(buffer).cast("B")[: HEADER_BYTES + int(bounds[-1])],
    )


def _bounds(section: bytes, record_count: int) -> tuple[Int64Array, Int64Array]:
    """Where each record begins behind its own length, and where it ends.

    The only loop over records beside that of the digest: where one begins is known when the one before is read.
    """
    bodies, ends = [], []
    position = 0
    for _ in range(record_count):
        byte = section[position]
        position += 1
        zigzag, shift = byte & LOW_BITS, BITS
        while byte & MORE_FOLLOW:
            byte = section[position]
            position += 1
            zigzag |= (byte & LOW_BITS) << shift
            shift += BITS
        bodies.append(position)
        position += zigzag >> 1
        ends.append(position)
    return np.array(bodies, np.int64), np.array(ends, np.int64)
