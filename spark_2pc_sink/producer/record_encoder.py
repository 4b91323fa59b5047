"""The record encoder: rows of many partitions become record batches, which are sent elsewhere.

Encoding and compressing is most of the work of a producer, and needs no connection, no sequence number and no order
between processes. So it can be done where the rows are, and only what it made be brought to the one process that
writes a partition (`spark_2pc_sink.producer.produce_session.ProduceSession.append_encoded`). Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_2pc_sink.errors import RecordRefusedError, RecordTooLargeError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.arrow_layout import ArrowBuffer
from spark_2pc_sink.wire.arrow_records import RecordsSection, encode_sections
from spark_2pc_sink.wire.batch_format import HEADER_BYTES
from spark_2pc_sink.wire.digest import batch_digest
from spark_2pc_sink.wire.record_batch import encode_unassigned_batch
from spark_2pc_sink.wire.record_rows import Rows

if TYPE_CHECKING:
    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.options import KafkaOptions

if TYPE_CHECKING:
    from spark_2pc_sink.wire.framed_request import RecordBytes


_LACKS_KEY: Final = "the topic is compacted (cleanup.policy), and takes no record without a key"
#: Characters of a key or a value in an error.
_CHARACTERS_MAX: Final = 80


@dataclass(frozen=True)
class TopicLimits:
    """The limits of a topic; None where the broker does not tell us (no DESCRIBE_CONFIGS permission).

    Args:
        message_bytes_max: the largest record batch, compressed (max.message.bytes, or segment.bytes where it is less).
        create_time: True where records keep the timestamp that the producer gave them.
        bytes_limit: what says ``message_bytes_max``.
        needs_keys: True where the topic is compacted, and takes no record without a key.
    """

    message_bytes_max: int | None
    create_time: bool | None
    bytes_limit: str = ""
    needs_keys: bool = False


@dataclass(frozen=True)
class EncodingOptions:
    """The Kafka client properties by which records are encoded; no address and no secret is among them.

    Attributes:
        batch_bytes_max: uncompressed bytes of records in one batch (batch.size).
        max_request_bytes: the largest record that travels alone, uncompressed (max.request.size).
        compression: none, gzip, snappy, lz4 or zstd.
        compression_level: of gzip and zstd; None for the others.
    """

    batch_bytes_max: int
    max_request_bytes: int
    compression: str
    compression_level: int | None

    @classmethod
    def of(cls, kafka: KafkaOptions) -> EncodingOptions:
        """Those of all properties."""
        return cls(
            batch_bytes_max=kafka.batch_bytes_max,
            max_request_bytes=kafka.max_request_bytes,
            compression=kafka.compression,
            compression_level=kafka.compression_level,
        )


def record_too_large(partition: TopicPartition, row_key: str, record_bytes: int, limit: str) -> RecordTooLargeError:
    """The error for a record that does not fit, ``limit`` saying what."""
    return RecordTooLargeError(
        topic=partition.topic,
        partition=partition.partition,
        row_key=row_key,
        record_bytes=record_bytes,
        limit=limit,
    )


def record_lacks_key(partition: TopicPartition, value: bytes | None) -> RecordRefusedError:
    """The error for a record without a key, by its value."""
    return RecordRefusedError(
        topic=partition.topic,
        partition=partition.partition,
        record=f"value {printable_key(value)}",
        reason=_LACKS_KEY,
        lacks_key=True,
    )


def printable_key(key: bytes | None) -> str:
    """The key of a record: as text where it is text, else in hexadecimal; cut to a readable length."""
    if key is None:
        return "null"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text.isprintable() and (text or not key) else "0x" + key.hex()
    return shown if len(shown) <= _CHARACTERS_MAX else shown[:_CHARACTERS_MAX] + "…"


#: Bytes of rows that wait for more rows, per encoder; above it batches are made of what there is.
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
#: Bytes of rows of several partitions that are encoded in one pass. More would not be faster, only copied once more.
TOGETHER_BYTES_MAX: Final = 1024 * 1024
#: Compression makes data that does not compress a little larger. Of the five snappy's framing adds most, less than one
#: byte in sixty-four and a header, so this much room is left below max.message.bytes.
_COMPRESSION_LOSS: Final = 1 / 64
_COMPRESSION_LOSS_BYTES: Final = 512


@dataclass(frozen=True)
class EncodedBatch:
    """One record batch that waits for a producer id and a sequence number.

    Args:
        partition: where to.
        payload: the batch, as `encode_unassigned_batch` made it.
        record_count: how many records it has, at least one.
        digest: of its records (`spark_2pc_sink.wire.digest`).
        row_key: the key of its record, printable; None for a batch of several.
    """

    partition: TopicPartition
    payload: RecordBytes | ArrowBuffer
    record_count: int
    digest: int
    row_key: str | None


class RowBuffer:
    """Collects rows of one partition until they fill a record batch.

    A task gets its rows in Arrow batches whose size has nothing to do with record batches, so the rest of each is kept
    and the next one is put behind it. What is kept is a slice and shares the memory of the columns it was cut from.

    Args:
        bytes_max: bytes of records in one batch, before compression.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: list[Rows] = []
        self.kept_bytes: int = 0

    def add(self, rows: Rows) -> list[Rows]:
        """Take rows, and return those that fill batches, in order; one element for each batch."""
        full: list[Rows] = []
        if self._kept and self._kept[0].layout != rows.layout:
            full.extend(self.take())
        for number, part in enumerate(rows.cut(self._bytes_max, begun=self.kept_bytes)):
            if number:
                full.extend(self.take())
            self._keep(part)
        return full

    def take(self) -> list[Rows]:
        """Return the kept rows as one batch, or nothing when there are none."""
        kept, self._kept, self.kept_bytes = self._kept, [], 0
        return [Rows.joined(kept)] if kept else []

    def _keep(self, rows: Rows) -> None:
        if len(rows):
            self._kept.append(rows)
            self.kept_bytes += rows.bytes_max


class BatchEncoder:
    """Makes record batches; two encoders share it, which collect what goes into one.

    Args:
        options: batch size and compression.
        timestamp_ms: of every record, milliseconds since 1970.
        limits: what a topic allows.
    """

    def __init__(self, options: EncodingOptions, *, timestamp_ms: int, limits: Callable[[str], TopicLimits]) -> None:
        self._options = options
        self._timestamp_ms = timestamp_ms
        self._limits = limits

    def _records_bytes_max(self, topic: str) -> int:
        """Bytes of records for one batch: ``batch.size``, or less where the topic takes less."""
        option, allowed = self._options.batch_bytes_max, self._limits(topic).message_bytes_max
        return option if allowed is None else max(1, min(option, records_bytes_max(allowed)))

    def _payload(self, section: RecordsSection) -> RecordBytes:
        """The record batch of some records, compressed."""
        return encode_unassigned_batch(
            section,
            timestamp_ms=self._timestamp_ms,
            compression=self._options.compression,
            level=self._options.compression_level,
        )


class RecordEncoder(BatchEncoder):
    """Collects rows by partition, and encodes them as soon as they fill a batch."""

    def __init__(self, options: EncodingOptions, *, timestamp_ms: int, limits: Callable[[str], TopicLimits]) -> None:
        super().__init__(options, timestamp_ms=timestamp_ms, limits=limits)
        self._buffers: dict[TopicPartition, RowBuffer] = {}
        self._kept_bytes = 0

    def append(self, partition: TopicPartition, rows: Rows) -> Iterator[EncodedBatch]:
        """Take rows of one partition, in order; yields the batches that are full now.

        Raises:
            RecordTooLargeError, RecordRefusedError: a row cannot be sent.
        """
        if not len(rows):
            return
        if self._limits(partition.topic).needs_keys:
            _check_keys(partition, rows)
        buffer = self._buffer(partition)
        self._kept_bytes -= buffer.kept_bytes
        full = buffer.add(rows)
        self._kept_bytes += buffer.kept_bytes
        for batch_rows in full:
            yield from self._encode({partition: batch_rows})
        if self._kept_bytes > KEPT_BYTES_MAX:
            yield from self.finish()

    def finish(self) -> Iterator[EncodedBatch]:
        """Encode what is kept; nothing is kept afterwards."""
        together: dict[TopicPartition, Rows] = {}
        together_bytes, layout = 0, None
        for partition, buffer in self._buffers.items():
            for rows in buffer.take():
                together_bytes += rows.bytes_max
                if together and (together_bytes > TOGETHER_BYTES_MAX or layout != rows.layout):
                    yield from self._encode(together)
                    together, together_bytes = {}, rows.bytes_max
                together[partition], layout = rows, rows.layout
        yield from self._encode(together)
        self._kept_bytes = 0

    def clear(self) -> None:
        """Forget what is kept."""
        self._buffers.clear()
        self._kept_bytes = 0

    def _buffer(self, partition: TopicPartition) -> RowBuffer:
        known = self._buffers.get(partition)
        if known is None:
            known = self._buffers[partition] = RowBuffer(self._records_bytes_max(partition.topic))
        return known

    def _encode(self, batches: Mapping[TopicPartition, Rows]) -> Iterator[EncodedBatch]:
        """Encode the rows of one batch for each of some partitions, all of the same layout."""
        if not batches:
            return
        rows = Rows.joined(list(batches.values()))
        counts = [len(batch_rows) for batch_rows in batches.values()]
        sections = encode_sections(rows, counts)
        for (partition, batch_rows), section in zip(batches.items(), sections, strict=True):
            payload = self._payload(section)
            row_key = printable_key(_only_key(batch_rows)) if len(batch_rows) == 1 else None
            if row_key is not None:
                self._check_single(partition, row_key, payload, batch_rows.bytes_max)
            digest = batch_digest(partition.topic, section)
            yield EncodedBatch(partition, payload, section.record_count, digest, row_key)

    def _check_single(self, partition: TopicPartition, row_key: str, payload: RecordBytes, record_bytes: int) -> None:
        """Refuse a record that cannot arrive before anything is sent for it."""
        allowed = self._limits(partition.topic).message_bytes_max
        if allowed is not None and len(payload) > allowed:
            limit = self._limits(partition.topic).bytes_limit
            raise record_too_large(partition, row_key, len(payload), limit)
        if record_bytes > self._options.max_request_bytes:
            limit = f"max.request.size is {self._options.max_request_bytes}"
            raise record_too_large(partition, row_key, record_bytes, limit)


def records_bytes_max(message_bytes_max: int) -> int:
    """Bytes of records that a batch of so many bytes (max.message.bytes) takes, whatever compression makes of them."""
    return int((message_bytes_max - HEADER_BYTES - _COMPRESSION_LOSS_BYTES) * (1 - _COMPRESSION_LOSS))


def _check_keys(partition: TopicPartition, rows: Rows) -> None:
    keys, values = rows.key.column, rows.value.column
    if keys is not None and not keys.null_count:
        return
    first = 0 if keys is None else int(np.flatnonzero(np.asarray(keys.is_null()))[0])
    raise record_lacks_key(partition, None if values is None else values[first].as_py())


def _only_key(rows: Rows) -> bytes | None:
    key: bytes | None = None if rows.key.column is None else rows.key.column[0].as_py()
    return key
