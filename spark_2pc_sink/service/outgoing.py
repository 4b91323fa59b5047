"""Outgoing records: the records that a block has sent, and their record batches. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.record_encoder import partition_for_key
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.wire.batch_format import record_content
from spark_2pc_sink.wire.record_batch import PlacedBatch, combine_digests, encode_listed_batches, format_digest

#: Types of a record's key and value.
Content: TypeAlias = bytes | str | None
#: A header's name and value.
Header: TypeAlias = tuple[str, Content]

_HEADERS: Final = "must be a list of (name, value) pairs"
_PAIR: Final = 2


@dataclass(frozen=True)
class OutgoingRecord:
    """One record that a block has sent; without a ``partition``, the key or `encode` chooses one."""

    topic: str
    key: bytes | None
    partition: int | None
    content: bytes

    @classmethod
    def of(
        cls, topic: str, key: Content, value: Content, *, headers: Sequence[Header] = (), partition: int | None = None
    ) -> OutgoingRecord:
        """A record from a caller's arguments, which are checked."""
        check_topic(topic)
        if topic is None:
            raise _refused("topic", topic, "must be the name of a topic", "pass it as the first argument")
        number: object = partition
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise _refused("partition", number, "must be None or a number from 0", "leave it out to let the key choose")
        encoded = _bytes("key", key)
        listed = [(_name(name), _bytes("headers", content)) for name, content in map(_pair, _listed(headers))]
        return cls(topic, encoded, partition, record_content(encoded, _bytes("value", value), listed))


@dataclass(frozen=True)
class EncodedRecords:
    """The records of a block as batches, those of each partition in the order of their records."""

    batches: tuple[PlacedBatch, ...]
    record_count: int
    digest: str


def encode(
    records: Sequence[OutgoingRecord],
    options: KafkaOptions,
    *,
    partition_count: Callable[[str], int],
    free: int,
    timestamp_ms: int,
) -> EncodedRecords:
    """Distribute records over partitions as Java's producer does, and encode them.

    ``free`` differs between transactions: it chooses the partition of records that have neither a partition nor a key.
    """
    contents: dict[TopicPartition, list[bytes]] = {}
    for record in records:
        partition = TopicPartition(record.topic, _partition_of(record, partition_count(record.topic), free))
        contents.setdefault(partition, []).append(record.content)
    batches = tuple(
        encode_listed_batches(
            contents,
            bytes_max=options.batch_bytes_max,
            timestamp_ms=timestamp_ms,
            compression=options.compression,
            level=options.compression_level,
        )
    )
    digest = combine_digests(*(batch.digest for batch in batches))
    return EncodedRecords(batches, len(records), format_digest(digest))


def _partition_of(record: OutgoingRecord, count: int, free: int) -> int:
    if record.partition is None:
        return free % count if record.key is None else partition_for_key(record.key, count)
    if record.partition >= count:
        rule = f"topic {record.topic!r} has {count} partitions, numbered from 0"
        raise _refused("partition", record.partition, rule, "leave it out to let the key choose")
    return record.partition


def _bytes(what: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise _refused(what, type(given).__name__, "must be bytes, text (sent as UTF-8) or None", "encode it first")


def _listed(given: object) -> list[object]:
    """Refuse a mapping: its names would be unpacked, and a name of two letters would become a name and a value."""
    if isinstance(given, Iterable) and not isinstance(given, Mapping | str | bytes):
        return list(given)
    raise _refused("headers", type(given).__name__, _HEADERS, "pass list(headers.items())")


def _pair(given: object) -> tuple[object, object]:
    if isinstance(given, tuple | list) and len(given) == _PAIR:
        return given[0], given[1]
    raise _refused("headers", given, _HEADERS, 'pass [("name", "value")]')


def _name(given: object) -> str:
    if not isinstance(given, str):
        raise _refused("headers", type(given).__name__, "the name of a header must be text", "convert it")
    return given


def _refused(what: str, value: object, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option=what, value=value, rule=rule, remedy=remedy)
