"""Rows of Arrow columns as the records of a Kafka record batch, without touching a row in Python.

A record of message format v2 (KIP-98, "Message Format"; ``DefaultRecord`` in Kafka's sources)::

    length: varint | attributes: int8 = 0 | timestamp delta: varint = 0 | offset delta: varint |
    key length: varint | key | value length: varint | value | header count: varint | headers

    header:  key length: varint | key | value length: varint | value

An absent key or value has length -1. The numbers before the key, and the value's length, become two binary arrays
made with NumPy. One ``binary_join_element_wise`` then joins them with key, value and headers, and the data buffer of
its result *is* the records section, with room for the batch's header before it. All records of a section have the
timestamp of the batch, so their delta is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.wire.arrow_layout import (
    INT32_BYTES_MAX,
    ArrowBuffer,
    ArrowColumn,
    ByteArray,
    Int64Array,
    binary_array,
    data_of,
    join_rows,
    offsets_of,
)
from spark_2pc_sink.wire.batch_format import HEADER_BYTES
from spark_2pc_sink.wire.record_rows import ZERO_BYTES, Rows
from spark_2pc_sink.wire.varint_columns import Varints, encode_varint_rows


@dataclass(frozen=True)
class RecordsSection:
    """The records of one batch, encoded and not yet compressed.

    Args:
        buffer: the records, one behind the other (a pyarrow.Buffer).
        ends: index in ``buffer`` one past each record.
        content_starts: index in ``buffer`` of each record's key length. From there on a record says what its row
            says (key, value and headers, each behind its length) and no more where the row stands in the batch.
        frame: the memory of ``buffer``, behind `HEADER_BYTES` in which a batch's header can be written: so
            records that are not compressed become a batch without being copied, but one batch only.
    """

    buffer: ArrowBuffer
    ends: Int64Array
    content_starts: Int64Array
    frame: memoryview

    @property
    def record_count(self) -> int:
        """How many records there are."""
        return len(self.ends)


def encode_sections(rows: Rows, counts: Sequence[int]) -> list[RecordsSection]:
    """Encode rows as the records of several batches, in each of which offset deltas count from 0.

    In one pass: of a few rows the calls cost more than the bytes.

    Args:
        rows: of all batches, one behind the other.
        counts: the rows of each batch.

    Raises:
        LocalProtocolError: the records of all together exceed 2 GiB - 1.
    """
    row_counts = np.asarray(counts, np.int64)
    stops = np.cumsum(row_counts)
    firsts = stops - row_counts
    deltas = Varints.of(np.arange(len(rows), dtype=np.int64) - np.repeat(firsts, row_counts))
    bodies = rows.body_sizes + deltas.sizes
    lengths = Varints.of(bodies)
    bounds = offsets_of(bodies + lengths.sizes)
    filled = row_counts[row_counts > 0]
    joined_bytes = int(bounds[-1]) + HEADER_BYTES * len(filled)
    if joined_bytes > INT32_BYTES_MAX:
        raise LocalProtocolError(
            operation="encode rows as one record batch",
            state=f"{len(rows)} rows take {joined_bytes} bytes",
            rule=f"the length of a batch is an int32: cut the rows to {INT32_BYTES_MAX} bytes or less",
        )
    heads = encode_varint_rows([lengths, None, None, deltas, rows.key.lengths], len(rows))
    prefixes = with_header_room(*heads, filled)
    parts = [prefixes, *rows.key.values(), *rows.value.parts(), *rows.header_parts()]
    joined = data_of(join_rows(parts, len(rows)))
    # Arrow has just made this memory, and nobody else knows it.
    memory = memoryview(joined).cast("B")
    content_starts = bounds[:-1] + lengths.sizes + ZERO_BYTES + deltas.sizes
    sections = []
    frame_start = 0
    for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
        begin, section_bytes = int(bounds[first]), int(bounds[stop] - bounds[first])
        start = frame_start + (HEADER_BYTES if stop > first else 0)
        sections.append(
            RecordsSection(
                buffer=joined.slice(start, section_bytes),
                ends=bounds[first + 1 : stop + 1] - begin,
                content_starts=content_starts[first:stop] - begin,
                frame=memory[frame_start : start + section_bytes],
            )
        )
        frame_start = start + section_bytes
    return sections


def with_header_room(data: ByteArray, offsets: Int64Array, counts: Int64Array) -> ArrowColumn:
    """What `encode_varint_rows` made, with room for a header before the first row of each batch of so many rows."""
    room = np.zeros(HEADER_BYTES, np.uint8)
    bounds = offsets[offsets_of(counts)].tolist()
    parts = [part for start, stop in pairwise(bounds) for part in (room, data[start:stop])]
    # The first row begins where its room does.
    offsets[1:] += np.repeat(np.arange(1, len(counts) + 1) * HEADER_BYTES, counts)
    return binary_array(np.concatenate(parts) if parts else data, offsets)
