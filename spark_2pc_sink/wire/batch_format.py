"""Kafka's record batch v2, byte by byte: its header, its records, its end markers.

The layout is that of ``DefaultRecordBatch`` in Kafka's sources (KIP-98, "Message Format")::

    base offset: int64 | length: int32 | partition leader epoch: int32 | magic: int8 = 2 | crc: uint32 |
    attributes: int16 | last offset delta: int32 | base timestamp: int64 | max timestamp: int64 |
    producer id: int64 | producer epoch: int16 | base sequence: int32 | record count: int32 | records

The length and the CRC-32C each count everything after themselves. A record is ``length |
attributes: int8 | timestamp delta | offset delta | key | value | headers``. Its numbers, but for the attributes, are
zigzag varints; key and value are preceded by their length, -1 for null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from spark_2pc_sink.errors import RemoteProtocolError

#: A varint of an int32 has at most this many bytes, with 7 bits each.
VARINT_BYTES_MAX: Final = 5
#: Bits of the number in each byte, and the high bit that marks a following byte.
BITS: Final = 7
MORE_FOLLOW: Final = 0x80
LOW_BITS: Final = 0x7F
#: A varint of an int64 has at most this many bytes.
_LONG_BYTES_MAX: Final = 10


def encode_varint(number: int) -> bytes:
    encoded, rest = bytearray(), number << 1 if number >= 0 else ~number << 1 | 1
    while rest > LOW_BITS:
        encoded.append(rest & LOW_BITS | MORE_FOLLOW)
        rest >>= BITS
    encoded.append(rest)
    return bytes(encoded)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, and where it ends; IndexError if it does not end within data or size."""
    unsigned = data[position]
    if unsigned < MORE_FOLLOW:  # most are small
        position += 1
    else:
        unsigned, position = read_unsigned(data, position)
    return (unsigned >> 1) ^ -(unsigned & 1), position


def read_unsigned(data: bytes | memoryview, position: int, *, bytes_max: int = _LONG_BYTES_MAX) -> tuple[int, int]:
    """A varint without zigzag, and where it ends; IndexError if it does not end, or not within ``bytes_max``."""
    unsigned = 0
    for shift in range(0, bytes_max * BITS, BITS):
        byte = data[position]
        position += 1
        unsigned |= (byte & LOW_BITS) << shift
        if not byte & MORE_FOLLOW:
            return unsigned, position
    raise IndexError(f"the number that ends at byte {position} has more than {bytes_max} bytes")


#: A batch's memory.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: A sequence number is a non-negative int32: 2147483647 is followed by 0
#: (``DefaultRecordBatch.incrementSequence``).
SEQUENCE_COUNT: Final = 2**31
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

MAGIC: Final = 2
COMPRESSION_BITS: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
#: The largest compression number: zstd.
COMPRESSION_MAX: Final = 4

#: The header in three parts: the broker's fields, magic and CRC, the fields covered by the CRC.
STAMP: Final = struct.Struct(">qii")  # base offset, length, partition leader epoch
MAGIC_AND_CRC: Final = struct.Struct(">bI")
CHECKED: Final = struct.Struct(">hiqqqhii")  # attributes to record count
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
#: Base offset and length: the fields not counted by the length.
LOG_OVERHEAD: Final = struct.Struct(">qi")
LOG_OVERHEAD_BYTES: Final = LOG_OVERHEAD.size
#: Bytes of a batch before its records.
HEADER_BYTES: Final = HEADER.size
#: Header bytes not covered by the CRC.
CRC_END: Final = HEADER_BYTES - CHECKED.size

CONTROL_KEY: Final = struct.Struct(">hh")  # version, type
MARKER_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch
#: Limit for the headers of all records in a compressed batch. A reader keeps a record's headers, at some sixty bytes
#: each, which may take two bytes in a section of 64 MiB that was compressed to a few kilobytes.
COMPRESSED_HEADERS_MAX: Final = 1_000_000
#: Types of control records that end a transaction.
ABORT: Final = 0
COMMIT: Final = 1


class BatchHeader(NamedTuple):
    """A batch header, field by field as on the wire.

    ``length`` counts the bytes after it; ``last_offset_delta`` is that of the last record, even if compaction has
    removed it; ``max_timestamp_ms`` is the largest of the records, or the time of the append. ``producer_id`` is -1 for
    a producer that is neither idempotent nor transactional. ``producer_epoch`` is the transaction's; in a control batch
    for transaction.version 2, that epoch + 1. ``base_sequence`` is -1 in a control batch.
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapped around; -1 if the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_COUNT

    @property
    def has_producer(self) -> bool:
        return self.producer_id >= 0

    @property
    def transactional(self) -> bool:
        """True for the data and the end marker of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """True if the records are the broker's own (end markers), not a producer's."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def log_append_time(self) -> bool:
        """True if the broker set the timestamp, and every record has ``max_timestamp_ms``."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def compression(self) -> int:
        """The number of the compression: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_BITS


@dataclass(frozen=True)
class Record:
    """One record as a consumer would see it, and the header of its batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    batch: BatchHeader


@dataclass(frozen=True)
class StoredMarker:
    """An end marker in a log: a partition's control record (KIP-98, "Control Records")."""

    commit: bool
    coordinator_epoch: int


def next_sequence(sequence: int, count: int) -> int:
    """The sequence number ``count`` records after ``sequence``; wraps from 2147483647 to 0."""
    return (sequence + count) % SEQUENCE_COUNT


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``, unchecked; at least `HEADER_BYTES` bytes must be there."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


_ABSENT: Final = encode_varint(-1)
NO_HEADERS: Final = encode_varint(0)
#: Attributes and timestamp delta of a record.
_ZEROS: Final = b"\x00\x00"


def record_content(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> bytes:
    """A record's content, independent of its position: length-prefixed key, value and headers."""
    if not headers:
        return b"".join((_sized(key), _sized(value), NO_HEADERS))
    listed = [part for name, content in headers for part in (_sized(name.encode()), _sized(content))]
    return b"".join((_sized(key), _sized(value), encode_varint(len(headers)), *listed))


def encode_records(contents: Iterable[bytes]) -> bytes:
    """The records of one batch, all with its timestamp, from contents made by `record_content`."""
    parts = []
    for number, content in enumerate(contents):
        body = _ZEROS + encode_varint(number) + content
        parts += [encode_varint(len(body)), body]
    return b"".join(parts)


def _sized(content: bytes | None) -> bytes:
    return _ABSENT if content is None else encode_varint(len(content)) + content


def read_records(section: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records in a batch, one by one: for inspecting a log, not for bulk reads.

    A RemoteProtocolError is raised where the decompressed ``section`` does not match the header, or the records of a
    compressed batch have more headers than `COMPRESSED_HEADERS_MAX`.
    """
    if header.record_count < 0:
        raise broken(header.base_offset, f"it has {header.record_count} records")
    position = 0
    headers_left = COMPRESSED_HEADERS_MAX if header.compression else len(section)
    for _ in range(header.record_count):
        try:
            record, position = _read_record(section, position, header, headers_left)
        except (IndexError, UnicodeDecodeError) as error:
            raise broken(header.base_offset, f"the record at byte {position}: {error}") from error
        headers_left -= len(record.headers)
        yield record
    if position != len(section):
        raise broken(header.base_offset, f"{len(section) - position} bytes after the last record")


def end_marker(record: Record | None) -> StoredMarker | None:
    """The end marker in a control batch's only record; None if it does not end a transaction, or was compacted away.

    A RemoteProtocolError is raised if the record is not a control record.
    """
    if record is None:
        return None
    if record.key is None or len(record.key) < CONTROL_KEY.size:
        raise broken(record.batch.base_offset, f"a control record with the key {record.key!r}")
    _, kind = CONTROL_KEY.unpack_from(record.key)
    if kind not in {ABORT, COMMIT}:
        return None
    if record.value is None or len(record.value) < MARKER_VALUE.size:
        raise broken(record.batch.base_offset, f"an end marker with the value {record.value!r}")
    _, coordinator_epoch = MARKER_VALUE.unpack_from(record.value)
    return StoredMarker(kind == COMMIT, coordinator_epoch)


def broken(base_offset: int, detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        peer="the writer of a record batch", detail=f"the batch at offset {base_offset}: {detail}"
    )


def _read_record(section: bytes, start: int, header: BatchHeader, headers_max: int) -> tuple[Record, int]:
    length, position = read_varint(section, start)
    stop = position + length
    if length <= 0 or stop > len(section):
        raise IndexError(f"its length is {length}, the section has {len(section)} bytes")
    timestamp_delta, position = read_varint(section, position + 1)  # after the attributes, which are unused
    offset_delta, position = read_varint(section, position)
    key, position = read_bytes(section, position)
    value, position = read_bytes(section, position)
    header_count, position = read_varint(section, position)
    if header_count > headers_max:
        raise IndexError(f"it has {header_count} headers, more than the {headers_max} left for this batch")
    headers = []
    for _ in range(header_count):
        name, position = read_bytes(section, position)
        content, position = read_bytes(section, position)
        headers.append(((name or b"").decode(), content))
    if position != stop:
        raise IndexError(f"it ends at byte {position}, but by its length at {stop}")
    timestamp_ms = header.max_timestamp_ms if header.log_append_time else header.base_timestamp_ms + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp_ms, key, value, tuple(headers), header), stop


def read_bytes(section: bytes, position: int) -> tuple[bytes | None, int]:
    """Bytes after their length, and where they end; None for length -1."""
    length, position = read_varint(section, position)
    if length < 0:
        return None, position
    if position + length > len(section):
        raise IndexError(f"{length} bytes at {position}, the section has {len(section)}")
    return section[position : position + length], position + length
