"""Arrow's binary columns seen as NumPy: where the bytes of each row lie, without copying them.

Everything else in this layer works on columns through this module, so that the traps of Arrow's layout (slices with
an offset, absent buffers, null rows that still span bytes, 32 and 64 bit offsets) are dealt with once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.errors import LocalProtocolError

#: A pyarrow.Array or pyarrow.ChunkedArray; pyarrow has no type annotations of its own.
ArrowColumn: TypeAlias = Any
#: A pyarrow.Buffer: bytes that Arrow owns.
ArrowBuffer: TypeAlias = Any
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
ByteArray: TypeAlias = npt.NDArray[np.uint8]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

#: What an Arrow binary array of 32-bit offsets can hold, and also what an int32 length on the wire can say.
INT32_BYTES_MAX: Final = 2**31 - 1


@dataclass(frozen=True)
class BinaryLayout:
    """Where the bytes of a binary column are.

    Args:
        data: every byte that the column's buffer holds, possibly more than its rows span.
        starts: index in ``data`` of each row's first byte.
        lengths: bytes of each row; 0 for a null row.
        valid: False for a null row, or None when there are no nulls.
    """

    data: ByteArray
    starts: Int64Array
    lengths: Int64Array
    valid: BoolArray | None


def as_binary(column: ArrowColumn, name: str) -> ArrowColumn:
    """One contiguous binary or large_binary array of ``column``, sharing its bytes where Arrow can.

    Args:
        column: binary, string, their large and view variants, or fixed_size_binary; an array or a chunked array.
        name: what the column is to the caller, for the error.

    Raises:
        LocalProtocolError: the column holds anything else. Choosing how a number becomes bytes is up to the caller.
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
    """Where each of some things begins that lie one behind the other, and where the last one ends: one number more."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def binary_array(data: ByteArray, offsets: Int64Array) -> ArrowColumn:
    """A binary array without nulls over ``data``: row i is ``data[offsets[i]:offsets[i + 1]]``."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def join_rows(parts: Sequence[ArrowColumn | bytes], row_count: int) -> ArrowColumn:
    """Join binary columns row by row, nulls as nothing. The caller has checked that the result fits 2 GiB.

    Args:
        parts: columns of ``row_count`` rows, at least one; bytes are in every row.
        row_count: how many rows there are.
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
    """The bytes of all rows of a binary column that is no slice; there may be room behind them."""
    data = column.buffers()[2]
    return pa.py_buffer(b"") if data is None else data


def _has_no_offsets(kind: Any) -> bool:
    # The view types are named, not asked for: pyarrow knows them only from 16 on.
    return bool(
        pa.types.is_null(kind) or pa.types.is_fixed_size_binary(kind) or str(kind) in {"binary_view", "string_view"}
    )
