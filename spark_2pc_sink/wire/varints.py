"""Kafka's zigzag varints, for whole columns of numbers at once.

The encoding is that of ``org.apache.kafka.common.utils.ByteUtils.writeVarint``: zigzag, so that -1 (an absent key or
value) takes one byte, then seven bits in each byte, low bits first, the high bit saying that more follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from spark_2pc_sink.wire.arrow_layout import ByteArray, Int64Array

#: A varint of an int32 has at most this many bytes: 32 bits in portions of 7.
VARINT_BYTES_MAX: Final = 5
#: Bits of the number in each byte, and the high bit that announces another byte.
BITS: Final = 7
MORE_FOLLOW: Final = 0x80
LOW_BITS: Final = 0x7F

#: Rows whose varints have the same sizes are written together; where sizes change more often, each number by itself.
_RUNS_MAX: Final = 16


def zigzag(numbers: Int64Array) -> Int64Array:
    """Signed numbers as unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return (numbers << 1) ^ (numbers >> 63)


def varint_sizes(unsigned: Int64Array) -> Int64Array:
    """Bytes of the varint of each number, which has been through `zigzag`."""
    sizes = np.ones(len(unsigned), np.int64)
    for portions in range(1, VARINT_BYTES_MAX):
        larger = unsigned >= 1 << (BITS * portions)
        if not larger.any():
            break
        sizes += larger
    return sizes


def length_prefix_sizes(sizes: Int64Array) -> Int64Array:
    """Bytes of the varint length at the head of something that has ``sizes`` bytes with it.

    The inverse of adding a length prefix: a body of ``b`` bytes below 2^6 has a prefix of one byte, below 2^13 of two,
    and so on, so that a total of 2^6 + 2 bytes or more has a prefix of two at least.
    """
    prefixes = np.ones(len(sizes), np.int64)
    for portions in range(1, VARINT_BYTES_MAX):
        prefixes += sizes >= (1 << (BITS * portions - 1)) + portions + 1
    return prefixes


def encode_varint_rows(columns: Sequence[Int64Array | None], row_count: int) -> tuple[ByteArray, Int64Array]:
    """The varints of several columns, row after row, in one buffer.

    Args:
        columns: numbers that have been through `zigzag`, all of ``row_count``; None for a column of zeros.
        row_count: how many rows there are.

    Returns:
        the bytes, and ``row_count + 1`` offsets into them: row i is ``bytes[offsets[i]:offsets[i + 1]]``.
    """
    sizes = [None if column is None else varint_sizes(column) for column in columns]
    widths = np.full(row_count, sum(size is None for size in sizes), np.int64)
    for size in sizes:
        if size is not None:
            widths += size
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(widths)))
    data = np.zeros(int(offsets[-1]), np.uint8)
    runs = _runs_of_equal_sizes([size for size in sizes if size is not None], row_count)
    if runs is None:
        _scatter(data, offsets[:-1].copy(), columns, sizes)
    else:
        for start, stop in runs:
            block = data[offsets[start] : offsets[stop]].reshape(stop - start, -1)
            _fill_block(block, [None if column is None else column[start:stop] for column in columns])
    return data, offsets


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


def _fill_block(block: ByteArray, columns: Sequence[Int64Array | None]) -> None:
    """Write the varints of rows that all have the same sizes: byte by byte of the row, for all rows at once."""
    position = 0
    for column in columns:
        size = 1 if column is None else max(1, -(-int(column[0]).bit_length() // BITS))
        if column is not None:
            for portion in range(size):
                bits = column >> (BITS * portion) if portion else column
                block[:, position + portion] = bits & LOW_BITS if portion == size - 1 else bits & LOW_BITS | MORE_FOLLOW
        position += size


def _scatter(
    data: ByteArray,
    cursor: Int64Array,
    columns: Sequence[Int64Array | None],
    sizes: Sequence[Int64Array | None],
) -> None:
    """Write the varints of any rows: each column's at the position that ``cursor`` has for the row by then."""
    for column, size in zip(columns, sizes, strict=True):
        if column is None or size is None:
            cursor += 1  # the byte is 0 already
        else:
            _write_varints(data, cursor, column, size)
            cursor += size


def _write_varints(data: ByteArray, positions: Int64Array, unsigned: Int64Array, sizes: Int64Array) -> None:
    for portion in range(int(sizes.max(initial=0))):
        if portion:
            longer = sizes > portion
            if not longer.all():
                positions, unsigned, sizes = positions[longer], unsigned[longer], sizes[longer]
        low_bits = (unsigned >> (BITS * portion)) & LOW_BITS
        data[positions + portion] = np.where(sizes > portion + 1, low_bits | MORE_FOLLOW, low_bits)
