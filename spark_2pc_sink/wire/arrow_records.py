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
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.wire.arrow_layout import (
    INT32_BYTES_MAX,
    ArrowBuffer,
    ArrowColumn,
    ByteArray,
    Int64Array,
    as_binary,
    as_one_array,
    binary_array,
    binary_layout,
    offsets_of,
)
from spark_2pc_sink.wire.varints import Varints, encode_varint_rows, length_prefix_sizes

#: Bytes of a batch before its records (``spark_2pc_sink.wire.record_batch``).
BATCH_HEADER_BYTES: Final = 61
#: Attributes and timestamp delta of a record: one byte each, both 0.
_ZERO_BYTES: Final = 2
_NO_HEADERS: Final = b"\x00"
#: `record_sizes` counts one byte for an offset delta. Within a batch a record may take so many more, its length's byte
#: among them.
OFFSET_DELTA_BYTES_MORE: Final = 5


@dataclass(frozen=True)
class RecordsSection:
    """The records of one batch, encoded and not yet compressed.

    Args:
        buffer: the records, one behind the other (a pyarrow.Buffer).
        ends: index in ``buffer`` one past each record.
        content_starts: index in ``buffer`` of each record's key length. From there on a record says what its row
            says (key, value and headers, each behind its length) and no more where the row stands in the batch.
        frame: the memory of ``buffer``, behind `BATCH_HEADER_BYTES` in which a batch's header can be written: so
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


def record_sizes(key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None) -> Int64Array:
    """Encoded size of each row as the only record of a batch, in bytes and exact.

    Args:
        key: binary or string column, nullable; or None where no row has a key.
        value: binary or string column, nullable; null is what a compacted topic takes for a deletion.
        headers: nullable column of list<struct<key: string, value: binary>>, or None where no row has any. Null and
            an empty list are the same: no headers.

    Raises:
        LocalProtocolError: the columns differ in length, or have types that are not bytes.
        UnstorableValueError: a header is null, or its key is.
    """
    bodies = _Rows.of(key, value, headers).body_sizes() + 1
    return bodies + Varints.of(bodies).sizes


def split_rows(sizes: Int64Array, bytes_max: int) -> list[tuple[int, int]]:
    """Cut rows, in order, into batches of at most ``bytes_max`` bytes of records, each as full as it can be.

    A row that is larger than ``bytes_max`` all by itself gets a batch of its own, as with Java's batch.size: compare
    ``sizes`` with the hard limit to refuse it.

    Args:
        sizes: what `record_sizes` answered.
        bytes_max: bytes of records in one batch, before compression and without the batch's own header.

    Returns:
        (start, stop) of each batch; together they cover all rows. `encode_records` of such a range makes at most
        ``bytes_max`` bytes, counted to the byte although offset deltas grow within a batch.
    """
    if 0 < int(sizes.sum()) + OFFSET_DELTA_BYTES_MORE * len(sizes) <= bytes_max:
        return [(0, len(sizes))]
    bodies = sizes - length_prefix_sizes(sizes) - 1
    sums: dict[int, Int64Array] = {}  # by bytes of the offset delta: encoded size of all rows before each row

    def summed(delta_bytes: int) -> Int64Array:
        if delta_bytes not in sums:
            body = bodies + delta_bytes
            sums[delta_bytes] = offsets_of(body + Varints.of(body).sizes)
        return sums[delta_bytes]

    ranges = []
    start = 0
    while start < len(sizes):
        room, stop, delta_stop, delta_bytes = bytes_max, start, start, 0
        while stop == delta_stop < len(sizes):  # five times at most: no offset delta takes more bytes
            delta_bytes += 1
            before = summed(delta_bytes)
            # Zigzag and 7 bits a byte: deltas below 2^6 take one byte, those below 2^13 two, and so on.
            delta_stop = min(len(sizes), start + 2 ** (7 * delta_bytes - 1))
            fitting = int(np.searchsorted(before, before[stop] + room, side="right")) - 1
            stop, last_stop = min(delta_stop, fitting), stop
            room -= int(before[stop] - before[last_stop])
        stop = max(stop, start + 1)
        ranges.append((start, stop))
        start = stop
    return ranges


def encode_records(key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None) -> RecordsSection:
    """Encode rows as the records of one batch, offset deltas counting from 0.

    Args:
        key: as for `record_sizes`.
        value: as for `record_sizes`.
        headers: as for `record_sizes`.

    Raises:
        LocalProtocolError: as `record_sizes`; or the records exceed 2 GiB - 1, which no batch can hold.
        UnstorableValueError: as `record_sizes`.
    """
    return encode_sections(key, value, headers, [len(value)])[0]


def encode_sections(
    key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None, counts: Sequence[int]
) -> list[RecordsSection]:
    """Encode rows as the records of several batches, in each of which offset deltas count from 0.

    The same as `encode_records` of each, in one pass: of a few rows the calls cost more than the bytes.

    Args:
        key: as for `record_sizes`.
        value: as for `record_sizes`.
        headers: as for `record_sizes`.
        counts: the rows of each batch, which lie one behind the other.

    Raises:
        LocalProtocolError: as `record_sizes`; or the records of all together exceed 2 GiB - 1.
        UnstorableValueError: as `record_sizes`.
    """
    rows = _Rows.of(key, value, headers)
    row_counts = np.asarray(counts, np.int64)
    stops = np.cumsum(row_counts)
    firsts = stops - row_counts
    deltas = Varints.of(np.arange(rows.count, dtype=np.int64) - np.repeat(firsts, row_counts))
    bodies = rows.body_sizes() + deltas.sizes
    lengths = Varints.of(bodies)
    bounds = offsets_of(bodies + lengths.sizes)
    filled = row_counts[row_counts > 0]
    joined_bytes = int(bounds[-1]) + BATCH_HEADER_BYTES * len(filled)
    if joined_bytes > INT32_BYTES_MAX:
        raise LocalProtocolError(
            operation="encode rows as one record batch",
            state=f"{rows.count} rows take {joined_bytes} bytes",
            rule=f"the length of a batch is an int32: cut the rows with split_rows to {INT32_BYTES_MAX} bytes or less",
        )
    heads = encode_varint_rows([lengths, None, None, deltas, rows.key.prefixes], rows.count)
    prefixes = _with_header_room(*heads, filled)
    parts = [prefixes, *rows.key.values(), *rows.value.parts(), *rows.header_parts()]
    joined = _joined_bytes(_join(parts, rows.count))
    # Arrow has just made this memory, and nobody else knows it.
    memory = memoryview(joined).cast("B")
    content_starts = bounds[:-1] + lengths.sizes + _ZERO_BYTES + deltas.sizes
    sections = []
    frame_start = 0
    for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
        begin, section_bytes = int(bounds[first]), int(bounds[stop] - bounds[first])
        start = frame_start + (BATCH_HEADER_BYTES if stop > first else 0)
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


def _with_header_room(data: ByteArray, offsets: Int64Array, counts: Int64Array) -> ArrowColumn:
    """What `encode_varint_rows` made, with room for a header before the first row of each batch of so many rows."""
    room = np.zeros(BATCH_HEADER_BYTES, np.uint8)
    bounds = offsets[offsets_of(counts)].tolist()
    parts = [part for start, stop in pairwise(bounds) for part in (room, data[start:stop])]
    # The first row begins where its room does.
    offsets[1:] += np.repeat(np.arange(1, len(counts) + 1) * BATCH_HEADER_BYTES, counts)
    return binary_array(np.concatenate(parts) if parts else data, offsets)


@dataclass(frozen=True)
class _Prefixed:
    """A binary column whose values stand behind their lengths. A null has length -1, as on the wire.

    Args:
        column: the values; None where all are null.
        lengths: of each.
        prefixes: the same as varints.
    """

    column: ArrowColumn | None
    lengths: Int64Array
    prefixes: Varints

    @classmethod
    def of(cls, column: ArrowColumn | None, count: int) -> _Prefixed:
        if column is None:
            lengths = np.full(count, -1, np.int64)
        else:
            layout = binary_layout(column)
            lengths = layout.lengths if layout.valid is None else np.where(layout.valid, layout.lengths, -1)
        return cls(column, lengths, Varints.of(lengths))

    def sizes(self) -> Int64Array:
        """Bytes of each value with its length before it."""
        return self.prefixes.sizes + np.maximum(self.lengths, 0)

    def values(self) -> list[ArrowColumn]:
        """Without the lengths."""
        return [] if self.column is None else [self.column]

    def parts(self) -> list[ArrowColumn]:
        """What is to be joined, row by row."""
        return [binary_array(*encode_varint_rows([self.prefixes], len(self.lengths))), *self.values()]


@dataclass(frozen=True)
class _Rows:
    """Columns that are known to fit together."""

    count: int
    key: _Prefixed
    value: _Prefixed
    headers: _Headers | None

    @classmethod
    def of(cls, key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None) -> _Rows:
        count = len(value)
        for name, column in (("key", key), ("headers", headers)):
            if column is not None and len(column) != count:
                raise LocalProtocolError(
                    operation="encode rows as records",
                    state=f"{len(column)} rows of column {name!r}, {count} of column 'value'",
                    rule="all columns have the same number of rows",
                )
        key = None if key is None else as_binary(key, "key")
        return cls(
            count=count,
            key=_Prefixed.of(key, count),
            value=_Prefixed.of(as_binary(value, "value"), count),
            headers=None if headers is None else _Headers.of(headers, key),
        )

    def body_sizes(self) -> Int64Array:
        """Bytes of each record without its own length and its offset delta."""
        sizes = _ZERO_BYTES + self.key.sizes() + self.value.sizes()
        return sizes + (len(_NO_HEADERS) if self.headers is None else self.headers.sizes())

    def header_parts(self) -> list[ArrowColumn]:
        """What stands at the end of each record."""
        if self.headers is None:
            return [pa.scalar(_NO_HEADERS, pa.binary())]
        return self.headers.parts()


@dataclass(frozen=True)
class _Headers:
    """The headers of all rows, one behind the other, and how many belong to each row."""

    row_counts: Int64Array
    counts: Varints
    key: _Prefixed
    value: _Prefixed

    @classmethod
    def of(cls, column: ArrowColumn, row_key: ArrowColumn | None) -> _Headers:
        lists = as_one_array(column)
        pairs = lists.flatten() if _is_list(lists.type) else None
        if pairs is None or not _is_pair(pairs.type):
            raise LocalProtocolError(
                operation="encode column 'headers'",
                state=f"Arrow type {lists.type}",
                rule="headers are list<struct<key: string, value: binary>>",
            )
        counts = np.asarray(lists.value_lengths().fill_null(0)).astype(np.int64)
        # StructArray.flatten() gives a null struct null fields, so a header that is null has no key either.
        fields = dict(zip((field.name for field in pairs.type), pairs.flatten(), strict=True))
        key, value = as_binary(fields["key"], "headers.key"), as_binary(fields["value"], "headers.value")
        if key.null_count:
            header = int(np.flatnonzero(np.asarray(key.is_null()))[0])
            row = int(np.searchsorted(np.cumsum(counts), header, side="right"))
            raise UnstorableValueError(
                column="headers",
                row_key=f"in row {row}" if row_key is None else repr(row_key[row].as_py()),
                value="a header without a key",
                rule="a Kafka record header has a key; only its value may be null",
            )
        return cls(counts, Varints.of(counts), _Prefixed.of(key, len(key)), _Prefixed.of(value, len(value)))

    def sizes(self) -> Int64Array:
        """Bytes of each row's headers with their count."""
        return self.counts.sizes + np.diff(self._row_offsets())

    def parts(self) -> list[ArrowColumn]:
        """For each row, the count of its headers and the headers themselves."""
        counts = binary_array(*encode_varint_rows([self.counts], len(self.counts)))
        joined = _join([*self.key.parts(), *self.value.parts()], len(self.key.lengths))
        # The headers of a row lie side by side, so a row's headers are a slice of the joined bytes: no second join.
        offsets = self._row_offsets()
        data = np.frombuffer(_joined_bytes(joined), np.uint8)
        return [counts, binary_array(data, offsets)]

    def _row_offsets(self) -> Int64Array:
        header_sizes = self.key.sizes() + self.value.sizes()
        return offsets_of(header_sizes)[offsets_of(self.row_counts)]


def _join(parts: list[ArrowColumn], row_count: int) -> ArrowColumn:
    """Join binary columns row by row, nulls as nothing. The caller has checked that the result fits 2 GiB."""
    if row_count == 0:
        return pa.array([], pa.binary())
    wide = any(pa.types.is_large_binary(part.type) for part in parts)
    kind = pa.large_binary() if wide else pa.binary()
    typed = [part if part.type == kind else part.cast(kind) for part in parts]
    nothing = pa.scalar(b"", kind)
    return pc.binary_join_element_wise(*typed, nothing, null_handling="replace", null_replacement=b"")


def _joined_bytes(joined: ArrowColumn) -> ArrowBuffer:
    """The bytes of all rows; there may be room behind them."""
    data = joined.buffers()[2]
    return pa.py_buffer(b"") if data is None else data


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_pair(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind)) and sorted(field.name for field in kind) == ["key", "value"]
