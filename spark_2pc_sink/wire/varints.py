"""Kafka's variable-length integers, one at a time; `varint_columns` writes whole columns of them.

Seven bits stand in each byte, low bits first, and the high bit says that more follow. Signed numbers are zigzagged
before (``org.apache.kafka.common.utils.ByteUtils``): -1, an absent key or value, takes one byte.
"""

from __future__ import annotations

from typing import Final

#: A varint of an int32 has at most this many bytes: 32 bits in portions of 7.
VARINT_BYTES_MAX: Final = 5
#: Bits of the number in each byte, and the high bit that announces another byte.
BITS: Final = 7
MORE_FOLLOW: Final = 0x80
LOW_BITS: Final = 0x7F
#: A varint of an int64 has at most this many bytes.
_LONG_BYTES_MAX: Final = 10


def encode_varint(number: int) -> bytes:
    """The zigzag varint of a signed number."""
    return encode_unsigned(number << 1 if number >= 0 else ~number << 1 | 1)


def encode_unsigned(number: int) -> bytes:
    """The varint of a number that is not negative, not zigzagged."""
    encoded, rest = bytearray(), number
    while rest > LOW_BITS:
        encoded.append(rest & LOW_BITS | MORE_FOLLOW)
        rest >>= BITS
    encoded.append(rest)
    return bytes(encoded)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, and where it ends.

    Raises:
        IndexError: it does not end, or not in time.
    """
    unsigned = data[position]
    if unsigned < MORE_FOLLOW:  # most are small
        position += 1
    else:
        unsigned, position = read_unsigned(data, position)
    return (unsigned >> 1) ^ -(unsigned & 1), position


def read_unsigned(data: bytes | memoryview, position: int, *, bytes_max: int = _LONG_BYTES_MAX) -> tuple[int, int]:
    """A varint that was not zigzagged, and where it ends.

    Raises:
        IndexError: it does not end, or not within ``bytes_max``.
    """
    unsigned = 0
    for shift in range(0, bytes_max * BITS, BITS):
        byte = data[position]
        position += 1
        unsigned |= (byte & LOW_BITS) << shift
        if not byte & MORE_FOLLOW:
            return unsigned, position
    raise IndexError(f"the number before byte {position} has more than {bytes_max} bytes")
