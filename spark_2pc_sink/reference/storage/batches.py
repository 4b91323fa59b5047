"""Record batches in the broker: validated, stamped, and built for its own records.

The broker stamps base offset and leader epoch without touching the records (see `spark_2pc_sink.wire.batch_format`),
which it never decodes to store them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import google_crc32c

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import DualWriteError, RemoteProtocolError
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.coordinator.states import NO_PAIR, Pair
from spark_2pc_sink.wire import batch_format as wire
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, MAGIC, BatchHeader, Buffer, Record

#: A record has seven numbers of at least one byte each.
_RECORD_BYTES_MIN: Final = 7
#: google_crc32c accepts bytes only; pieces of this size are copied within the processor's cache.
_CRC_PIECE_BYTES: Final = 64 * 1024


@dataclass(eq=False, kw_only=True)
class BatchError(DualWriteError):
    """A record batch that a partition refuses. ``code`` is the answer to the client that sent it."""

    code: Code
    detail: str

    def __str__(self) -> str:
        return f"record batch refused with {self.code.name} ({self.code.value}): {self.detail}"


class Stamped(NamedTuple):
    """A batch as written to the log: parts to be written in sequence, and their header."""

    header: BatchHeader
    parts: tuple[Buffer, ...]


def inspect(records: Buffer) -> BatchHeader:
    """The header of a client's only batch for a partition, with its bytes validated.

    `PartitionLog.append` decides whether the partition accepts it. The records are not decoded: unlike in Kafka's
    LogValidator, a batch with a correct CRC and undecodable records is stored as it is.

    Raises BatchError: INVALID_RECORD (87) unless it is exactly one client batch v2, with as many records as offsets and
    a sequence if it has a producer id; CORRUPT_MESSAGE (2) if length or CRC are wrong
    (``ProduceRequest.validateRecords``, ``LogValidator.validateBatch``).
    """
    size_bytes = len(records)
    if size_bytes < HEADER_BYTES:
        raise BatchError(code=Code.INVALID_RECORD, detail=f"{size_bytes} bytes are too short for a record batch")
    header = wire.read_header(records)
    if header.length < HEADER_BYTES - wire.LOG_OVERHEAD_BYTES:
        raise BatchError(code=Code.CORRUPT_MESSAGE, detail=f"length {header.length} is too short for a batch v2")
    if header.magic != MAGIC:
        raise BatchError(code=Code.INVALID_RECORD, detail=f"format v{header.magic}; only v{MAGIC} is supported")
    if header.size_bytes != size_bytes:
        raise BatchError(code=Code.INVALID_RECORD, detail=f"a batch of {header.size_bytes} bytes in {size_bytes} bytes")
    if checksum(memoryview(records)[wire.CRC_END :]) != header.crc:
        raise BatchError(code=Code.CORRUPT_MESSAGE, detail="the CRC does not match")
    count, payload_bytes = header.record_count, size_bytes - HEADER_BYTES
    too_short = not header.compression and count * _RECORD_BYTES_MIN > payload_bytes
    faults = (
        (header.base_offset != 0, f"the base offset is {header.base_offset}, not 0"),
        (header.control, "clients must not write control batches"),
        (header.has_producer and header.base_sequence < 0, f"producer id {header.producer_id} without a sequence"),
        (count <= 0 or count != header.last_offset_delta + 1, f"{count} records do not match the offsets"),
        (header.compression > wire.COMPRESSION_MAX, f"unknown compression {header.compression}"),
        (too_short, f"{count} records in {payload_bytes} bytes"),
    )
    for found, fault in faults:
        if found:
            raise BatchError(code=Code.INVALID_RECORD, detail=fault)
    return header


def is_whole(data: Buffer, header: BatchHeader) -> bool:
    """True if ``data`` is the complete batch of ``header``, and its CRC matches: recovery's check."""
    return (
        header.magic == MAGIC
        and header.size_bytes == len(data)
        and checksum(memoryview(data)[wire.CRC_END :]) == header.crc
        and header.last_offset_delta >= 0
    )


def stamp_batch(
    records: Buffer, header: BatchHeader, *, base_offset: int, leader_epoch: int, append_time_ms: int | None = None
) -> Stamped:
    """A client's batch with the broker's header fields set; the records are not copied.

    ``append_time_ms`` is for a topic with message.timestamp.type=LogAppendTime; it changes bytes that the CRC covers.
    """
    view = memoryview(records)
    if append_time_ms is None:
        stamped = header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
        return Stamped(stamped, (wire.STAMP.pack(base_offset, header.length, leader_epoch), view[wire.STAMP.size :]))
    attributes = header.attributes | wire.LOG_APPEND_TIME_BIT
    payload = view[HEADER_BYTES:]
    checked = wire.CHECKED.pack(
        attributes, header.last_offset_delta, header.base_timestamp_ms, append_time_ms, *header[9:]
    )
    stamped = header._replace(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        crc=checksum(payload, google_crc32c.value(checked)),
        attributes=attributes,
        max_timestamp_ms=append_time_ms,
    )
    return Stamped(stamped, (wire.HEADER.pack(*stamped), payload))


def build_batch(
    payload: bytes, *, record_count: int, timestamp_ms: int, producer: Pair = NO_PAIR, attributes: int = 0
) -> bytes:
    """The broker's own batch, uncompressed, without a sequence, at base offset 0; all records have one timestamp."""
    checked = wire.CHECKED.pack(
        attributes, record_count - 1, timestamp_ms, timestamp_ms, *producer, wire.NO_SEQUENCE, record_count
    )
    crc = google_crc32c.extend(google_crc32c.value(checked), payload)
    head = wire.STAMP.pack(0, HEADER_BYTES - wire.LOG_OVERHEAD_BYTES + len(payload), wire.NO_LEADER_EPOCH)
    return b"".join((head, wire.MAGIC_AND_CRC.pack(MAGIC, crc), checked, payload))


def checksum(data: memoryview, crc: int = 0) -> int:
    for position in range(0, len(data), _CRC_PIECE_BYTES):
        crc = google_crc32c.extend(crc, bytes(data[position : position + _CRC_PIECE_BYTES]))
    return crc


#: Most records decoded from a compressed batch. Uncompressed, a batch of 1 MB contains a sixth of it at most.
COMPRESSED_RECORDS_MAX: Final = 1_000_000

#: A record to be written: key and value, None for null (a null value is a tombstone).
KeyValue: TypeAlias = tuple[bytes | None, bytes | None]


def encode_key_values(records: Sequence[KeyValue]) -> bytes:
    return wire.encode_records(wire.record_content(key, value) for key, value in records)


def build_marker(marker: EndMarker, *, timestamp_ms: int) -> bytes:
    """A control batch that ends a transaction (KIP-98, "Control Records"), at base offset 0."""
    key = wire.CONTROL_KEY.pack(0, wire.COMMIT if marker.commit else wire.ABORT)
    return build_batch(
        encode_key_values([(key, wire.MARKER_VALUE.pack(0, marker.coordinator_epoch))]),
        record_count=1,
        timestamp_ms=timestamp_ms,
        producer=Pair(marker.producer_id, marker.producer_epoch),
        attributes=wire.TRANSACTIONAL_BIT | wire.CONTROL_BIT,
    )


def read_marker(batch: bytes, header: BatchHeader) -> wire.StoredMarker | None:
    """The end marker in a control batch; None for control records that do not end a transaction."""
    record = next(decode_records(batch, header), None)
    try:
        return wire.end_marker(record)
    except RemoteProtocolError as error:
        raise BatchError(code=Code.CORRUPT_MESSAGE, detail=error.detail) from error


def decode_records(batch: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records of a whole batch, decompressed if necessary.

    Raises BatchError: CORRUPT_MESSAGE if they do not match the header, or a compressed batch has more than
    `COMPRESSED_RECORDS_MAX`, or exceeds the bound of `decompress`: no real client's does.
    """
    if header.compression and header.record_count > COMPRESSED_RECORDS_MAX:
        detail = f"{header.record_count} records in a compressed batch; up to {COMPRESSED_RECORDS_MAX} are read"
        raise BatchError(code=Code.CORRUPT_MESSAGE, detail=detail)
    try:
        if header.compression:
            # Imported here: it loads pyarrow, which the server does not need until a client searches by timestamp.
            from spark_2pc_sink.wire.batch_reader import decompress  # noqa: PLC0415
            from spark_2pc_sink.wire.record_batch import Compression  # noqa: PLC0415

            section = decompress(memoryview(batch)[HEADER_BYTES:], Compression(header.compression))
        else:
            section = batch[HEADER_BYTES:]
        yield from wire.read_records(section, header)
    except RemoteProtocolError as error:
        raise BatchError(code=Code.CORRUPT_MESSAGE, detail=error.detail) from error
