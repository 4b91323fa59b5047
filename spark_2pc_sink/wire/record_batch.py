"""Kafka's record batch v2: written from an encoded records section, and read back.

The layout is that of ``DefaultRecordBatch`` in Kafka's sources (KIP-98, "Message Format")::

    base offset: int64 | length: int32 | partition leader epoch: int32 | magic: int8 = 2 | crc: uint32 |
    attributes: int16 | last offset delta: int32 | base timestamp: int64 | max timestamp: int64 |
    producer id: int64 | producer epoch: int16 | base sequence: int32 | record count: int32 | records

The length counts everything behind it, the CRC-32C covers everything behind itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

import google_crc32c
import pyarrow as pa

from spark_2pc_sink.errors import LocalProtocolError, RemoteProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.wire.arrow_layout import INT32_BYTES_MAX, ArrowBuffer
from spark_2pc_sink.wire.arrow_records import BATCH_HEADER_BYTES, RecordsSection
from spark_2pc_sink.wire.compression import Compression, compress, decompress
from spark_2pc_sink.wire.varints import BITS, LOW_BITS, MORE_FOLLOW

#: A sequence number is an int32 that is never negative: 2147483647 is followed by 0
#: (``DefaultRecordBatch.incrementSequence``).
SEQUENCE_COUNT: Final = 2**31

_MAGIC: Final = 2
_NO_LEADER_EPOCH: Final = -1
_NO_PRODUCER_ID: Final = -1
_NO_PRODUCER_EPOCH: Final = -1
_NO_SEQUENCE: Final = -1
_COMPRESSION_BITS: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20

_LOG_HEADER: Final = struct.Struct(">qi")  # base offset, length
_HEAD: Final = struct.Struct(">qiibI")  # ... partition leader epoch, magic, crc
_CHECKED: Final = struct.Struct(">hiqqqhii")  # attributes to record count
_MAGIC_POSITION: Final = _HEAD.size - 5
_CRC: Final = struct.Struct(">I")
_CRC_POSITION: Final = _HEAD.size - _CRC.size
_PRODUCER: Final = struct.Struct(">qhi")  # producer id, producer epoch, base sequence
_PRODUCER_POSITION: Final = struct.calcsize(">hiqq")  # within the checked part

_CONTROL_KEY: Final = struct.Struct(">hh")  # version, type
_MARKER_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch


class MarkerKind(Enum):
    """How a transaction ended on one partition; the value is the type in the control record's key."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True)
class EndMarker:
    """The control record that ends a transaction on a partition (KIP-98, "Control Records")."""

    kind: MarkerKind
    coordinator_epoch: int


@dataclass(frozen=True)
class DecodedRecord:
    """One record as a consumer would see it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class DecodedBatch:
    """The header of one batch, checked against its CRC, and its records still as they are.

    Args:
        base_offset: offset of the first record.
        last_offset: offset of the last record, also when compaction has removed it.
        producer_id: -1 for a producer that is neither idempotent nor transactional.
        producer_epoch: of the transaction; in a control batch of transaction.version 2 that of the transaction + 1.
        base_sequence: sequence number of the first record; -1 in a control batch.
        record_count: how many records are in the batch.
        base_timestamp_ms: to which records' deltas are added.
        max_timestamp_ms: the largest timestamp, or the time of the append.
        compression: of ``payload``.
        log_append_time: True where the broker stamped the batch, and every record has ``max_timestamp_ms``.
        transactional: True for the data and the end marker of a transaction.
        control: True where the records are the broker's own, not a producer's.
        payload: the records section, compressed.
    """

    base_offset: int
    last_offset: int
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    compression: Compression
    log_append_time: bool
    transactional: bool
    control: bool
    payload: memoryview

    def records(self) -> Iterator[DecodedRecord]:
        """Decode the records, one by one: for looking at a log, not for reading much of it.

        Raises:
            RemoteProtocolError: the records are not what the header announces.
        """
        section = decompress(self.payload, self.compression)
        position = 0
        for _ in range(self.record_count):
            try:
                record, position = _decode_record(section, position, self)
            except (IndexError, UnicodeDecodeError) as error:
                raise _broken(f"the record at byte {position} of the batch at {self.base_offset}: {error}") from error
            yield record
        if position != len(section):
            raise _broken(f"{len(section) - position} bytes behind the last record of the batch at {self.base_offset}")

    @property
    def marker(self) -> EndMarker | None:
        """The end marker in this batch; None for data, and for control records that end no transaction.

        Raises:
            RemoteProtocolError: a control batch whose records cannot be read.
        """
        if not self.control or self.record_count == 0:
            return None
        record = next(self.records())
        if record.key is None or len(record.key) < _CONTROL_KEY.size:
            raise _broken(f"the control batch at {self.base_offset} has the key {record.key!r}")
        _, kind = _CONTROL_KEY.unpack_from(record.key)
        if kind not in (MarkerKind.ABORT.value, MarkerKind.COMMIT.value):
            return None
        if record.value is None or len(record.value) < _MARKER_VALUE.size:
            raise _broken(f"the end marker at {self.base_offset} has the value {record.value!r}")
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
        return EndMarker(MarkerKind(kind), coordinator_epoch)


def next_sequence(sequence: int, count: int) -> int:
    """The sequence number ``count`` records after ``sequence``; wraps from 2147483647 to 0."""
    return (sequence + count) % SEQUENCE_COUNT


def encode_unassigned_batch(
    section: RecordsSection,
    *,
    timestamp_ms: int,
    compression: str,
    level: int | None = None,
) -> memoryview:
    """A batch of a transaction that nobody sends yet.

    `assign_producer` fills in who, from which sequence number, and the CRC. So the costly part can be made anywhere,
    and the sequence be given out by the one who sends.

    Args:
        section: its records; at least one. Without compression the batch is made in its `RecordsSection.frame`.
        timestamp_ms: of every record, milliseconds since 1970.
        compression: none, gzip, snappy, lz4 or zstd.
        level: of the compression, see `compress`.

    Raises:
        ConfigurationError: an unknown compression.
        LocalProtocolError: no records, or a length that the format cannot say.
    """
    if section.record_count == 0:
        raise LocalProtocolError(
            operation="encode a record batch", state="no records", rule="a batch has at least one record"
        )
    codec = Compression.named(compression)
    payload = compress(section.buffer, codec, level)
    batch_bytes = BATCH_HEADER_BYTES + len(payload)
    if batch_bytes > INT32_BYTES_MAX:
        raise LocalProtocolError(
            operation="encode a record batch",
            state=f"{batch_bytes} bytes",
            rule=f"a batch has at most {INT32_BYTES_MAX} bytes: cut the rows before",
        )
    header = _HEAD.pack(0, batch_bytes - _LOG_HEADER.size, _NO_LEADER_EPOCH, _MAGIC, 0) + _CHECKED.pack(
        codec.value | _TRANSACTIONAL_BIT,
        section.record_count - 1,
        timestamp_ms,
        timestamp_ms,
        _NO_PRODUCER_ID,
        _NO_PRODUCER_EPOCH,
        _NO_SEQUENCE,
        section.record_count,
    )
    if codec is Compression.NONE:
        section.frame[:BATCH_HEADER_BYTES] = header
        return section.frame
    return memoryview(bytearray().join((header, payload)))


def assign_producer(
    batch: bytes | memoryview | ArrowBuffer, *, producer: ProducerIdAndEpoch, base_sequence: int
) -> memoryview:
    """An encoded batch that comes from ``producer``, its first record with ``base_sequence``.

    Args:
        batch: from `encode_unassigned_batch`, or any batch of format v2. What can be written is changed in place, of
            other memory a copy is made.
        producer: the pair that the broker fences by.
        base_sequence: of the first record, 0 to 2147483647; the others follow, wrapping round.

    Raises:
        LocalProtocolError: a sequence number that the format cannot say.
    """
    if not 0 <= base_sequence < SEQUENCE_COUNT:
        raise LocalProtocolError(
            operation="encode a record batch",
            state=f"sequence {base_sequence}",
            rule=f"a sequence number is from 0 to {SEQUENCE_COUNT - 1}",
        )
    view = memoryview(batch).cast("B")
    own = memoryview(bytearray(view)) if view.readonly else view
    _PRODUCER.pack_into(own, _HEAD.size + _PRODUCER_POSITION, producer.producer_id, producer.epoch, base_sequence)
    _CRC.pack_into(own, _CRC_POSITION, google_crc32c.value(pa.py_buffer(own[_HEAD.size :])))
    return own


def decode_record_batches(data: bytes | bytearray | memoryview) -> Iterator[DecodedBatch]:
    """The whole batches in ``data``, in order. A batch cut off at the end, as Fetch returns it, is left out.

    Raises:
        RemoteProtocolError: a batch of a format before v2, or one whose length or CRC is wrong.
    """
    view = memoryview(data).cast("B")
    position = 0
    while position + _LOG_HEADER.size <= len(view):
        base_offset, length = _LOG_HEADER.unpack_from(view, position)
        if length < BATCH_HEADER_BYTES - _LOG_HEADER.size:
            raise _broken(f"the batch at {base_offset} has length {length}: too short for format v2")
        stop = position + _LOG_HEADER.size + length
        if stop > len(view):
            return
        yield _decode_batch(view[position:stop])
        position = stop


def _decode_batch(view: memoryview) -> DecodedBatch:
    base_offset, _, leader_epoch, magic, crc = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise _broken(f"the batch at {base_offset} has format v{magic}: this package reads v{_MAGIC}")
    computed = google_crc32c.value(pa.py_buffer(view[_HEAD.size :]))
    if computed != crc:
        raise _broken(f"the batch at {base_offset} has CRC {crc:#010x}, its bytes make {computed:#010x}")
    attributes, last_offset_delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count = (
        _CHECKED.unpack_from(view, _HEAD.size)
    )
    if attributes & _COMPRESSION_BITS > Compression.ZSTD.value:
        raise _broken(f"the batch at {base_offset} has the unknown compression {attributes & _COMPRESSION_BITS}")
    return DecodedBatch(
        base_offset=base_offset,
        last_offset=base_offset + last_offset_delta,
        partition_leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
        base_timestamp_ms=base_timestamp,
        max_timestamp_ms=max_timestamp,
        compression=Compression(attributes & _COMPRESSION_BITS),
        log_append_time=bool(attributes & _LOG_APPEND_TIME_BIT),
        transactional=bool(attributes & _TRANSACTIONAL_BIT),
        control=bool(attributes & _CONTROL_BIT),
        payload=view[BATCH_HEADER_BYTES:],
    )


def _decode_record(section: bytes, start: int, batch: DecodedBatch) -> tuple[DecodedRecord, int]:
    length, position = read_varint(section, start)
    stop = position + length
    if length <= 0 or stop > len(section):
        raise IndexError(f"its length is {length}, the section has {len(section)} bytes")
    position += 1  # attributes, unused
    timestamp_delta, position = read_varint(section, position)
    offset_delta, position = read_varint(section, position)
    key, position = _read_bytes(section, position)
    value, position = _read_bytes(section, position)
    header_count, position = read_varint(section, position)
    headers = []
    for _ in range(header_count):
        name, position = _read_bytes(section, position)
        content, position = _read_bytes(section, position)
        headers.append(((name or b"").decode(), content))
    if position != stop:
        raise IndexError(f"it ends at byte {position}, its length says {stop}")
    timestamp_ms = batch.max_timestamp_ms if batch.log_append_time else batch.base_timestamp_ms + timestamp_delta
    return DecodedRecord(batch.base_offset + offset_delta, timestamp_ms, key, value, tuple(headers)), position


def _read_bytes(section: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(section, position)
    if length < 0:
        return None, position
    if position + length > len(section):
        raise IndexError(f"{length} bytes at {position}, the section has {len(section)}")
    return section[position : position + length], position + length


def read_varint(section: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, and where it ends."""
    unsigned = 0
    for shift in range(0, 64, BITS):
        byte = section[position]
        position += 1
        unsigned |= (byte & LOW_BITS) << shift
        if not byte & MORE_FOLLOW:
            return (unsigned >> 1) ^ -(unsigned & 1), position
    raise IndexError(f"the number before byte {position} has more than 64 bits")


def _broken(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(peer="the writer of a record batch", detail=detail)
