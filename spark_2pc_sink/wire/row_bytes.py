"""Bytes of rows: the pieces of which encoders of columns build each row's encoding, without a loop over rows.

A column here is a large_binary array without nulls whose rows lie one behind the other, so that the bytes of neighbours
are one stretch: joining the elements of a list, or giving rows that are null nothing, moves offsets and copies nothing.
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

#: A column, or bytes that all rows have.
Piece: TypeAlias = ArrowColumn | bytes


def joined_rows(pieces: Sequence[Piece], row_count: int) -> ArrowColumn:
    """The pieces of each row, one behind the other."""
    if all(isinstance(piece, bytes) for piece in pieces):
        constant = np.frombuffer(b"".join(pieces), np.uint8)
        return matrix_rows(np.tile(constant, (row_count, 1)))
    return join_rows(pieces, row_count).cast(pa.large_binary())


def matrix_rows(matrix: npt.NDArray[Any]) -> ArrowColumn:
    """A column whose rows are those of a matrix of bytes, all equally long."""
    count, width = matrix.shape
    return _rows(matrix, np.arange(count + 1, dtype=np.int64) * width)


def fixed_rows(numbers: npt.NDArray[Any]) -> ArrowColumn:
    """The bytes of each number as they are in memory."""
    return matrix_rows(np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize))


def chosen_rows(matrix: npt.NDArray[Any], chosen: BoolArray) -> ArrowColumn:
    """A column whose rows are the chosen bytes of each row of a matrix."""
    return _rows(matrix[chosen], offsets_of(chosen.sum(axis=1, dtype=np.int64)))


def varint_rows(*columns: Varints) -> ArrowColumn:
    """The varints of each row."""
    return _rows(*encode_varint_rows(columns, len(columns[0])))


def row_sizes(rows: ArrowColumn) -> Int64Array:
    """How many bytes each row has."""
    return np.diff(_offsets(rows))


def spread_rows(rows: ArrowColumn, there: BoolArray) -> ArrowColumn:
    """The rows at the places that are True, and nothing at the others.

    Args:
        rows: one for each True.
        there: of all places.
    """
    return _over(rows, _offsets(rows)[offsets_of(there.astype(np.int64))])


def grouped_rows(rows: ArrowColumn, counts: Int64Array) -> ArrowColumn:
    """So many rows, one behind the other, as one.

    Args:
        rows: as many as all counts together.
        counts: of each new row.
    """
    return _over(rows, _offsets(rows)[offsets_of(counts)])


def _rows(data: npt.NDArray[Any], offsets: Int64Array) -> ArrowColumn:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data).reshape(-1))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _over(rows: ArrowColumn, offsets: Int64Array) -> ArrowColumn:
    """Other rows over the same bytes."""
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data_of(rows)])


def _offsets(rows: ArrowColumn) -> Int64Array:
    if not len(rows):
        return np.zeros(1, np.int64)
    return np.frombuffer(rows.buffers()[1], np.int64)[rows.offset : rows.offset + len(rows) + 1]
