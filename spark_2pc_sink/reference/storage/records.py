"""Records inside batches: the broker's own encoded, and any decoded when somebody has to look inside.

A record (KIP-98, "Message Format") is ``length | attributes: int8 | timestamp delta | offset delta | key | value |
headers``, every number but the attributes a zigzag varint, key and value with their length in front, -1 for null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.storage.batches import (
    CONTROL_BIT,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    build_batch,
)
from spark_2pc_sink.reference.storage.errors import BatchError

#: A record to be written: key and value, None for null (a null value is a tombstone).
KeyValue: TypeAlias = tuple[bytes | None, bytes | None]

_MORE: Final = 0x80
_LOW: Final = 0x7F
_NULL: Final = b"\x01"  # the varint of -1
#: A varint has at most this many bits: that of an int64.
_VARINT_BITS_MAX: Final = 64
_CONTROL_KEY: Final = struct.Struct(">hh")  # version, type
_MARKER_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch
_ABORT: Final = 0
_COMMIT: Final = 1


@dataclass(frozen=True)
class StoredRecord:
    """One record as a consumer would see it, and the header of its batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    batch: BatchHeader


@dataclass(frozen=True)
class StoredMarker:
    """The end marker in a control batch."""

    commit: bool
    coordinator_epoch: int


def encode_records(records: Sequence[KeyValue]) -> bytes:
    """The records section of a batch whose records all have its timestamp."""
    return b"".join(_encode_record(delta, key, value) for delta, (key, value) in enumerate(records))


def build_marker(
    *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """A control batch that ends a transaction (KIP-98, "Control Records"), at base offset 0."""
    key = _CONTROL_KEY.pack(0, _COMMIT if commit else _ABORT)
    return build_batch(
        encode_records([(key, _MARKER_VALUE.pack(0, coordinator_epoch))]),
        record_count=1,
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )


def read_marker(batch: bytes, header: BatchHeader) -> StoredMarker | None:
    """The end marker in a control batch; None for control records that end no transaction.

    Raises:
        BatchError: the control record cannot be read.
    """
    record = next(decode_records(batch, header), None)
    if record is None:
        return None
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise _unreadable(header, f"a control record with the key {record.key!r}")
    _, kind = _CONTROL_KEY.unpack_from(record.key)
    if kind not in {_ABORT, _COMMIT}:
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise _unreadable(header, f"an end marker with the value {record.value!r}")
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    return StoredMarker(kind == _COMMIT, coordinator_epoch)


def decode_records(batch: bytes, header: BatchHeader) -> Iterator[StoredRecord]:
    """The records of a whole batch, decompressed if they have to be.

    Raises:
        BatchError: CORRUPT_MESSAGE, the records are not what the header announces.
    """
    section = _section(batch, header)
    position = 0
    for _ in range(header.record_count):
        try:
            record, position = _decode_record(section, position, header)
        except IndexError as error:
            raise _unreadable(header, f"the record at byte {position}: {error}") from error
        yield record


def _section(batch: bytes, header: BatchHeader) -> bytes:
    if not header.compression:
        return batch[HEADER_BYTES:]
    # Only here: it loads pyarrow, which the server can do without until a client asks for a timestamp.
    from spark_2pc_sink.errors import RemoteProtocolError  # noqa: PLC0415
    from spark_2pc_sink.wire.compression import Compression, decompress  # noqa: PLC0415

    try:
        return decompress(memoryview(batch)[HEADER_BYTES:], Compression(header.compression))
    except RemoteProtocolError as error:
        raise _unreadable(header, error.detail) from error


def _encode_record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"".join((b"\x00\x00", _varint(delta), _sized(key), _sized(value), b"\x00"))
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _NULL if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """A zigzag varint of a number that is not negative."""
    rest = number << 1
    encoded = bytearray()
    while rest > _LOW:
        encoded.append(rest & _LOW | _MORE)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _decode_record(section: bytes, start: int, header: BatchHeader) -> tuple[StoredRecord, int]:
    length, position = _read_varint(section, start)
    stop = position + length
    if length <= 0 or stop > len(section):
        raise IndexError(f"its length is {length}, the section has {len(section)} bytes")
    timestamp_delta, position = _read_varint(section, position + 1)
    offset_delta, position = _read_varint(section, position)
    key, position = _read_bytes(section, position)
    value, position = _read_bytes(section, position)
    timestamp_ms = header.max_timestamp_ms if header.log_append_time else header.base_timestamp_ms + timestamp_delta
    return StoredRecord(header.base_offset + offset_delta, timestamp_ms, key, value, header), stop


def _read_bytes(section: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(section, position)
    if length < 0:
        return None, position
    if position + length > len(section):
        raise IndexError(f"{length} bytes at {position}, the section has {len(section)}")
    return section[position : position + length], position + length


def _read_varint(section: bytes, position: int) -> tuple[int, int]:
    unsigned = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        byte = section[position]
        position += 1
        unsigned |= (byte & _LOW) << shift
        if not byte & _MORE:
            return (unsigned >> 1) ^ -(unsigned & 1), position
    raise IndexError(f"the number before byte {position} has more than {_VARINT_BITS_MAX} bits")


def _unreadable(header: BatchHeader, detail: str) -> BatchError:
    return BatchError(code=Code.CORRUPT_MESSAGE, detail=f"the batch at offset {header.base_offset}: {detail}")
