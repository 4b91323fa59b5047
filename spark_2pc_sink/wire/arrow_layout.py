"""Arrow's binary columns as NumPy arrays: offsets and lengths of each row's bytes, without copying them.

Everything else in this layer accesses columns through this module, so that the traps of Arrow's layout (slices with
an offset, absent buffers, null rows that still span bytes, 32 and 64 bit offsets) are handled once.
Varints of whole numeric columns are also written here: zigzag, as in Kafka and Avro, or plain. Rows of bytes are the
building blocks for encoders of columns: these build each row's encoding without a loop over rows.

`EncodedRows` are the columns that become records. Row sizes are computed once: cutting, buffering and joining rows
reuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.wire.batch_format import BITS, LOW_BITS, MORE_FOLLOW, NO_HEADERS, VARINT_BYTES_MAX

#: A pyarrow.Array or pyarrow.ChunkedArray; pyarrow has no type annotations of its own.
ArrowColumn: TypeAlias = Any
#: A pyarrow.Buffer: bytes that Arrow owns.
ArrowBuffer: TypeAlias = Any
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
ByteArray: TypeAlias = npt.NDArray[np.uint8]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

#: The capacity of an Arrow binary array with 32-bit offsets, and the largest int32 length on the wire.
INT32_BYTES_MAX: Final = 2**31 - 1


@dataclass(frozen=True)
class BinaryLayout:
    """Positions of a binary column's bytes: row i is ``data[starts[i] : starts[i] + lengths[i]]``.

    ``data`` may have more bytes than the rows span. The length of a null row is 0; ``valid`` is None when there are no
    nulls.
    """

    data: ByteArray
    starts: Int64Array
    lengths: Int64Array
    valid: BoolArray | None


def as_binary(column: ArrowColumn, name: str) -> ArrowColumn:
    """Convert ``column`` to one contiguous binary or large_binary array, sharing its bytes if Arrow can.

    It may be binary, string, their large and view variants, or fixed_size_binary; for any other type a
    LocalProtocolError names the column: the caller must choose how a number becomes bytes.
    """
    column = as_one_array(column)
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_large_string(kind):
        return column.cast(pa.large_binary())
    # The view types are listed by name: pyarrow has them only from 16 on.
    has_no_offsets = pa.types.is_null(kind) or pa.types.is_fixed_size_binary(kind) or str(kind).endswith("_view")
    if pa.types.is_string(kind) or has_no_offsets:
        return column.cast(pa.binary())
    raise LocalProtocolError(
        operation=f"encode column {name!r} as bytes",
        state=f"Arrow type {kind}",
        rule="the column must be binary or string: cast it first",
    )


def binary_layout(column: ArrowColumn) -> BinaryLayout:
    """The layout of a binary or large_binary array, slices included."""
    width = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    _, offsets_buffer, data_buffer = column.buffers()
    valid = None if column.null_count == 0 else np.asarray(column.is_valid())
    if len(column) == 0 or offsets_buffer is None:
        nothing = np.zeros(len(column), np.int64)
        return BinaryLayout(np.zeros(0, np.uint8), nothing, nothing, valid)
    offsets = np.frombuffer(offsets_buffer, dtype=width)[column.offset : column.offset + len(column) + 1]
    wide = offsets.astype(np.int64)
    lengths = np.diff(wide)
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, dtype=np.uint8)
    return BinaryLayout(data, wide[:-1], lengths, valid)


def as_one_array(column: ArrowColumn) -> ArrowColumn:
    """The rows of an array or a chunked array as one array; a single chunk is not copied."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    kind = column.type
    if column.nbytes > INT32_BYTES_MAX and (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        # 32-bit offsets cannot span the joined chunks.
        column = column.cast(pa.large_binary())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], kind)


def offsets_of(sizes: Int64Array) -> Int64Array:
    """Start offsets of contiguous items with these sizes, then the end of the last: one more number."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def binary_array(data: ByteArray, offsets: Int64Array) -> ArrowColumn:
    """A binary array without nulls over ``data``: row i is ``data[offsets[i]:offsets[i + 1]]``."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def join_rows(parts: Sequence[ArrowColumn | bytes], row_count: int) -> ArrowColumn:
    """Join columns (at least one) by row, nulls as empty; bytes go to every row. The caller has checked for 2 GiB."""
    columns = [part for part in parts if not isinstance(part, bytes)]
    kind = pa.large_binary() if any(pa.types.is_large_binary(column.type) for column in columns) else pa.binary()
    if row_count == 0:
        return pa.array([], kind)
    joined: list[Any] = []
    for part in parts:
        if not isinstance(part, bytes):
            joined.append(part if part.type == kind else part.cast(kind))
        elif joined and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    typed = [pa.scalar(part, kind) if isinstance(part, bytes) else part for part in joined]
    nothing = pa.scalar(b"", kind)
    return pc.binary_join_element_wise(*typed, nothing, null_handling="replace", null_replacement=b"")


def data_of(column: ArrowColumn) -> ArrowBuffer:
    """The bytes of all rows in an unsliced binary column; unused bytes may follow."""
    data = column.buffers()[2]
    return pa.py_buffer(b"") if data is None else data


#: Rows whose varints have the same sizes are written together; if sizes change more often, each number separately.
_RUNS_MAX: Final = 16


@dataclass(frozen=True)
class Varints:
    """A column of numbers as varints: the numbers to encode, and the size in bytes of each."""

    unsigned: UInt64Array
    sizes: Int64Array

    @classmethod
    def of(cls, numbers: Int64Array) -> Varints:
        """Zigzag: 0, -1, 1, -2 are written as 0, 1, 2, 3."""
        return cls.of_unsigned(((numbers << 1) ^ (numbers >> 63)).view(np.uint64))

    @classmethod
    def of_unsigned(cls, numbers: UInt64Array) -> Varints:
        if not len(numbers):
            return cls(numbers, np.zeros(0, np.int64))
        # In most columns all numbers have the same size, which the smallest and the largest show at once.
        least, most = (max(1, -(-int(number).bit_length() // BITS)) for number in (numbers.min(), numbers.max()))
        sizes = np.full(len(numbers), least, np.int64)
        for portions in range(least, most):
            sizes += numbers >= 1 << (BITS * portions)
        return cls(numbers, sizes)

    @classmethod
    def joined(cls, parts: Sequence[Varints]) -> Varints:
        return cls(np.concatenate([part.unsigned for part in parts]), np.concatenate([part.sizes for part in parts]))

    def __len__(self) -> int:
        return len(self.unsigned)

    def slice(self, start: int, stop: int) -> Varints:
        return Varints(self.unsigned[start:stop], self.sizes[start:stop])


def encode_varint_rows(columns: Sequence[Varints | None], row_count: int) -> tuple[ByteArray, Int64Array]:
    """Encode the varints of several columns, row after row, into one buffer; None is a column of zeros.

    The result is the bytes, and ``row_count + 1`` offsets into them: row i is ``bytes[offsets[i]:offsets[i + 1]]``.
    """
    sizes = [column.sizes for column in columns if column is not None]
    widths = np.full(row_count, len(columns) - len(sizes), np.int64)
    for size in sizes:
        widths += size
    offsets = offsets_of(widths)
    data = np.zeros(int(offsets[-1]), np.uint8)
    runs = _runs_of_equal_sizes(sizes, row_count)
    if runs is None:
        _scatter(data, offsets[:-1].copy(), columns)
    else:
        for start, stop in runs:
            block = data[offsets[start] : offsets[stop]].reshape(stop - start, -1)
            _fill_block(block, [None if column is None else column.slice(start, stop) for column in columns])
    return data, offsets


def _runs_of_equal_sizes(sizes: Sequence[Int64Array], row_count: int) -> list[tuple[int, int]] | None:
    """Ranges of rows whose varints have the same sizes, column by column; None if there are too many."""
    changes = {0, row_count}
    for size in sizes:
        found = np.flatnonzero(size[1:] != size[:-1])
        if len(found) > _RUNS_MAX:
            return None
        changes.update((found + 1).tolist())
    return list(pairwise(sorted(changes)))


def _fill_block(block: ByteArray, columns: Sequence[Varints | None]) -> None:
    """Write the varints of rows with equal sizes: byte by byte of the row, for all rows at once."""
    position = 0
    for column in columns:
        size = 1 if column is None else int(column.sizes[0])
        if column is not None:
            for portion in range(size):
                bits = column.unsigned >> (BITS * portion) if portion else column.unsigned
                block[:, position + portion] = bits & LOW_BITS if portion == size - 1 else bits & LOW_BITS | MORE_FOLLOW
        position += size


def _scatter(data: ByteArray, cursor: Int64Array, columns: Sequence[Varints | None]) -> None:
    """Write the varints of any rows: each column's at the current position in ``cursor``."""
    for column in columns:
        if column is None:
            cursor += 1  # the byte is 0 already
            continue
        positions, unsigned, sizes = cursor, column.unsigned, column.sizes
        for portion in range(int(sizes.max(initial=0))):
            if portion:
                longer = sizes > portion
                if not longer.all():
                    positions, unsigned, sizes = positions[longer], unsigned[longer], sizes[longer]
            low_bits = (unsigned >> (BITS * portion)) & LOW_BITS
            data[positions + portion] = np.where(sizes > portion + 1, low_bits | MORE_FOLLOW, low_bits)
        cursor += column.sizes


# --- rows of bytes: large_binary arrays without nulls, contiguous: regrouping changes offsets, copies nothing


#: A column, or bytes common to all rows.
Piece: TypeAlias = ArrowColumn | bytes


def joined_rows(pieces: Sequence[Piece], row_count: int) -> ArrowColumn:
    if all(isinstance(piece, bytes) for piece in pieces):
        constant = np.frombuffer(b"".join(pieces), np.uint8)
        return matrix_rows(np.tile(constant, (row_count, 1)))
    return join_rows(pieces, row_count).cast(pa.large_binary())


def matrix_rows(matrix: npt.NDArray[Any]) -> ArrowColumn:
    count, width = matrix.shape
    return _rows(matrix, np.arange(count + 1, dtype=np.int64) * width)


def fixed_rows(numbers: npt.NDArray[Any]) -> ArrowColumn:
    return matrix_rows(np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize))


def chosen_rows(matrix: npt.NDArray[Any], chosen: BoolArray) -> ArrowColumn:
    return _rows(matrix[chosen], offsets_of(chosen.sum(axis=1, dtype=np.int64)))


def varint_rows(*columns: Varints) -> ArrowColumn:
    return _rows(*encode_varint_rows(columns, len(columns[0])))


def spread_rows(rows: ArrowColumn, there: BoolArray) -> ArrowColumn:
    """The rows at the True places of ``there``, and empty rows elsewhere."""
    return grouped_rows(rows, there.astype(np.int64))


def grouped_rows(rows: ArrowColumn, counts: Int64Array) -> ArrowColumn:
    """Concatenate groups of rows, with these numbers of rows, into one row each."""
    offsets = np.zeros(1, np.int64)
    if len(rows):
        offsets = np.frombuffer(rows.buffers()[1], np.int64)[rows.offset : rows.offset + len(rows) + 1]
    buffers = [None, pa.py_buffer(offsets[offsets_of(counts)]), data_of(rows)]
    return pa.Array.from_buffers(pa.large_binary(), len(counts), buffers)


def _rows(data: npt.NDArray[Any], offsets: Int64Array) -> ArrowColumn:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data).reshape(-1))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


#: Attributes and timestamp delta of a record: one byte each, both 0.
ZERO_BYTES: Final = 2


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
        column = None if parts[0].column is None else pa.concat_arrays([part.column for part in parts])
        return cls(column, Varints.joined([part.lengths for part in parts]))

    def slice(self, start: int, stop: int) -> Prefixed:
        column = None if self.column is None else self.column.slice(start, stop - start)
        return Prefixed(column, self.lengths.slice(start, stop))

    def sizes(self) -> Int64Array:
        """Size of each value with its length prefix, in bytes."""
        # Zigzag doubles a length, so half of it is the length again; for -1 it is 0.
        return self.lengths.sizes + (self.lengths.unsigned >> 1).view(np.int64)

    def values(self) -> list[ArrowColumn]:
        return [] if self.column is None else [self.column]

    def parts(self) -> list[ArrowColumn]:
        return [binary_array(*encode_varint_rows([self.lengths], len(self.lengths))), *self.values()]


@dataclass(frozen=True)
class Headers:
    """All rows' headers with each row's count; ``bounds`` has each row's first index, then one past the last header."""

    counts: Varints
    bounds: Int64Array
    key: Prefixed
    value: Prefixed

    @classmethod
    def of(cls, column: ArrowColumn, row_key: ArrowColumn | None) -> Headers:
        """See `EncodedRows.of`; ``row_key`` identifies a row in errors."""
        lists = as_one_array(column)
        pairs = lists.flatten() if pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type) else None
        names = [] if pairs is None or not pa.types.is_struct(pairs.type) else [field.name for field in pairs.type]
        if pairs is None or sorted(names) != ["key", "value"]:
            raise LocalProtocolError(
                operation="encode column 'headers'",
                state=f"Arrow type {lists.type}",
                rule="headers must be list<struct<key: string, value: binary>>",
            )
        counts = np.asarray(lists.value_lengths().fill_null(0)).astype(np.int64)
        bounds = offsets_of(counts)
        # StructArray.flatten() gives a null struct null fields, so a null header has no key either.
        fields = dict(zip(names, pairs.flatten(), strict=True))
        key, value = as_binary(fields["key"], "headers.key"), as_binary(fields["value"], "headers.value")
        if key.null_count:
            header = int(np.flatnonzero(np.asarray(key.is_null()))[0])
            row = int(np.searchsorted(bounds[1:], header, side="right"))
            raise UnstorableValueError(
                column="headers",
                row_key=f"number {row} of its Arrow batch" if row_key is None else f"key={row_key[row].as_py()!r}",
                value="a header without a key",
                rule="a Kafka record header needs a key; only its value may be null",
            )
        return cls(Varints.of(counts), bounds, Prefixed.of(key, len(key)), Prefixed.of(value, len(value)))

    @classmethod
    def joined(cls, parts: Sequence[Headers]) -> Headers:
        return cls(
            Varints.joined([part.counts for part in parts]),
            offsets_of(np.concatenate([np.diff(part.bounds) for part in parts])),
            Prefixed.joined([part.key for part in parts]),
            Prefixed.joined([part.value for part in parts]),
        )

    def slice(self, start: int, stop: int) -> Headers:
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
class EncodedRows:
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
    def of(cls, key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None) -> EncodedRows:
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
                    rule="all columns must have the same number of rows",
                )
        key = None if key is None else as_binary(key, "key")
        keys = Prefixed.of(key, count)
        values = Prefixed.of(as_binary(value, "value"), count)
        lists = None if headers is None else Headers.of(headers, key)
        header_sizes = len(NO_HEADERS) if lists is None else lists.sizes()
        body_sizes = ZERO_BYTES + keys.sizes() + values.sizes() + header_sizes
        with_delta = body_sizes + VARINT_BYTES_MAX
        return cls(keys, values, lists, body_sizes, with_delta + Varints.of(with_delta).sizes)

    @classmethod
    def joined(cls, parts: Sequence[EncodedRows]) -> EncodedRows:
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
    def layout(self) -> list[object]:
        """Rows can be concatenated if this is equal."""
        columns = [self.key, self.value, *([] if self.headers is None else [self.headers.key, self.headers.value])]
        return [None if each.column is None else each.column.type for each in columns]

    def slice(self, start: int, stop: int) -> EncodedRows:
        return EncodedRows(
            self.key.slice(start, stop),
            self.value.slice(start, stop),
            None if self.headers is None else self.headers.slice(start, stop),
            self.body_sizes[start:stop],
            self.sizes_max[start:stop],
        )

    def cut(self, bytes_max: int, *, begun: int = 0) -> list[EncodedRows]:
        """Split the rows, in order, into parts of at most ``bytes_max`` bytes of records, before compression.

        A larger single row gets its own part, as with Java's batch.size: compare `sizes_max` with the hard limit to
        refuse it. ``begun`` bytes are already used in the first part; that part is empty if no row fits.
        """
        ends = np.cumsum(self.sizes_max)
        parts, start, begin = [], 0, -begun
        while start < len(self):
            fitting = int(np.searchsorted(ends, begin + bytes_max, side="right"))
            stop = fitting if begin < 0 else max(start + 1, fitting)
            parts.append(self.slice(start, stop))
            start, begin = stop, int(ends[stop - 1]) if stop else 0
        return parts
