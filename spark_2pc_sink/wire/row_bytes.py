"""Bytes of rows: the building blocks for column encoders that build each row's encoding without a loop over rows.

A column here is a large_binary array without nulls whose rows are contiguous: joining
the elements of a list, or making null rows empty, changes offsets and copies no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_2pc_sink.wire.arrow_layout import (
    ArrowColumn,
    BoolArray,
    Int64Array,
    Varints,
    data_of,
    encode_varint_rows,
    join_rows,
    offsets_of,
)

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


def row_sizes(rows: ArrowColumn) -> Int64Array:
    return np.diff(_offsets(rows))


def spread_rows(rows: ArrowColumn, there: BoolArray) -> ArrowColumn:
    """The rows at the True places of ``there``, and empty rows elsewhere."""
    return _over(rows, _offsets(rows)[offsets_of(there.astype(np.int64))])


def grouped_rows(rows: ArrowColumn, counts: Int64Array) -> ArrowColumn:
    """Concatenate groups of rows, with these numbers of rows, into one row each."""
    return _over(rows, _offsets(rows)[offsets_of(counts)])


def _rows(data: npt.NDArray[Any], offsets: Int64Array) -> ArrowColumn:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data).reshape(-1))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _over(rows: ArrowColumn, offsets: Int64Array) -> ArrowColumn:
    """Rows with other offsets into the same bytes."""
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data_of(rows)])


def _offsets(rows: ArrowColumn) -> Int64Array:
    if not len(rows):
        return np.zeros(1, np.int64)
    return np.frombuffer(rows.buffers()[1], np.int64)[rows.offset : rows.offset + len(rows) + 1]
