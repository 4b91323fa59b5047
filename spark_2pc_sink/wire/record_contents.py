"""The records in a batch one by one, so that a broker's refusal of some can be traced to rows.

A record's content does not depend on its position: from its key length on, its bytes are the same in any batch
(see `spark_2pc_sink.wire.record_batch`). Only batches made by `encode_unassigned_batch` are split.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_2pc_sink.wire.arrow_layout import INT32_BYTES_MAX, ZERO_BYTES, Varints
from spark_2pc_sink.wire.batch_format import BITS, HEADER_BYTES, LOW_BITS, MORE_FOLLOW, read_header, read_varint
from spark_2pc_sink.wire.batch_reader import decompress
from spark_2pc_sink.wire.record_batch import Compression

if TYPE_CHECKING:
    from spark_2pc_sink.wire.arrow_layout import ArrowBuffer, ArrowColumn, Int64Array
    from spark_2pc_sink.wire.framed_request import RecordBytes


def contents_of(batch: RecordBytes | ArrowBuffer, record_count: int) -> ArrowColumn:
    """The content of each record in a batch: length-prefixed key, value and headers, as a binary array."""
    view = memoryview(batch).cast("B")
    compression = Compression(read_header(view).compression)
    # The package's own batch: it had this size before compression.
    section = decompress(view[HEADER_BYTES:], compression, bytes_max=INT32_BYTES_MAX)
    bodies, ends = _bounds(section, record_count)
    # Attributes, timestamp delta and offset delta are between a record's length and its content.
    starts = bodies + ZERO_BYTES + Varints.of(np.arange(record_count, dtype=np.int64)).sizes
    bounds = np.zeros(2 * record_count + 1, np.int32)
    bounds[1::2], bounds[2::2] = starts, ends
    # Every other row is the part before a content.
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(section)]
    rows = pa.Array.from_buffers(pa.binary(), 2 * record_count, buffers)
    return rows.take(pa.array(np.arange(1, 2 * record_count, 2)))


def key_of_content(content: bytes) -> bytes | None:
    length, start = read_varint(content, 0)
    return None if length < 0 else content[start : start + length]


def value_of_content(content: bytes) -> bytes | None:
    length, start = read_varint(content, 0)
    length, start = read_varint(content, start + max(length, 0))
    return None if length < 0 else content[start : start + length]


def content_digests(contents: ArrowColumn) -> frozenset[bytes]:
    """The digests in `RecordRefusedError`, for records from `contents_of`."""
    return frozenset(blake2b(content, digest_size=16).digest() for content in contents.to_pylist())


def _bounds(section: bytes, record_count: int) -> tuple[Int64Array, Int64Array]:
    """Where each record begins after its own length, and where it ends.

    The only loop over records besides the digest's: a record's start is known only after reading the previous one.
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
