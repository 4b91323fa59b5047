"""Arrow's binary columns as NumPy arrays: offsets and lengths of each row's bytes, without copying them.

Everything else in this layer accesses columns through this module, so that the traps of Arrow's layout (slices with
an offset, absent buffers, null rows that still span bytes, 32 and 64 bit offsets) are handled once.
Varints of whole numeric columns are also written here: zigzag, as in Kafka and Avro, or plain.
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

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.wire.batch_format import BITS, LOW_BITS, MORE_FOLLOW

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
    if pa.types.is_string(kind) or _has_no_offsets(kind):
        return column.cast(pa.binary())
    raise LocalProtocolError(
        operation=f"encode column {name!r} as bytes",
        state=f"Arrow type {kind}",
        rule="the column is binary or string: cast it before",
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
    """Join binary columns row by row, nulls as empty; bytes are added to every row.

    The caller has checked that the result fits 2 GiB. At least one part is a column.
    """
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


def _has_no_offsets(kind: Any) -> bool:
    # The view types are listed by name: pyarrow has them only from 16 on.
    return bool(
        pa.types.is_null(kind) or pa.types.is_fixed_size_binary(kind) or str(kind) in {"binary_view", "string_view"}
    )


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
        """The numbers as they are."""
        return cls(numbers, _sizes(numbers))

    @classmethod
    def joined(cls, parts: Sequence[Varints]) -> Varints:
        """Concatenate at least one."""
        return cls(np.concatenate([part.unsigned for part in parts]), np.concatenate([part.sizes for part in parts]))

    def __len__(self) -> int:
        return len(self.unsigned)

    def slice(self, start: int, stop: int) -> Varints:
        """The varints from ``start`` up to ``stop``, sharing memory."""
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


def _sizes(unsigned: UInt64Array) -> Int64Array:
    # In most columns all numbers have the same size, which the smallest and the largest show at once.
    if not len(unsigned):
        return np.zeros(0, np.int64)
    least, most = (max(1, -(-int(number).bit_length() // BITS)) for number in (unsigned.min(), unsigned.max()))
    sizes = np.full(len(unsigned), least, np.int64)
    for portions in range(least, most):
        sizes += unsigned >= 1 << (BITS * portions)
    return sizes


def _runs_of_equal_sizes(sizes: Sequence[Int64Array], row_count: int) -> list[tuple[int, int]] | None:
    """Ranges of rows whose varints have the same sizes, column by column; None if there are too many."""
    changes = {0, row_count}
    for size in sizes:
        found = np.flatnonzero(size[1:] != size[:-1])
        if len(found) > _RUNS_MAX:
            return None
        changes.update((found + 1).tolist())
    bounds = sorted(changes)
    return list(pairwise(bounds))


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
        else:
            _write_varints(data, cursor, column.unsigned, column.sizes)
            cursor += column.sizes


def _write_varints(data: ByteArray, positions: Int64Array, unsigned: UInt64Array, sizes: Int64Array) -> None:
    for portion in range(int(sizes.max(initial=0))):
        if portion:
            longer = sizes > portion
            if not longer.all():
                positions, unsigned, sizes = positions[longer], unsigned[longer], sizes[longer]
        low_bits = (unsigned >> (BITS * portion)) & LOW_BITS
        data[positions + portion] = np.where(sizes > portion + 1, low_bits | MORE_FOLLOW, low_bits)
