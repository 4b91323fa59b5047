"""Varints (`varints`) for whole columns of numbers at once: zigzag as Kafka and Avro write them, or as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from spark_2pc_sink.wire.arrow_layout import ByteArray, Int64Array, UInt64Array, offsets_of
from spark_2pc_sink.wire.varints import BITS, LOW_BITS, MORE_FOLLOW

#: Rows whose varints have the same sizes are written together; where sizes change more often, each number by itself.
_RUNS_MAX: Final = 16


@dataclass(frozen=True)
class Varints:
    """A column of numbers as varints.

    Args:
        unsigned: what is written of each number.
        sizes: bytes of each.
    """

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
        """Several, at least one, one behind the other."""
        return cls(np.concatenate([part.unsigned for part in parts]), np.concatenate([part.sizes for part in parts]))

    def __len__(self) -> int:
        return len(self.unsigned)

    def slice(self, start: int, stop: int) -> Varints:
        """Those from ``start`` up to ``stop``, which share memory with these."""
        return Varints(self.unsigned[start:stop], self.sizes[start:stop])


def encode_varint_rows(columns: Sequence[Varints | None], row_count: int) -> tuple[ByteArray, Int64Array]:
    """The varints of several columns, row after row, in one buffer.

    Args:
        columns: all of ``row_count``; None for a column of zeros.
        row_count: how many rows there are.

    Returns:
        the bytes, and ``row_count + 1`` offsets into them: row i is ``bytes[offsets[i]:offsets[i + 1]]``.
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
    # Of most columns all numbers have the same size, which the least and the greatest tell at once.
    if not len(unsigned):
        return np.zeros(0, np.int64)
    least, most = (max(1, -(-int(number).bit_length() // BITS)) for number in (unsigned.min(), unsigned.max()))
    sizes = np.full(len(unsigned), least, np.int64)
    for portions in range(least, most):
        sizes += unsigned >= 1 << (BITS * portions)
    return sizes


def _runs_of_equal_sizes(sizes: Sequence[Int64Array], row_count: int) -> list[tuple[int, int]] | None:
    """Ranges of rows whose varints have the same sizes, column by column; None where there are too many of them."""
    changes = {0, row_count}
    for size in sizes:
        found = np.flatnonzero(size[1:] != size[:-1])
        if len(found) > _RUNS_MAX:
            return None
        changes.update((found + 1).tolist())
    bounds = sorted(changes)
    return list(pairwise(bounds))


def _fill_block(block: ByteArray, columns: Sequence[Varints | None]) -> None:
    """Write the varints of rows that all have the same sizes: byte by byte of the row, for all rows at once."""
    position = 0
    for column in columns:
        size = 1 if column is None else int(column.sizes[0])
        if column is not None:
            for portion in range(size):
                bits = column.unsigned >> (BITS * portion) if portion else column.unsigned
                block[:, position + portion] = bits & LOW_BITS if portion == size - 1 else bits & LOW_BITS | MORE_FOLLOW
        position += size


def _scatter(data: ByteArray, cursor: Int64Array, columns: Sequence[Varints | None]) -> None:
    """Write the varints of any rows: each column's at the position that ``cursor`` has for the row by then."""
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
