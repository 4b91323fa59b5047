"""Digest of a micro-batch's records, whatever order, partition or batch they were sent in.

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

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from spark_2pc_sink.wire.arrow_layout import ArrowColumn
from spark_2pc_sink.wire.arrow_records import RecordsSection

#: The digest of no records at all.
EMPTY_DIGEST: Final = 0
_MODULUS: Final = 1 << 128
_HALF_BITS: Final = 64
_LOW_32: Final = 0xFFFFFFFF
#: A validity bitmap in which rows 1, 3, 5, ... are there.
_ODD_ROWS: Final = 0b10101010
_HEX_DIGITS: Final = 32


def batch_digest(topic: str, section: RecordsSection) -> int:
    """The digest of the records of ``section`` when they are sent to ``topic``: 0 to 2^128 - 1."""
    return _digest(topic, _contents(section))


def content_digest(topic: str, contents: ArrowColumn) -> int:
    """The digest of records that say this when they are sent to ``topic``.

    Args:
        topic: its name.
        contents: from `spark_2pc_sink.wire.record_contents.contents_of`.
    """
    return _digest(topic, contents.to_numpy(zero_copy_only=False).tolist())


def _digest(topic: str, contents: list[bytes]) -> int:
    seed = xxhash.xxh3_64_intdigest(topic.encode())
    # The only loop over records in this layer. It stays in C: the hash is called by map().
    hashes = b"".join(map(xxhash.xxh3_128_digest, contents, repeat(seed)))
    halves = np.frombuffer(hashes, ">u8").reshape(-1, 2)
    return ((_sum(halves[:, 0]) << _HALF_BITS) + _sum(halves[:, 1])) % _MODULUS


def _contents(section: RecordsSection) -> list[bytes]:
    """What is hashed of each record.

    Arrow cuts the records into Python objects, which takes a quarter of the time of slices: it is given an array of
    twice as many rows, of which every other one, the part of a record that says where it stands, is null.
    """
    count = section.record_count
    bounds = np.zeros(2 * count + 1, np.int32)
    bounds[1::2] = section.content_starts
    bounds[2::2] = section.ends
    valid = np.full((2 * count + 7) // 8, _ODD_ROWS, np.uint8)
    buffers = [pa.py_buffer(valid), pa.py_buffer(bounds), section.buffer]
    cut = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
    contents: list[bytes] = cut.to_numpy(zero_copy_only=False)[1::2].tolist()
    return contents


def _sum(numbers: npt.NDArray[np.uint64]) -> int:
    """The exact sum, which NumPy would cut to 64 bits."""
    low_bits = int((numbers & _LOW_32).sum(dtype=np.uint64))
    return (int((numbers >> 32).sum(dtype=np.uint64)) << 32) + low_bits


def combine_digests(*digests: int) -> int:
    """The digest of all records of several digests together; of none, `EMPTY_DIGEST`."""
    return reduce(lambda left, right: (left + right) % _MODULUS, digests, EMPTY_DIGEST)


def without_digest(digest: int, part: int) -> int:
    """The digest of the records that are left of several when those of ``part`` are taken out."""
    return (digest - part) % _MODULUS


def format_digest(digest: int) -> str:
    """A digest as 32 hexadecimal digits, the form in which the database keeps it."""
    return f"{digest:0{_HEX_DIGITS}x}"
