"""Record batches v2 as the broker sees them: the header read, checked, stamped; batches of the broker's own built.

The layout is that of ``DefaultRecordBatch`` in Kafka's sources (KIP-98, "Message Format")::

    base offset: int64 | length: int32 | partition leader epoch: int32 | magic: int8 = 2 | crc: uint32 |
    attributes: int16 | last offset delta: int32 | base timestamp: int64 | max timestamp: int64 |
    producer id: int64 | producer epoch: int16 | base sequence: int32 | record count: int32 | records

The length counts everything behind it, the CRC-32C covers everything behind itself. So the broker can stamp base
offset and leader epoch without touching the records, which it never decodes to store them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

import google_crc32c

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.storage.errors import BatchError

#: What holds the bytes of a batch.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: A sequence number is an int32 that is never negative: 2147483647 is followed by 0
#: (``DefaultRecordBatch.incrementSequence``).
SEQUENCE_COUNT: Final = 2**31
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

MAGIC: Final = 2
COMPRESSION_BITS: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
#: The largest number of a compression: zstd.
_COMPRESSION_MAX: Final = 4

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_STAMP: Final = struct.Struct(">qii")  # base offset, length, partition leader epoch
_MAGIC_AND_CRC: Final = struct.Struct(">bI")
_CHECKED: Final = struct.Struct(">hiqqqhii")  # attributes to record count
_MAGIC_POSITION: Final = _STAMP.size
#: Base offset and length: what stands in front of the bytes that the length counts.
LOG_OVERHEAD_BYTES: Final = 12
#: Bytes of a batch before its records.
HEADER_BYTES: Final = _HEADER.size
#: Bytes before those that the CRC covers.
_CRC_END: Final = HEADER_BYTES - _CHECKED.size
#: A record has seven numbers, each a byte at least.
_RECORD_BYTES_MIN: Final = 7
#: google_crc32c takes bytes only; pieces of this size are copied within the processor's cache.
_CRC_PIECE_BYTES: Final = 64 * 1024


class BatchHeader(NamedTuple):
    """The header of one batch, field by field as on the wire."""

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
        """Bytes of the whole batch."""
        return self.length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapped round; -1 where the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_COUNT

    @property
    def has_producer(self) -> bool:
        """True for idempotent and transactional producers."""
        return self.producer_id >= 0

    @property
    def transactional(self) -> bool:
        """True for the data and the end marker of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """True where the records are a broker's own (end markers), not a producer's."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def log_append_time(self) -> bool:
        """True where the broker stamped the batch, and every record has ``max_timestamp_ms``."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def compression(self) -> int:
        """The number of the compression: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_BITS


class Stamped(NamedTuple):
    """A batch as it goes into the log: parts to be written one behind the other, and the header that they have."""

    header: BatchHeader
    parts: tuple[Buffer, ...]


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``, unchecked; at least `HEADER_BYTES` bytes must be there."""
    return BatchHeader._make(_HEADER.unpack_from(data, position))


def inspect(records: Buffer) -> BatchHeader:
    """The header of the one batch that a client sent for a partition, checked as far as its bytes go.

    Whether the partition takes it is the partition's to say (`PartitionLog.append`). The records are not decoded: a
    batch with a right CRC and records that no consumer can read is stored as it is, unlike by Kafka's LogValidator.

    Raises:
        BatchError: INVALID_RECORD (87) unless it is exactly one batch v2 of a client, with as many records as offsets
            and a sequence if it has a producer id; CORRUPT_MESSAGE (2) where length or CRC are wrong
            (``ProduceRequest.validateRecords``, ``LogValidator.validateBatch``).
    """
    if len(records) < HEADER_BYTES:
        raise _refused(Code.INVALID_RECORD, f"{len(records)} bytes are no record batch")
    header = read_header(records)
    if header.length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise _refused(Code.CORRUPT_MESSAGE, f"length {header.length} is too short for a batch v2")
    if header.magic != MAGIC:
        raise _refused(Code.INVALID_RECORD, f"format v{header.magic}: only v{MAGIC} is taken")
    if header.size_bytes != len(records):
        raise _refused(
            Code.INVALID_RECORD, f"one batch of {header.size_bytes} bytes was announced, {len(records)} bytes came"
        )
    if checksum(memoryview(records)[_CRC_END:]) != header.crc:
        raise _refused(Code.CORRUPT_MESSAGE, "the CRC does not fit the bytes")
    fault = _client_fault(header)
    if fault:
        raise _refused(Code.INVALID_RECORD, fault)
    return header


def whole(data: Buffer, header: BatchHeader) -> bool:
    """True where ``data`` is the batch that ``header`` heads, and its CRC fits: what recovery asks."""
    return (
        header.magic == MAGIC
        and header.size_bytes == len(data)
        and checksum(memoryview(data)[_CRC_END:]) == header.crc
        and header.last_offset_delta >= 0
    )


def stamp_batch(
    records: Buffer, header: BatchHeader, *, base_offset: int, leader_epoch: int, append_time_ms: int | None = None
) -> Stamped:
    """A client's batch with the broker's fields in its header; the records are not copied.

    Args:
        records: the batch as it came.
        header: of it.
        base_offset: of its first record in the log.
        leader_epoch: of the broker.
        append_time_ms: for a topic with message.timestamp.type=LogAppendTime; changes what the CRC covers.
    """
    view = memoryview(records)
    if append_time_ms is None:
        stamped = header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
        return Stamped(stamped, (_STAMP.pack(base_offset, header.length, leader_epoch), view[_MAGIC_POSITION:]))
    attributes = header.attributes | LOG_APPEND_TIME_BIT
    payload = view[HEADER_BYTES:]
    checked = _CHECKED.pack(attributes, header.last_offset_delta, header.base_timestamp_ms, append_time_ms, *header[9:])
    stamped = header._replace(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        crc=checksum(payload, google_crc32c.value(checked)),
        attributes=attributes,
        max_timestamp_ms=append_time_ms,
    )
    return Stamped(stamped, (_HEADER.pack(*stamped), payload))


def build_batch(
    payload: bytes,
    *,
    record_count: int,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    attributes: int = 0,
) -> bytes:
    """A batch of the broker's own, uncompressed, without a sequence, at base offset 0.

    Args:
        payload: the encoded records (`records.encode_records`).
        record_count: how many they are.
        producer_id: -1 for none.
        producer_epoch: -1 for none.
        timestamp_ms: of every record.
        attributes: `TRANSACTIONAL_BIT`, `CONTROL_BIT`.
    """
    checked = _CHECKED.pack(
        attributes,
        record_count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        NO_SEQUENCE,
        record_count,
    )
    crc = google_crc32c.extend(google_crc32c.value(checked), payload)
    head = _STAMP.pack(0, HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload), NO_LEADER_EPOCH)
    return b"".join((head, _MAGIC_AND_CRC.pack(MAGIC, crc), checked, payload))


def checksum(data: memoryview, start: int = 0) -> int:
    """CRC-32C of ``data``, continued from ``start``."""
    crc = start
    for position in range(0, len(data), _CRC_PIECE_BYTES):
        crc = google_crc32c.extend(crc, bytes(data[position : position + _CRC_PIECE_BYTES]))
    return crc


def _client_fault(header: BatchHeader) -> str:
    """What LogValidator has against a batch from a client, or ''."""
    records, payload_bytes = header.record_count, header.size_bytes - HEADER_BYTES
    faults = (
        (header.base_offset != 0, f"the base offset is {header.base_offset}: it is the broker's to give"),
        (header.control, "clients write no control batches"),
        (header.has_producer and header.base_sequence < 0, f"producer id {header.producer_id} without a sequence"),
        (records <= 0 or records != header.last_offset_delta + 1, f"{records} records do not fit the offsets"),
        (header.compression > _COMPRESSION_MAX, f"the compression {header.compression} is unknown"),
        (
            not header.compression and records * _RECORD_BYTES_MIN > payload_bytes,
            f"{records} records in {payload_bytes} bytes",
        ),
    )
    return next((fault for found, fault in faults if found), "")


def _refused(code: Code, detail: str) -> BatchError:
    return BatchError(code=code, detail=detail)
