"""The digest of records as a consumer sees them: the sink's own, recomputed from what Kafka returns.

The format is that of `spark_2pc_sink.wire.record_batch`, deliberately written a second time: a bug in the code that
writes must not be repeated by the code that checks. A test compares both. Each record has a 128-bit hash (XXH3, seeded
by its topic) of key, value and headers, each preceded by its length as Kafka encodes it; the digest is their sum modulo
2^128.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import xxhash

MODULUS: Final = 1 << 128
#: Nearly all lengths are below; longer ones are encoded each time.
_LENGTHS_MAX: Final = 4_096
_NO_HEADERS: Final = b"\0"
#: Each byte has seven bits of a number, and the high bit says that more follow.
_BITS: Final = 7
_LOW_BITS: Final = 0x7F
_MORE_FOLLOW: Final = 0x80

Headers = Sequence[tuple[str, "bytes | None"]]


def length_bytes(length: int) -> bytes:
    """A length as Kafka encodes it in a record (zigzag varint); -1 is an absent key or value."""
    rest = length << 1 if length >= 0 else 1
    encoded = bytearray()
    while rest > _LOW_BITS:
        encoded.append(rest & _LOW_BITS | _MORE_FOLLOW)
        rest >>= _BITS
    encoded.append(rest)
    return bytes(encoded)


#: The last element is for -1, which an index of -1 selects.
_LENGTHS: Final = [*(length_bytes(length) for length in range(_LENGTHS_MAX)), length_bytes(-1)]
_ABSENT: Final = _LENGTHS[-1]


def content_of(key: bytes | None, value: bytes | None, headers: Headers | None) -> bytes:
    """The bytes of a record that are hashed."""
    return b"".join(
        (
            _ABSENT if key is None else _length(key) + key,
            _ABSENT if value is None else _length(value),
            value or b"",
            _headers(headers) if headers else _NO_HEADERS,
        )
    )


def record_hash(topic: str, content: bytes) -> int:
    """The hash of one record; the sum of those of a batch, modulo `MODULUS`, is the batch's digest."""
    return xxhash.xxh3_128_intdigest(content, _seed(topic))


def digest_of(topic: str, contents: Sequence[bytes]) -> int:
    """The digest of records of one topic."""
    seed, hashed = _seed(topic), xxhash.xxh3_128_intdigest
    return sum([hashed(content, seed) for content in contents]) % MODULUS


def digest_text(digest: int) -> str:
    """A digest as the state row has it."""
    return f"{digest:032x}"


def _length(data: bytes) -> bytes:
    return _LENGTHS[len(data)] if len(data) < _LENGTHS_MAX else length_bytes(len(data))


def _headers(headers: Headers) -> bytes:
    parts = [length_bytes(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += [length_bytes(len(encoded)), encoded]
        parts += [_ABSENT] if value is None else [length_bytes(len(value)), value]
    return b"".join(parts)


@cache
def _seed(topic: str) -> int:
    return xxhash.xxh3_64_intdigest(topic.encode())
