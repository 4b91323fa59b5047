"""The records of a batch one by one, so that a broker's refusal of some can be traced to rows.

What a record says does not depend on where it stands: from its key length on, its bytes are the same in any batch
(see `spark_2pc_sink.wire.record_rows`). Only batches that `encode_unassigned_batch` made are taken apart.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_2pc_sink.wire.arrow_layout import INT32_BYTES_MAX, Varints
from spark_2pc_sink.wire.batch_format import BITS, HEADER_BYTES, LOW_BITS, MORE_FOLLOW, read_header, read_varint
from spark_2pc_sink.wire.batch_reader import decompress
from spark_2pc_sink.wire.record_batch import Compression
from spark_2pc_sink.wire.record_rows import ZERO_BYTES

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
