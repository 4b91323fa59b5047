"""Rows of Arrow columns as the records of a Kafka record batch, without touching a row in Python.

A record of message format v2 (KIP-98, "Message Format"; ``DefaultRecord`` in Kafka's sources)::

    length: varint | attributes: int8 = 0 | timestamp delta: varint = 0 | offset delta: varint |
    key length: varint | key | value length: varint | value | header count: varint | headers

    header:  key length: varint | key | value length: varint | value

An absent key or value has length -1. The numbers before the key, and the value's length, become two binary arrays
made with NumPy. One ``binary_join_element_wise`` then joins them with key, value and headers, and the data buffer of
its result *is* the records section, with room for the batch's header before it. All records of a section have the
timestamp of the batch, so their delta is 0.

Row sizes are computed once, in `Rows`: cutting, buffering and joining rows reuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.wire.arrow_layout import (
    INT32_BYTES_MAX,
    ArrowBuffer,
    ArrowColumn,
    ByteArray,
    Int64Array,
    Varints,
    as_binary,
    as_one_array,
    binary_array,
    binary_layout,
    data_of,
    encode_varint_rows,
    join_rows,
    offsets_of,
)
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, VARINT_BYTES_MAX

#: Attributes and timestamp delta of a record: one byte each, both 0.
ZERO_BYTES: Final = 2
_NO_HEADERS: Final = b"\x00"


@dataclass(frozen=True)
class Prefixed:
    """A length-prefixed binary column. A null has length -1, as on the wire; the column is None if all are null."""

    column: ArrowColumn | None
    lengths: Varints

    @classmethod
    def of(cls, column: ArrowColumn | None, count: int) -> Prefixed:
        """Wrap a binary or large_binary column in one piece, or make ``count`` nulls."""
        if column is None:
            return cls(None, Varints.of(np.full(count, -1, np.int64)))
        layout = binary_layout(column)
        lengths = layout.lengths if layout.valid is None else np.where(layout.valid, layout.lengths, -1)
        return cls(column, Varints.of(lengths))

    @classmethod
    def joined(cls, parts: Sequence[Prefixed]) -> Prefixed:
        """Concatenate at least one column; all of one type."""
        column = None if parts[0].column is None else pa.concat_arrays([part.column for part in parts])
        return cls(column, Varints.joined([part.lengths for part in parts]))

    @property
    def kind(self) -> object:
        """The type of the values; None for no column."""
        return None if self.column is None else self.column.type

    def slice(self, start: int, stop: int) -> Prefixed:
        """The values from ``start`` up to ``stop``."""
        column = None if self.column is None else self.column.slice(start, stop - start)
        return Prefixed(column, self.lengths.slice(start, stop))

    def sizes(self) -> Int64Array:
        """Size of each value with its length prefix, in bytes."""
        # Zigzag doubles a length, so half of it is the length again; for -1 it is 0.
        return self.lengths.sizes + (self.lengths.unsigned >> 1).view(np.int64)

    def values(self) -> list[ArrowColumn]:
        """The values without length prefixes."""
        return [] if self.column is None else [self.column]

    def parts(self) -> list[ArrowColumn]:
        """The columns to join row by row."""
        return [binary_array(*encode_varint_rows([self.lengths], len(self.lengths))), *self.values()]


@dataclass(frozen=True)
class Headers:
    """The headers of all rows, concatenated, with each row's header count.

    ``bounds`` has the index of each row's first header, then one past the last header: row count + 1 numbers.
    """

    counts: Varints
    bounds: Int64Array
    key: Prefixed
    value: Prefixed

    @classmethod
    def of(cls, column: ArrowColumn, row_key: ArrowColumn | None) -> Headers:
        """See `Rows.of`; ``row_key`` identifies a row in errors."""
        lists = as_one_array(column)
        pairs = lists.flatten() if _is_list(lists.type) else None
        if pairs is None or not _is_pair(pairs.type):
            raise LocalProtocolError(
                operation="encode column 'headers'",
                state=f"Arrow type {lists.type}",
                rule="headers are list<struct<key: string, value: binary>>",
            )
        counts = np.asarray(lists.value_lengths().fill_null(0)).astype(np.int64)
        bounds = offsets_of(counts)
        # StructArray.flatten() gives a null struct null fields, so a null header has no key either.
        fields = dict(zip((field.name for field in pairs.type), pairs.flatten(), strict=True))
        key, value = as_binary(fields["key"], "headers.key"), as_binary(fields["value"], "headers.value")
        if key.null_count:
            header = int(np.flatnonzero(np.asarray(key.is_null()))[0])
            row = int(np.searchsorted(bounds[1:], header, side="right"))
            raise UnstorableValueError(
                column="headers",
                row_key=f"number {row} of its Arrow batch" if row_key is None else f"key={row_key[row].as_py()!r}",
                value="a header without a key",
                rule="a Kafka record header has a key; only its value may be null",
            )
        return cls(Varints.of(counts), bounds, Prefixed.of(key, len(key)), Prefixed.of(value, len(value)))

    @classmethod
    def joined(cls, parts: Sequence[Headers]) -> Headers:
        """Concatenate at least one; all of one `kind`."""
        return cls(
            Varints.joined([part.counts for part in parts]),
            offsets_of(np.concatenate([np.diff(part.bounds) for part in parts])),
            Prefixed.joined([part.key for part in parts]),
            Prefixed.joined([part.value for part in parts]),
        )

    @property
    def kind(self) -> object:
        """Types of keys and values."""
        return self.key.kind, self.value.kind

    def slice(self, start: int, stop: int) -> Headers:
        """The headers of the rows from ``start`` up to ``stop``."""
        first, last = int(self.bounds[start]), int(self.bounds[stop])
        return Headers(
            self.counts.slice(start, stop),
            self.bounds[start : stop + 1] - first,
            self.key.slice(first, last),
            self.value.slice(first, last),
        )

    def sizes(self) -> Int64Array:
        """Size of each row's headers including their count, in bytes."""
        return self.counts.sizes + np.diff(self._row_offsets())

    def parts(self) -> list[ArrowColumn]:
        """Columns to join per row: the header count and the headers themselves."""
        counts = binary_array(*encode_varint_rows([self.counts], len(self.counts)))
        joined = join_rows([*self.key.parts(), *self.value.parts()], len(self.key.lengths))
        # A row's headers are contiguous, so they are a slice of the joined bytes: no second join.
        return [counts, binary_array(np.frombuffer(data_of(joined), np.uint8), self._row_offsets())]

    def _row_offsets(self) -> Int64Array:
        return offsets_of(self.key.sizes() + self.value.sizes())[self.bounds]


@dataclass(frozen=True)
class Rows:
    """Rows that will become records.

    ``body_sizes`` are those of each record without its own length and its offset delta, ``sizes_max`` the largest
    possible ones at any position in a batch; both in bytes.
    """

    key: Prefixed
    value: Prefixed
    headers: Headers | None
    body_sizes: Int64Array
    sizes_max: Int64Array

    @classmethod
    def of(cls, key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None) -> Rows:
        """Wrap columns, sharing their bytes; None where no row has a key, or headers.

        Keys and values are binary or string columns, nullable; a compacted topic treats a null value as a deletion.
        Headers are list<struct<key: string, value: binary>>; null and an empty list are the same. Columns of other
        types or lengths are a LocalProtocolError, a header without a key is an UnstorableValueError.
        """
        count = len(value)
        for name, column in (("key", key), ("headers", headers)):
            if column is not None and len(column) != count:
                raise LocalProtocolError(
                    operation="encode rows as records",
                    state=f"{len(column)} rows of column {name!r}, {count} of column 'value'",
                    rule="all columns have the same number of rows",
                )
        key = None if key is None else as_binary(key, "key")
        keys = Prefixed.of(key, count)
        values = Prefixed.of(as_binary(value, "value"), count)
        lists = None if headers is None else Headers.of(headers, key)
        header_sizes = len(_NO_HEADERS) if lists is None else lists.sizes()
        body_sizes = ZERO_BYTES + keys.sizes() + values.sizes() + header_sizes
        with_delta = body_sizes + VARINT_BYTES_MAX
        return cls(keys, values, lists, body_sizes, with_delta + Varints.of(with_delta).sizes)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate at least one; all of the same `layout`."""
        if len(parts) == 1:
            return parts[0]
        lists = [part.headers for part in parts if part.headers is not None]
        return cls(
            Prefixed.joined([part.key for part in parts]),
            Prefixed.joined([part.value for part in parts]),
            Headers.joined(lists) if lists else None,
            np.concatenate([part.body_sizes for part in parts]),
            np.concatenate([part.sizes_max for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.body_sizes)

    @property
    def bytes_max(self) -> int:
        """Largest possible size of all records, in bytes."""
        return int(self.sizes_max.sum())

    @property
    def layout(self) -> tuple[object, object, object]:
        """Rows can be concatenated if this is equal."""
        return self.key.kind, self.value.kind, None if self.headers is None else self.headers.kind

    def slice(self, start: int, stop: int) -> Rows:
        """The rows from ``start`` up to ``stop``."""
        return Rows(
            self.key.slice(start, stop),
            self.value.slice(start, stop),
            None if self.headers is None else self.headers.slice(start, stop),
            self.body_sizes[start:stop],
            self.sizes_max[start:stop],
        )

    def cut(self, bytes_max: int, *, begun: int = 0) -> list[Rows]:
        """Split the rows, in order, into parts of at most ``bytes_max`` bytes of records, before compression.

        A larger single row gets its own part, as with Java's batch.size: compare `sizes_max` with the hard limit to
        refuse it. ``begun`` bytes are already used in the first part; that part is empty if no row fits.
        """
        ends = np.cumsum(self.sizes_max)
        parts = []
        start, begin = 0, -begun
        while start < len(self):
            fitting = int(np.searchsorted(ends, begin + bytes_max, side="right"))
            stop = fitting if begin < 0 else max(start + 1, fitting)
            parts.append(self.slice(start, stop))
            start, begin = stop, int(ends[stop - 1]) if stop else 0
        return parts

    def header_parts(self) -> list[ArrowColumn]:
        """The end of each record, to be joined row by row."""
        if self.headers is None:
            return [pa.scalar(_NO_HEADERS, pa.binary())]
        return self.headers.parts()


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_pair(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind)) and sorted(field.name for field in kind) == ["key", "value"]


@dataclass(frozen=True)
class RecordsSection:
    """One batch's records, encoded but not yet compressed, in a pyarrow.Buffer.

    ``ends`` has the index one past each record, ``content_starts`` that of each record's key length. From there on a
    record contains only row data (length-prefixed key, value and headers), independent of its position in the batch.
    ``frame`` is the memory of ``buffer``, preceded by `HEADER_BYTES` for a batch header: so records that are not
    compressed become a batch without being copied, but one batch only.
    """

    buffer: ArrowBuffer
    ends: Int64Array
    content_starts: Int64Array
    frame: memoryview

    @property
    def record_count(self) -> int:
        """Number of records."""
        return len(self.ends)


def encode_sections(rows: Rows, counts: Sequence[int]) -> list[RecordsSection]:
    """Encode rows as the records of several batches, in each of which offset deltas count from 0.

    ``counts`` has the number of rows in each batch. One pass over all batches: for a few rows, the calls cost more than
    the bytes. More than 2 GiB - 1 in all are a LocalProtocolError.
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
    # Arrow has just allocated this memory, and it is not shared.
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
    """The output of `encode_varint_rows`, with room for a header before the first row of each batch."""
    room = np.zeros(HEADER_BYTES, np.uint8)
    bounds = offsets[offsets_of(counts)].tolist()
    parts = [part for start, stop in pairwise(bounds) for part in (room, data[start:stop])]
    # The first row includes the header room.
    offsets[1:] += np.repeat(np.arange(1, len(counts) + 1) * HEADER_BYTES, counts)
    return binary_array(np.concatenate(parts) if parts else data, offsets)
