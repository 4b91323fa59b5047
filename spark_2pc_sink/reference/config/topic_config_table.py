"""The table of topic configs: Kafka's names, defaults and bounds (``LogConfig`` of Apache Kafka 4.4.0).

The server never removes a record by age or size and never compacts. So the configs that say when Kafka may remove
records (``retention.*``, ``cleanup.policy``, ``segment.ms`` and those of the cleaner) are taken with any value that
Kafka takes, kept and shown, and nothing is removed: a topic has what it would have in Kafka before the cleaner's next
run. Setting one is noted in the log. What would have to change anything else, and does not here, is refused with
INVALID_CONFIG unless it has the value that describes what is done anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from spark_2pc_sink.reference.config.property_entries import Kind

#: The largest 64-bit integer: Kafka's LONG.
INT64_MAX: Final = 2**63 - 1
_DAY_MS: Final = 24 * 60 * 60 * 1000


class Use(Enum):
    """What the server makes of a config."""

    HONOURED = auto()
    #: Says when records may be removed: taken with any valid value, and nothing is removed.
    KEPT = auto()
    #: Cannot matter on one node that flushes before it answers: taken with any valid value.
    INDIFFERENT = auto()
    #: Taken with the default only.
    FIXED = auto()


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """One config that a topic can have.

    Args:
        default: as text; where ``broker`` is a property of the server, that property's value counts.
        broker: Kafka's name of the broker property that gives the default, if there is one.
        at_least: smallest number, of numbers.
        at_most: largest number, of numbers.
        choices: all values, of texts; all elements, of lists.
    """

    name: str
    kind: Kind
    default: str
    use: Use
    doc: str
    broker: str | None = None
    at_least: int | None = None
    at_most: int | None = None
    choices: tuple[str, ...] = ()


def _number(
    name: str, default: int, use: Use, doc: str, *, broker: str | None = None, at_least: int | None = None
) -> TopicConfig:
    return TopicConfig(
        name=name, kind=Kind.LONG, default=str(default), use=use, doc=doc, broker=broker, at_least=at_least
    )


def _int(
    name: str, default: int, use: Use, doc: str, *, broker: str | None = None, at_least: int | None = None
) -> TopicConfig:
    return TopicConfig(
        name=name, kind=Kind.INT, default=str(default), use=use, doc=doc, broker=broker, at_least=at_least
    )


def _fixed(name: str, kind: Kind, default: str, doc: str, *, broker: str | None = None) -> TopicConfig:
    return TopicConfig(name=name, kind=kind, default=default, use=Use.FIXED, doc=doc, broker=broker)


def _text(name: str, default: str, use: Use, doc: str, *, broker: str, choices: tuple[str, ...]) -> TopicConfig:
    return TopicConfig(name=name, kind=Kind.STRING, default=default, use=use, doc=doc, broker=broker, choices=choices)


_CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_ONLY_PRODUCER: Final = "record batches are stored as the producer sent them"
_NO_TIERS: Final = "there is no remote storage"
_NO_THROTTLE: Final = "there is no replication"
_NOTHING_GOES: Final = "kept and shown; the server removes no records"
_NO_COMPACTION: Final = "kept and shown; the server compacts no logs"

_ROWS: Final = (
    TopicConfig(
        name="cleanup.policy",
        kind=Kind.LIST,
        default="delete",
        use=Use.KEPT,
        doc=_NOTHING_GOES,
        broker="log.cleanup.policy",
        choices=("compact", "delete"),
    ),
    _fixed("compression.gzip.level", Kind.INT, "-1", _ONLY_PRODUCER, broker="compression.gzip.level"),
    _fixed("compression.lz4.level", Kind.INT, "9", _ONLY_PRODUCER, broker="compression.lz4.level"),
    _text("compression.type", "producer", Use.FIXED, _ONLY_PRODUCER, broker="compression.type", choices=_CODECS),
    _fixed("compression.zstd.level", Kind.INT, "3", _ONLY_PRODUCER, broker="compression.zstd.level"),
    _number(
        "delete.retention.ms", _DAY_MS, Use.KEPT, _NO_COMPACTION, broker="log.cleaner.delete.retention.ms", at_least=0
    ),
    _fixed("errors.deadletterqueue.group.enable", Kind.BOOLEAN, "false", "there are no share groups"),
    _number(
        "file.delete.delay.ms", 60_000, Use.FIXED, "files go with their topic", broker="log.segment.delete.delay.ms"
    ),
    _number(
        "flush.messages",
        INT64_MAX,
        Use.INDIFFERENT,
        "records are on disk before the answer that needs them",
        broker="log.flush.interval.messages",
        at_least=1,
    ),
    _number(
        "flush.ms", INT64_MAX, Use.INDIFFERENT, "records are on disk before the answer that needs them", at_least=0
    ),
    _fixed("follower.replication.throttled.replicas", Kind.LIST, "", _NO_THROTTLE),
    _int(
        "index.interval.bytes",
        4096,
        Use.INDIFFERENT,
        "kept and shown; indexes are the server's own business",
        broker="log.index.interval.bytes",
        at_least=0,
    ),
    _fixed("leader.replication.throttled.replicas", Kind.LIST, "", _NO_THROTTLE),
    _fixed("local.retention.bytes", Kind.LONG, "-2", _NO_TIERS, broker="log.local.retention.bytes"),
    _fixed("local.retention.ms", Kind.LONG, "-2", _NO_TIERS, broker="log.local.retention.ms"),
    _number(
        "max.compaction.lag.ms",
        INT64_MAX,
        Use.KEPT,
        _NO_COMPACTION,
        broker="log.cleaner.max.compaction.lag.ms",
        at_least=1,
    ),
    _fixed(
        "max.decompressed.message.bytes",
        Kind.INT,
        "2147483639",
        "the server looks into few batches, and refuses those that become more than 64 MiB",
        broker="max.decompressed.message.bytes",
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        Use.HONOURED,
        "the largest record batch taken",
        broker="message.max.bytes",
        at_least=0,
    ),
    _number(
        "message.timestamp.after.max.ms",
        3_600_000,
        Use.HONOURED,
        "how far ahead of the server's clock the time of a record may be",
        broker="log.message.timestamp.after.max.ms",
        at_least=0,
    ),
    _number(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        Use.FIXED,
        "records may be as old as they like",
        broker="log.message.timestamp.before.max.ms",
        at_least=0,
    ),
    _text(
        "message.timestamp.type",
        "CreateTime",
        Use.HONOURED,
        "whether records keep the time that the producer gave them",
        broker="log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    ),
    TopicConfig(
        name="min.cleanable.dirty.ratio",
        kind=Kind.DOUBLE,
        default="0.5",
        use=Use.KEPT,
        doc=_NO_COMPACTION,
        broker="log.cleaner.min.cleanable.ratio",
        at_least=0,
        at_most=1,
    ),
    _number(
        "min.compaction.lag.ms", 0, Use.KEPT, _NO_COMPACTION, broker="log.cleaner.min.compaction.lag.ms", at_least=0
    ),
    _int(
        "min.insync.replicas",
        1,
        Use.FIXED,
        "there is one node, so a partition has one replica",
        broker="min.insync.replicas",
        at_least=1,
    ),
    _fixed("preallocate", Kind.BOOLEAN, "false", "segments grow as they are written", broker="log.preallocate"),
    _fixed("remote.copy.lag.bytes", Kind.LONG, "-1", _NO_TIERS, broker="log.remote.copy.lag.bytes"),
    _fixed("remote.copy.lag.ms", Kind.LONG, "0", _NO_TIERS, broker="log.remote.copy.lag.ms"),
    _fixed("remote.log.copy.disable", Kind.BOOLEAN, "false", _NO_TIERS),
    _fixed("remote.log.delete.on.disable", Kind.BOOLEAN, "false", _NO_TIERS),
    _fixed("remote.storage.enable", Kind.BOOLEAN, "false", _NO_TIERS),
    _number("retention.bytes", -1, Use.KEPT, _NOTHING_GOES, broker="log.retention.bytes"),
    _number("retention.ms", -1, Use.KEPT, _NOTHING_GOES, at_least=-1),
    _int(
        "segment.bytes",
        1_073_741_824,
        Use.HONOURED,
        "a segment file is rolled at this size",
        broker="log.segment.bytes",
        at_least=1_048_576,
    ),
    _int(
        "segment.index.bytes",
        10_485_760,
        Use.FIXED,
        "indexes grow as they are written",
        broker="log.index.size.max.bytes",
    ),
    _number("segment.jitter.ms", 0, Use.KEPT, "kept and shown; segments are rolled by size", at_least=0),
    _number("segment.ms", 7 * _DAY_MS, Use.KEPT, "kept and shown; segments are rolled by size", at_least=1),
    TopicConfig(
        name="unclean.leader.election.enable",
        kind=Kind.BOOLEAN,
        default="false",
        use=Use.INDIFFERENT,
        doc="one replica is the leader",
        broker="unclean.leader.election.enable",
    ),
)

#: Every config that a topic can have, by name, in the order of the names.
TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {row.name: row for row in _ROWS}
assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)
