"""A few records as a record batch, one by one: for a handful, NumPy and Arrow calls cost more than the bytes.

The bytes and the digest are those that `record_batch` gives for the same records; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import xxhash

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.batch_format import encode_records
from spark_2pc_sink.wire.record_batch import DIGEST_MODULUS, Compression, EncodedBatch, compress, unassigned_header

#: Smaller batches are not compressed. Initialising zstd takes longer than everything else done for a record, and saves
#: less than the size of its transaction's headers and end markers.
COMPRESSED_BYTES_MIN: Final = 512
#: Bytes of a record besides its content: its length and offset delta (5 each), attributes and timestamp delta.
RECORD_BYTES: Final = 12


def encode_listed_batches(
    contents: Mapping[TopicPartition, Sequence[bytes]],
    *,
    bytes_max: int,
    timestamp_ms: int,
    compression: str,
    level: int | None,
) -> Iterator[EncodedBatch]:
    """The batches of a transaction, each of at most ``bytes_max`` bytes of records, see `cut_contents`."""
    for partition, of_partition in contents.items():
        for part in cut_contents(of_partition, bytes_max):
            yield encode_listed_batch(partition, part, timestamp_ms=timestamp_ms, compression=compression, level=level)


def encode_listed_batch(
    partition: TopicPartition,
    contents: Sequence[bytes],
    *,
    timestamp_ms: int,
    compression: str,
    level: int | None = None,
) -> EncodedBatch:
    """One batch of a transaction from contents made by `batch_format.record_content`, at least one.

    It is compressed from `COMPRESSED_BYTES_MIN` on. ``timestamp_ms`` is in each of its records.
    """
    section = encode_records(contents)
    codec = Compression[compression.upper()] if len(section) >= COMPRESSED_BYTES_MIN else Compression.NONE
    payload = section if codec is Compression.NONE else compress(pa.py_buffer(section), codec, level)
    count = len(contents)
    header = unassigned_header(len(payload), codec, count, timestamp_ms)
    seed = xxhash.xxh3_64_intdigest(partition.topic.encode())
    digest = sum(xxhash.xxh3_128_intdigest(content, seed) for content in contents) % DIGEST_MODULUS
    return EncodedBatch(partition, bytearray().join((header, payload)), count, digest=digest)


def cut_contents(contents: Sequence[bytes], bytes_max: int) -> Iterator[list[bytes]]:
    """Split contents before a batch's records would exceed ``bytes_max``; a larger record gets its own batch."""
    part: list[bytes] = []
    size = 0
    for content in contents:
        record_bytes = len(content) + RECORD_BYTES
        if part and size + record_bytes > bytes_max:
            yield part
            part, size = [], 0
        part.append(content)
        size += record_bytes
    yield part
