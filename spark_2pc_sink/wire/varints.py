"""Kafka's zigzag varints, for whole columns of numbers at once.

The encoding is that of ``org.apache.kafka.common.utils.ByteUtils.writeVarint``: zigzag, so that -1 (an absent key or
value) takes one byte, then seven bits in each byte, low bits first, the high bit saying that more follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from spark_2pc_sink.wire.arrow_layout import ByteArray, Int64Array

#: A varint of an int32 has at most this many bytes: 32 bits in portions of 7.
VARINT_BYTES_MAX: Final = 5
#: Bits of the number in each byte, and the high bit that announces another byte.
BITS: Final = 7
MORE_FOLLOW: Final = 0x80
LOW_BITS: Final = 0x7F


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
    cursor = offsets[:-1].copy()
    for column, size in zip(columns, sizes, strict=True):
        if column is None or size is None:
            cursor += 1  # the byte is 0 already
        else:
            _write_varints(data, cursor, column, size)
            cursor += size
    return data, offsets


def _write_varints(data: ByteArray, positions: Int64Array, unsigned: Int64Array, sizes: Int64Array) -> None:
    for portion in range(int(sizes.max(initial=0))):
        if portion:
            longer = sizes > portion
            if not longer.all():
                positions, unsigned, sizes = positions[longer], unsigned[longer], sizes[longer]
        low_bits = (unsigned >> (BITS * portion)) & LOW_BITS
        data[positions + portion] = np.where(sizes > portion + 1, low_bits | MORE_FOLLOW, low_bits)
