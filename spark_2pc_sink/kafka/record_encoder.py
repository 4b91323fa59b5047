"""The record encoder: turns rows of many partitions into record batches, which are sent elsewhere.

Encoding and compressing is most of the work of a producer, and needs no connection, no sequence number and no order
between processes. So it can run where the rows are, and only its output is transferred to the one process that
writes a partition (`spark_2pc_sink.kafka.produce_session.ProduceSession.append_encoded`). Pure: no I/O.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.errors import LocalProtocolError, RecordRefusedError, RecordTooLargeError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.arrow_layout import (
    ArrowColumn,
    BinaryLayout,
    EncodedRows,
    Int64Array,
    as_binary,
    binary_layout,
)
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, Buffer
from spark_2pc_sink.wire.record_batch import EncodedBatch, batch_digest, encode_sections, encode_unassigned_batch

if TYPE_CHECKING:
    from spark_2pc_sink.options import KafkaOptions


_LACKS_KEY: Final = "the topic is compacted (cleanup.policy) and refuses records without a key"
#: Longest key or value shown in an error, in characters.
_CHARACTERS_MAX: Final = 80


@dataclass(frozen=True)
class TopicLimits:
    """A topic's limits; None if the broker does not report them (no DESCRIBE_CONFIGS permission)."""

    #: The largest record batch, compressed (max.message.bytes, or segment.bytes if smaller).
    message_bytes_max: int | None
    #: True if records keep their producer's timestamps.
    create_time: bool | None
    #: Name of the property that sets ``message_bytes_max``.
    bytes_limit: str = ""
    #: True if the topic is compacted, and refuses records without a key.
    needs_keys: bool = False


UNKNOWN_LIMITS: Final = TopicLimits(message_bytes_max=None, create_time=None)


@dataclass(frozen=True)
class EncodingOptions:
    """The Kafka client properties for encoding records; they include no address and no secret."""

    #: Uncompressed bytes of records in one batch (batch.size).
    batch_bytes_max: int
    #: The largest record in its own request, uncompressed (max.request.size).
    max_request_bytes: int
    compression: str
    compression_level: int | None

    @classmethod
    def of(cls, kafka: KafkaOptions) -> EncodingOptions:
        return cls(kafka.batch_bytes_max, kafka.max_request_bytes, kafka.compression, kafka.compression_level)


def record_too_large(partition: TopicPartition, row_key: str, record_bytes: int, limit: str) -> RecordTooLargeError:
    topic, number = partition.topic, partition.partition
    return RecordTooLargeError(topic=topic, partition=number, row_key=row_key, record_bytes=record_bytes, limit=limit)


def record_lacks_key(partition: TopicPartition, value: bytes | None) -> RecordRefusedError:
    topic, number, record = partition.topic, partition.partition, f"value {printable_key(value)}"
    return RecordRefusedError(topic=topic, partition=number, record=record, reason=_LACKS_KEY, lacks_key=True)


def printable_key(key: bytes | None) -> str:
    """A record's key: as text if possible, else in hexadecimal; truncated to a readable length."""
    if key is None:
        return "null"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text.isprintable() and (text or not key) else "0x" + key.hex()
    return shown if len(shown) <= _CHARACTERS_MAX else shown[:_CHARACTERS_MAX] + "…"


Int32Array: TypeAlias = npt.NDArray[np.int32]
_UInt32Array: TypeAlias = npt.NDArray[np.uint32]

#: `partition_for_keys`' result for a null key, which does not determine a partition.
NO_PARTITION: Final = -1

# The constants of org.apache.kafka.common.utils.Utils.murmur2.
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24
_WORD: Final = struct.Struct("<I")
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
#: The bits of a word's first 0 to 3 bytes.
_LAST_BYTES: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)

#: A step costs NumPy 10 µs, whatever the number of rows, and Python a quarter of a microsecond per row (measured).
_FEW_ROWS: Final = 32
#: If the longest key exceeds the others by no more words than this, handling it separately is not worthwhile.
_MANY_WORDS: Final = 256


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition chosen by Java's default partitioner."""
    return (_murmur2_of_one(key) & _POSITIVE) % partition_count


def partition_for_keys(keys: ArrowColumn, partition_count: int) -> Int32Array:
    """The partition of each key among ``partition_count``; `NO_PARTITION` where the key is null."""
    if partition_count < 1:
        raise LocalProtocolError(
            operation="choose a partition by key",
            state=f"a topic of {partition_count} partitions",
            rule="a topic must have at least one partition",
        )
    keys = as_binary(keys, "key")
    partitions: Int32Array = (murmur2(keys) & np.int32(_POSITIVE)) % np.int32(partition_count)
    if keys.null_count:
        partitions[np.asarray(keys.is_null())] = NO_PARTITION
    return partitions


def murmur2(keys: ArrowColumn) -> Int32Array:
    """``Utils.murmur2`` of each key, as Java's int. A null has an empty key's hash.

    Takes one NumPy step for every four bytes of length shared by more than a few keys, whatever the number of rows.
    Strings hash as UTF-8, as with Java's StringSerializer.
    """
    layout = binary_layout(as_binary(keys, "key"))
    # Longest first, so that the rows that still have a whole word are always at the front.
    order = np.argsort(-layout.lengths, kind="stable")
    starts, lengths = layout.starts[order], layout.lengths[order]
    words = _words(layout)
    word_counts = lengths // _WORD.size
    longest, rest = (int(word_counts[row]) if row < len(order) else 0 for row in (0, _FEW_ROWS))
    step_count = rest if longest - rest > _MANY_WORDS else longest
    # How many rows have more than 0, 1, 2, ... whole words.
    actives = len(order) - np.searchsorted(word_counts[::-1], np.arange(step_count), side="right")
    hashed: _UInt32Array = lengths.astype(np.uint32) ^ np.uint32(_SEED)
    for step, active in enumerate(actives.tolist()):
        word = words[starts[:active] + _WORD.size * step]
        word *= _M
        word ^= word >> _R
        word *= _M
        hashed[:active] = hashed[:active] * _M ^ word
    # The last one to three bytes, if any, are one more word without the bytes after them.
    remaining = lengths % _WORD.size
    last = words[starts + (lengths - remaining)] & _LAST_BYTES[remaining]
    hashed = np.where(remaining > 0, (hashed ^ last) * np.uint32(_M), hashed)
    hashed ^= hashed >> 13
    hashed *= _M
    hashed ^= hashed >> 15
    for row in range(np.count_nonzero(word_counts > step_count)):
        hashed[row] = _murmur2_of_one(layout.data[starts[row] : starts[row] + lengths[row]].tobytes())
    result = np.empty(len(order), np.int32)
    result[order] = hashed.view(np.int32)
    return result


def _murmur2_of_one(key: bytes) -> int:
    hashed = _SEED ^ len(key)
    whole = len(key) - len(key) % _WORD.size
    for (word,) in _WORD.iter_unpack(key[:whole]):
        mixed = word * _M & _MASK
        hashed = hashed * _M & _MASK ^ (mixed ^ mixed >> _R) * _M & _MASK
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def _words(layout: BinaryLayout) -> _UInt32Array:
    """The little-endian word that begins at each byte of ``layout.data``; zeros follow the data."""
    padded = np.concatenate((layout.data, np.zeros(_WORD.size, np.uint8)))
    words: _UInt32Array = np.ndarray(len(layout.data) + 1, "<u4", padded.data, strides=(1,))
    return words


#: Up to this many partitions NumPy sorts by counting, in linear time.
_INT16_MAX: Final = 2**15 - 1


@dataclass(frozen=True)
class RecordColumns:
    """The columns of some rows; None for an absent one. A topic is never null, a partition is if the key decides."""

    topic: ArrowColumn | None
    partition: ArrowColumn | None
    key: ArrowColumn | None
    value: ArrowColumn
    headers: ArrowColumn | None


#: A partition and its rows, in their original order.
PartitionRows: TypeAlias = tuple[TopicPartition, EncodedRows]


class ArrowPartitioner(ABC):
    """Splits rows by partition. Subclasses provide topics, and the partitions for rows without a key."""

    def __init__(self, topic: str | None) -> None:
        self._topic = topic

    def split(self, columns: RecordColumns) -> Iterator[PartitionRows]:
        """Split the rows by topic and partition; within a partition they keep their order."""
        if not len(columns.value):
            return
        for topic, chosen in self._by_topic(columns):
            order, runs = runs_of(self._partitions(columns, topic, chosen))
            taken = chosen if order is None else pa.array(order) if chosen is None else chosen.take(pa.array(order))
            rows = EncodedRows.of(_take(columns.key, taken), _take(columns.value, taken), _take(columns.headers, taken))
            for partition, start, stop in runs:
                yield TopicPartition(topic, partition), rows.slice(start, stop)

    @abstractmethod
    def _partition_count(self, topic: str, columns: RecordColumns, row: int) -> int:
        """A topic's number of partitions; ``row`` is the first row for the topic."""

    @abstractmethod
    def _free_partitions(self, topic: str, count: int) -> Sequence[int]:
        """The partitions, among ``count``, for rows with neither a partition nor a key."""

    @abstractmethod
    def _no_partition(self, topic: str, count: int, columns: RecordColumns, row: int) -> Exception: ...

    def _by_topic(self, columns: RecordColumns) -> Iterator[tuple[str, ArrowColumn | None]]:
        if columns.topic is None:
            yield self._topic or "", None
            return
        encoded = columns.topic.dictionary_encode()
        topics = encoded.dictionary.cast(pa.binary()).to_pylist()
        order, runs = runs_of(np.asarray(encoded.indices))
        numbers = pa.array(np.arange(len(columns.topic)) if order is None else order)
        for code, start, stop in runs:
            # Bytes that are not UTF-8 are not a topic name, and must not become one.
            yield topics[code].decode(errors="backslashreplace"), numbers.slice(start, stop - start)

    def _partitions(self, columns: RecordColumns, topic: str, chosen: ArrowColumn | None) -> npt.NDArray[Any]:
        first, row_count = (0, len(columns.value)) if chosen is None else (chosen[0].as_py(), len(chosen))
        count = self._partition_count(topic, columns, first)
        partitions = np.full(row_count, NO_PARTITION, np.int32)
        key = _take(columns.key, chosen)
        if key is not None:
            partitions = partition_for_keys(key, count)
        given = _take(columns.partition, chosen)
        if given is not None:
            present = np.asarray(given.is_valid())
            numbers = np.asarray(pc.fill_null(given, 0))
            wrong = np.flatnonzero(present & ((numbers < 0) | (numbers >= count)))
            if len(wrong):
                row = int(wrong[0])
                raise self._no_partition(topic, count, columns, row if chosen is None else chosen[row].as_py())
            # Only now: numbers that pass the check fit, others might wrap around to a valid one.
            partitions = np.where(present, numbers, partitions).astype(np.int32)
        free = np.flatnonzero(partitions == NO_PARTITION)
        if len(free):
            partitions = partitions.copy()
            partitions[free] = spread(len(free), self._free_partitions(topic, count))
        return partitions


def spread(row_count: int, partitions: Sequence[int]) -> npt.NDArray[np.int32]:
    """Distribute rows over partitions in contiguous runs, as a sticky partitioner does for rows without a key."""
    chosen = np.arange(row_count, dtype=np.int64) * len(partitions) // max(row_count, 1)
    return np.asarray(partitions, dtype=np.int32)[chosen]


def _take(column: ArrowColumn | None, rows: ArrowColumn | None) -> Any:
    return column if column is None or rows is None else column.take(rows)


def runs_of(numbers: npt.NDArray[Any]) -> tuple[Int64Array | None, list[tuple[int, int, int]]]:
    """Group rows with the same number, smallest number first; within a group they keep their order.

    Returns the row order (None: unchanged), and each number with its first row in that order and one past its last.
    """
    if not len(numbers):
        return None, []
    order = None
    if (np.diff(numbers) < 0).any():
        narrow = numbers.astype(np.int16) if numbers.max() <= _INT16_MAX else numbers
        order = np.argsort(narrow, kind="stable")
        numbers = numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    bounds = [*starts.tolist(), len(numbers)]
    return order, [(number, *bound) for number, bound in zip(numbers[starts].tolist(), pairwise(bounds), strict=True)]


#: Buffered row bytes per encoder; above this, batches are built from the available rows.
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
#: Row bytes of several partitions encoded in one pass. More would not be faster, only copied once more.
TOGETHER_BYTES_MAX: Final = 1024 * 1024
#: Compression slightly enlarges incompressible data. Snappy's framing adds most of the five types, less than one
#: byte in sixty-four and a header, so this much room is left below max.message.bytes.
_COMPRESSION_LOSS: Final = 1 / 64
_COMPRESSION_LOSS_BYTES: Final = 512


class RowBuffer:
    """Collects rows for one partition until they fill a record batch.

    A task gets its rows in Arrow batches whose size is unrelated to record batches, so the rest of each is buffered
    and the next one is appended. The buffer holds slices that share the memory of the original columns. ``bytes_max``
    is for one batch, before compression.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: list[EncodedRows] = []
        self.kept_bytes: int = 0

    def add(self, rows: EncodedRows) -> list[EncodedRows]:
        """Add rows, and return those that fill batches, in order; one element per batch."""
        full: list[EncodedRows] = []
        if self._kept and self._kept[0].layout != rows.layout:
            full.extend(self.take())
        for number, part in enumerate(rows.cut(self._bytes_max, begun=self.kept_bytes)):
            if number:
                full.extend(self.take())
            if len(part):
                self._kept.append(part)
                self.kept_bytes += part.bytes_max
        return full

    def take(self) -> list[EncodedRows]:
        kept, self._kept, self.kept_bytes = self._kept, [], 0
        return [EncodedRows.joined(kept)] if kept else []


class RecordEncoder:
    """Collects rows by partition, and encodes them as soon as they fill a batch; asks once for a topic's limits."""

    def __init__(self, options: EncodingOptions, *, timestamp_ms: int, limits: Callable[[str], TopicLimits]) -> None:
        self._options = options
        self._timestamp_ms = timestamp_ms
        self._limits_of = cache(limits)
        self._buffers: dict[TopicPartition, RowBuffer] = {}
        self._kept_bytes = 0

    def append(self, partition: TopicPartition, rows: EncodedRows) -> Iterator[EncodedBatch]:
        """Add rows for one partition, in order; yields the batches that are now full."""
        if not len(rows):
            return
        if self._limits_of(partition.topic).needs_keys:
            _check_keys(partition, rows)
        buffer = self._buffers.get(partition)
        if buffer is None:
            # batch.size, or less if the topic allows less.
            option, allowed = self._options.batch_bytes_max, self._limits_of(partition.topic).message_bytes_max
            bytes_max = option if allowed is None else max(1, min(option, records_bytes_max(allowed)))
            buffer = self._buffers[partition] = RowBuffer(bytes_max)
        self._kept_bytes -= buffer.kept_bytes
        full = buffer.add(rows)
        self._kept_bytes += buffer.kept_bytes
        for batch_rows in full:
            yield from self._encode({partition: batch_rows})
        if self._kept_bytes > KEPT_BYTES_MAX:
            yield from self.finish()

    def finish(self) -> Iterator[EncodedBatch]:
        """Encode the buffered rows; the buffer is empty afterwards."""
        together: dict[TopicPartition, EncodedRows] = {}
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
        self._buffers.clear()
        self._kept_bytes = 0

    def _encode(self, batches: Mapping[TopicPartition, EncodedRows]) -> Iterator[EncodedBatch]:
        """Encode one batch of rows for each of several partitions, all with the same layout."""
        if not batches:
            return
        rows = EncodedRows.joined(list(batches.values()))
        counts = [len(batch_rows) for batch_rows in batches.values()]
        sections = encode_sections(rows, counts)
        for (partition, batch_rows), section in zip(batches.items(), sections, strict=True):
            payload = encode_unassigned_batch(
                section,
                timestamp_ms=self._timestamp_ms,
                compression=self._options.compression,
                level=self._options.compression_level,
            )
            row_key = None
            if len(batch_rows) == 1:
                keys = batch_rows.key.column
                row_key = printable_key(None if keys is None else keys[0].as_py())
                self._check_single(partition, row_key, payload, batch_rows.bytes_max)
            digest = batch_digest(partition.topic, section)
            yield EncodedBatch(partition, payload, section.record_count, row_key, digest=digest)

    def _check_single(self, partition: TopicPartition, row_key: str, payload: Buffer, record_bytes: int) -> None:
        """Refuse a record that exceeds a limit, before anything is sent for it."""
        limits = self._limits_of(partition.topic)
        if limits.message_bytes_max is not None and len(payload) > limits.message_bytes_max:
            raise record_too_large(partition, row_key, len(payload), limits.bytes_limit)
        if record_bytes > self._options.max_request_bytes:
            limit = f"max.request.size is {self._options.max_request_bytes}"
            raise record_too_large(partition, row_key, record_bytes, limit)


def records_bytes_max(message_bytes_max: int) -> int:
    """Record bytes that fit a batch of ``message_bytes_max`` bytes (max.message.bytes), with any compression."""
    return int((message_bytes_max - HEADER_BYTES - _COMPRESSION_LOSS_BYTES) * (1 - _COMPRESSION_LOSS))


def _check_keys(partition: TopicPartition, rows: EncodedRows) -> None:
    keys, values = rows.key.column, rows.value.column
    if keys is not None and not keys.null_count:
        return
    first = 0 if keys is None else int(np.flatnonzero(np.asarray(keys.is_null()))[0])
    raise record_lacks_key(partition, None if values is None else values[first].as_py())
