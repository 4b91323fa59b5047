"""Record batches, built from rows without touching one in Python, and the digest of records; `batch_reader` reads them.

A record of message format v2 (KIP-98, "Message Format"; ``DefaultRecord`` in Kafka's sources)::

    length: varint | attributes: int8 = 0 | timestamp delta: varint = 0 | offset delta: varint |
    key length: varint | key | value length: varint | value | header count: varint | headers

    header:  key length: varint | key | value length: varint | value

An absent key or value has length -1. The numbers before the key, and the value's length, become two binary arrays
made with NumPy. One ``binary_join_element_wise`` then joins them with key, value and headers, and the data buffer of
its result *is* the records section, with room for the batch's header before it. All records of a section have the
timestamp of the batch, so their delta is 0.

The digest of a set of records, independent of their order, partitions or batches, is the sum, modulo 2^128, of one
128-bit hash for each record. The database stores it together with the decision, so that a resent batch
can be shown to be the same batch. Unlike an exclusive or, a sum also changes when a record is duplicated. Adding the
digests of tasks gives that of the batch.

A record's hash covers its encoded key, value and headers, each length-prefixed (-1 for a null), so moving bytes
from one to the other changes it. The topic is the seed. Partition, offset, timestamp and producer are excluded: they
differ when the same rows are sent again. The digest detects accidents, not forgery.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise, repeat
from typing import Any, Final

import google_crc32c
import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire.arrow_layout import (
    INT32_BYTES_MAX,
    ZERO_BYTES,
    ArrowBuffer,
    ArrowColumn,
    ByteArray,
    EncodedRows,
    Int64Array,
    Varints,
    binary_array,
    data_of,
    encode_varint_rows,
    join_rows,
    offsets_of,
)
from spark_2pc_sink.wire.batch_format import (
    CRC_END,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_HEADERS,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    SEQUENCE_COUNT,
    TRANSACTIONAL_BIT,
    Buffer,
    encode_records,
)

#: The digest of no records at all.
EMPTY_DIGEST: Final = 0
DIGEST_MODULUS: Final = 1 << 128
_HALF_BITS: Final = 64
_LOW_32: Final = 0xFFFFFFFF
#: A validity bitmap in which rows 1, 3, 5, ... are valid.
_ODD_ROWS: Final = 0b10101010


@dataclass(frozen=True)
class RecordsSection:
    """One batch's records, encoded but not yet compressed, in a pyarrow.Buffer.

    ``ends`` has the index one past each record, ``content_starts`` that of each record's key length. From there on a
    record contains only row data (length-prefixed key, value and headers), independent of its position in the batch.
    ``frame`` is the memory of ``buffer``, preceded by `HEADER_BYTES` for a batch header: so records that are not
    compressed become a batch without being copied, but one batch only.
    """

    buffer: ArrowBuffer
    ends: Int64Array
    content_starts: Int64Array
    frame: memoryview

    @property
    def record_count(self) -> int:
        return len(self.ends)


def encode_sections(rows: EncodedRows, counts: Sequence[int]) -> list[RecordsSection]:
    """Encode rows as the records of several batches, in each of which offset deltas count from 0.

    ``counts`` has the number of rows in each batch. One pass over all batches: for a few rows, the calls cost more than
    the bytes. More than 2 GiB - 1 in all are a LocalProtocolError.
    """
    row_counts = np.asarray(counts, np.int64)
    stops = np.cumsum(row_counts)
    firsts = stops - row_counts
    deltas = Varints.of(np.arange(len(rows), dtype=np.int64) - np.repeat(firsts, row_counts))
    bodies = rows.body_sizes + deltas.sizes
    lengths = Varints.of(bodies)
    bounds = offsets_of(bodies + lengths.sizes)
    filled = row_counts[row_counts > 0]
    joined_bytes = int(bounds[-1]) + HEADER_BYTES * len(filled)
    if joined_bytes > INT32_BYTES_MAX:
        raise LocalProtocolError(
            operation="encode rows as one record batch",
            state=f"{len(rows)} rows take {joined_bytes} bytes",
            rule=f"the length of a batch is an int32: split the rows into at most {INT32_BYTES_MAX} bytes",
        )
    heads = encode_varint_rows([lengths, None, None, deltas, rows.key.lengths], len(rows))
    prefixes = with_header_room(*heads, filled)
    headers = [NO_HEADERS] if rows.headers is None else rows.headers.parts()
    parts = [prefixes, *rows.key.values(), *rows.value.parts(), *headers]
    joined = data_of(join_rows(parts, len(rows)))
    # Arrow has just allocated this memory, and it is not shared.
    memory = memoryview(joined).cast("B")
    content_starts = bounds[:-1] + lengths.sizes + ZERO_BYTES + deltas.sizes
    sections, frame_start = [], 0
    for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
        begin, section_bytes = int(bounds[first]), int(bounds[stop] - bounds[first])
        start = frame_start + (HEADER_BYTES if stop > first else 0)
        sections.append(
            RecordsSection(
                buffer=joined.slice(start, section_bytes),
                ends=bounds[first + 1 : stop + 1] - begin,
                content_starts=content_starts[first:stop] - begin,
                frame=memory[frame_start : start + section_bytes],
            )
        )
        frame_start = start + section_bytes
    return sections


def with_header_room(data: ByteArray, offsets: Int64Array, counts: Int64Array) -> ArrowColumn:
    """The output of `encode_varint_rows`, with room for a header before the first row of each batch."""
    room = np.zeros(HEADER_BYTES, np.uint8)
    bounds = offsets[offsets_of(counts)].tolist()
    parts = [part for start, stop in pairwise(bounds) for part in (room, data[start:stop])]
    # The first row includes the header room.
    offsets[1:] += np.repeat(np.arange(1, len(counts) + 1) * HEADER_BYTES, counts)
    return binary_array(np.concatenate(parts) if parts else data, offsets)


def batch_digest(topic: str, section: RecordsSection) -> int:
    """The digest of the records of ``section`` when they are sent to ``topic``: 0 to 2^128 - 1.

    Arrow splits the records into Python objects, which takes a quarter of the time of slices: the array has
    twice as many rows, of which every other one, the record's position-dependent part, is null.
    """
    count = section.record_count
    bounds = np.zeros(2 * count + 1, np.int32)
    bounds[1::2] = section.content_starts
    bounds[2::2] = section.ends
    valid = np.full((2 * count + 7) // 8, _ODD_ROWS, np.uint8)
    buffers = [pa.py_buffer(valid), pa.py_buffer(bounds), section.buffer]
    cut = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
    return _digest(topic, cut.to_numpy(zero_copy_only=False)[1::2].tolist())


def content_digest(topic: str, contents: ArrowColumn) -> int:
    """The digest of records with these contents (`batch_reader.contents_of`) when they are sent to ``topic``."""
    return _digest(topic, contents.to_numpy(zero_copy_only=False).tolist())


def _digest(topic: str, contents: list[bytes]) -> int:
    seed = xxhash.xxh3_64_intdigest(topic.encode())
    # The only loop over records in this layer. It stays in C: the hash is called by map().
    hashes = b"".join(map(xxhash.xxh3_128_digest, contents, repeat(seed)))
    halves = np.frombuffer(hashes, ">u8").reshape(-1, 2)
    return ((_sum(halves[:, 0]) << _HALF_BITS) + _sum(halves[:, 1])) % DIGEST_MODULUS


def _sum(numbers: npt.NDArray[np.uint64]) -> int:
    """The exact sum; NumPy would truncate it to 64 bits."""
    low_bits = int((numbers & _LOW_32).sum(dtype=np.uint64))
    return (int((numbers >> 32).sum(dtype=np.uint64)) << 32) + low_bits


def combine_digests(*digests: int) -> int:
    """The digest of the union of several sets of records; without arguments, `EMPTY_DIGEST`."""
    return sum(digests) % DIGEST_MODULUS


def format_digest(digest: int) -> str:
    return f"{digest:032x}"


#: zlib's window of 2^15 bytes, plus 16 for gzip's header and trailer.
_GZIP_WINDOW_BITS: Final = 15 + 16

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
#: Header written by ``SnappyOutputStream`` of xerial's snappy-java: magic, version 1, compatible from version 1 on.
XERIAL_HEADER: Final = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
#: Uncompressed bytes in one block of the framing: snappy-java's default.
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
XERIAL_LENGTH_BYTES: Final = 4


class Compression(Enum):
    """Bits 0 to 2 of a batch's attributes (Kafka's ``CompressionType``); its ``compression.type`` by name."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(records: ArrowBuffer, compression: Compression, level: int | None = None) -> Any:
    """Compress records (NONE: unchanged); ``level`` is -1 to 9 for gzip, -131072 to 22 for zstd, None the default."""
    return _COMPRESS[compression](records, level)


def _compress_gzip(records: ArrowBuffer, level: int | None) -> bytes:
    # -1 is zlib's own default, as compression.gzip.level's (KIP-390).
    compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(memoryview(records)) + compressor.flush()


def _compress_snappy(records: ArrowBuffer, _: int | None) -> bytes:
    codec = pa.Codec("snappy")
    parts = [XERIAL_HEADER]
    for start in range(0, records.size, _XERIAL_BLOCK_BYTES):
        block = codec.compress(records.slice(start, min(_XERIAL_BLOCK_BYTES, records.size - start)), asbytes=True)
        parts += [len(block).to_bytes(XERIAL_LENGTH_BYTES, "big"), block]
    return b"".join(parts)


_COMPRESS: Final[Mapping[Compression, Callable[[ArrowBuffer, int | None], Any]]] = {
    Compression.NONE: lambda records, _: records,
    Compression.GZIP: _compress_gzip,
    Compression.SNAPPY: _compress_snappy,
    # Kafka refuses linked blocks ("Dependent block stream is unsupported", Lz4BlockInputStream), which Arrow's lz4
    # writes. The block size and the absence of a content checksum are those of Java's producer.
    Compression.LZ4: lambda records, _: lz4.frame.compress(
        memoryview(records),
        block_linked=False,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        content_checksum=False,
        store_size=False,
    ),
    Compression.ZSTD: lambda records, level: pa.Codec("zstd", compression_level=level).compress(records, asbytes=True),
}
_CRC: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhi")  # producer id, producer epoch, base sequence
_PRODUCER_POSITION: Final = CRC_END + struct.calcsize(">hiqq")


@dataclass(frozen=True)
class PlacedBatch:
    """One record batch for a partition, without a producer id and a sequence number.

    ``row_key`` is its only record's key, printable; None for several records.
    """

    partition: TopicPartition
    payload: Buffer | ArrowBuffer
    record_count: int
    row_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class EncodedBatch(PlacedBatch):
    digest: int


def unassigned_header(payload_bytes: int, codec: Compression, record_count: int, timestamp_ms: int) -> bytes:
    """The header of a transaction's batch without a producer, see `BatchHeader`."""
    batch_bytes = HEADER_BYTES + payload_bytes - LOG_OVERHEAD_BYTES
    times = (timestamp_ms, timestamp_ms)
    producer = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
    attributes, last_delta = codec.value | TRANSACTIONAL_BIT, record_count - 1
    before_crc = (0, batch_bytes, NO_LEADER_EPOCH, MAGIC, 0)
    return HEADER.pack(*before_crc, attributes, last_delta, *times, *producer, record_count)


def encode_unassigned_batch(
    section: RecordsSection, *, timestamp_ms: int, compression: str, level: int | None = None
) -> memoryview:
    """A batch without a producer yet, with ``timestamp_ms`` in each of its records.

    `assign_producer` sets the producer, the sequence number and the CRC. So the expensive part can run anywhere, while
    the sending process assigns sequence numbers. Without compression the batch is built in `RecordsSection.frame`. No
    records, and a length outside the format's range, are a LocalProtocolError.
    """
    if section.record_count == 0:
        raise LocalProtocolError(
            operation="encode a record batch", state="no records", rule="a batch needs at least one record"
        )
    codec = Compression[compression.upper()]
    payload = compress(section.buffer, codec, level)
    batch_bytes = HEADER_BYTES + len(payload)
    if batch_bytes > INT32_BYTES_MAX:
        raise LocalProtocolError(
            operation="encode a record batch",
            state=f"{batch_bytes} bytes",
            rule=f"a batch may have at most {INT32_BYTES_MAX} bytes: split the rows first",
        )
    header = unassigned_header(len(payload), codec, section.record_count, timestamp_ms)
    if codec is Compression.NONE:
        section.frame[:HEADER_BYTES] = header
        return section.frame
    return memoryview(bytearray().join((header, payload)))


def assign_producer(
    batch: bytes | memoryview | ArrowBuffer, *, producer: ProducerIdAndEpoch, base_sequence: int
) -> memoryview:
    """Assign an encoded batch to ``producer``, from ``base_sequence``; in place in writable memory, else in a copy."""
    if not 0 <= base_sequence < SEQUENCE_COUNT:
        raise LocalProtocolError(
            operation="encode a record batch",
            state=f"sequence {base_sequence}",
            rule=f"a sequence number must be from 0 to {SEQUENCE_COUNT - 1}",
        )
    view = memoryview(batch).cast("B")
    own = memoryview(bytearray(view)) if view.readonly else view
    _PRODUCER.pack_into(own, _PRODUCER_POSITION, producer.producer_id, producer.epoch, base_sequence)
    _CRC.pack_into(own, CRC_END - _CRC.size, checksum(own))
    return own


def checksum(batch: memoryview) -> int:
    """The CRC-32C of a whole batch, as stored in its header."""
    return int(google_crc32c.value(pa.py_buffer(batch[CRC_END:])))


# --- a few records, one by one: for a handful, NumPy and Arrow calls cost more than the bytes, which are the same -----

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
    """A transaction's batch of at least one content of `record_content`; compressed from `COMPRESSED_BYTES_MIN` on."""
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
