"""One number for what a micro-batch says to Kafka, whatever order, partition or batch its records were sent in.

The digest of a set of records is the sum, modulo 2^128, of one 128-bit hash for each record. It is written beside the
decision in the database, so that a batch that must be sent again can be shown to be the same batch. A sum, unlike an
exclusive or, also changes when a record comes twice. Addition makes digests of tasks into that of the batch.

A record's hash covers its encoded key, value and headers, each behind its length (-1 for a null), so bytes that move
from one to the other change it. Topic enters as the seed. Partition, offset, timestamp and producer are left out: they
differ when the same rows are sent again. It finds accidents, it does not stop a forger.
"""

from __future__ import annotations

from functools import reduce
from itertools import repeat
from typing import Final

import xxhash

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.wire.arrow_records import RecordsSection

#: The digest of no records at all.
EMPTY_DIGEST: Final = 0
_MODULUS: Final = 1 << 128
_HEX_DIGITS: Final = 32


def batch_digest(topic: str, section: RecordsSection) -> int:
    """The digest of the records of ``section`` when they are sent to ``topic``: 0 to 2^128 - 1."""
    records = memoryview(section.buffer)
    # The only loop over records in this layer. It stays in C: slice() and the hash are called by map(), and the
    # slices of a memoryview copy nothing (measured: 0.29 s for a million records of 110 bytes).
    slices = map(slice, section.content_starts.tolist(), section.ends.tolist())
    seed = xxhash.xxh3_64_intdigest(topic.encode())
    return sum(map(xxhash.xxh3_128_intdigest, map(records.__getitem__, slices), repeat(seed))) % _MODULUS


def combine_digests(*digests: int) -> int:
    """The digest of all records of several digests together; of none, `EMPTY_DIGEST`."""
    return reduce(lambda left, right: (left + right) % _MODULUS, digests, EMPTY_DIGEST)


def format_digest(digest: int) -> str:
    """A digest as 32 hexadecimal digits, the form in which the database keeps it."""
    return f"{digest:0{_HEX_DIGITS}x}"


def parse_digest(text: str) -> int:
    """The digest that `format_digest` wrote.

    Raises:
        RemoteProtocolError: the text is anything else, so the row was not written by this package.
    """
    if len(text) != _HEX_DIGITS or not set(text) <= set("0123456789abcdef"):
        raise RemoteProtocolError(peer="the state table", detail=f"{text!r} is no digest of {_HEX_DIGITS} hex digits")
    return int(text, 16)
