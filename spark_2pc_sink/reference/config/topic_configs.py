"""Broker properties as DescribeConfigs shows them, and topic configs: Kafka's names, defaults, bounds and checks.

The server never removes a record by age or size and never compacts. So the topic configs for Kafka's removal of
records (``retention.*``, ``cleanup.policy``, ``segment.ms`` and those of the cleaner) are accepted with any value that
Kafka accepts, stored and shown, and nothing is removed. Setting one is logged. Other configs without an effect here
are refused with INVALID_CONFIG unless the value matches the actual behaviour.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import Field, dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import INT32_MAX, refused, setting_of, shown_name
from spark_2pc_sink.reference.config.properties import FIXED, INT64_MAX, ROWS, BrokerProperties
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, TRANSACTION_STATE
from spark_2pc_sink.reference.log.partition_log import LogSettings

_log = logging.getLogger(__name__)

#: Texts that are lists to Kafka.
_LISTS: Final = frozenset({"listeners", "advertised.listeners", "sasl.enabled.mechanisms"})


class Source(Enum):
    """Source of a property's value; the numbers are those of DescribeConfigs (KIP-226)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Kind(Enum):
    """Kafka's type of a property; the numbers are those of DescribeConfigs v3 (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True)
class ConfigEntry:
    """As in DescribeConfigs; a secret's value is None. ``synonyms``: places that set it, the effective one first."""

    name: str
    kind: Kind
    value: str | None
    source: Source
    synonyms: tuple[tuple[str, str | None, Source], ...]
    doc: str


def property_entry(properties: BrokerProperties, name: str) -> ConfigEntry:
    value: str | None
    default: str | None
    if name in ROWS:
        item = ROWS[name]
        kind, doc = _kind(item), setting_of(item).why
        secret = kind is Kind.PASSWORD
        value, default = (None if secret else _shown(each) for each in (getattr(properties, item.name), item.default))
    else:
        fixed = FIXED[name]
        kind, doc, value, default = Kind[fixed.kind], fixed.rule, fixed.value, fixed.value
    source = Source.STATIC_BROKER_CONFIG if name in properties.given else Source.DEFAULT_CONFIG
    given = () if source is Source.DEFAULT_CONFIG else ((name, value, source),)
    defaults = () if default is None else ((name, default, Source.DEFAULT_CONFIG),)
    return ConfigEntry(name, kind, value, source, (*given, *defaults), doc)


def _kind(item: Field[Any]) -> Kind:
    about = setting_of(item)
    if about.secret:
        return Kind.PASSWORD
    if str(item.type) == "bool":
        return Kind.BOOLEAN
    if str(item.type) == "int":
        return Kind.INT if about.bounds is None or about.bounds[1] <= INT32_MAX else Kind.LONG
    return Kind.LIST if shown_name(item) in _LISTS else Kind.STRING


def _shown(value: object) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


class TopicConfig(NamedTuple):
    """``broker`` is the property with its default, if any; ``choices`` are the valid values, or elements of a list."""

    name: str
    kind: Kind
    default: str
    doc: str
    broker: str | None = None
    at_least: int | None = None
    at_most: int | None = None
    choices: tuple[str, ...] = ()
    use: Literal["free", "kept", "fixed"] = "fixed"


#: Accepted with any valid value: honoured, or without an effect on one node that flushes before it answers.
_free: Final = partial(TopicConfig, use="free")
#: Controls removal of records: accepted with any valid value; nothing is removed.
_kept: Final = partial(TopicConfig, use="kept")
#: Accepted with the default only.
_fixed: Final = TopicConfig

_BOOLEAN, _STRING, _INT, _LONG, _LIST = Kind.BOOLEAN, Kind.STRING, Kind.INT, Kind.LONG, Kind.LIST
_MAX: Final = str(INT64_MAX)
_DAY: Final = "86400000"
_CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_TIMES: Final = ("CreateTime", "LogAppendTime")
_ONLY_PRODUCER: Final = "record batches are stored as the producer sent them"
_AHEAD: Final = "how far the time of a record may be ahead of the server's clock"
_DECOMPRESSED: Final = "the server decompresses few batches, and refuses those of more than 64 MiB"
_KEEPS: Final = "whether records keep the time that the producer gave them"
_FLUSHED: Final = "records are on disk before the server answers"
_ONE_REPLICA: Final = "there is one node, so a partition has one replica"
_ANY_AGE: Final = "records may have any age"
_INDEXES: Final = "the bytes between two entries of an index are fixed"
_NO_TIERS: Final = "there is no remote storage"
_NO_THROTTLE: Final = "there is no replication"
_NOTHING_GOES: Final = "kept and shown; the server removes no records"
_NO_COMPACTION: Final = "kept and shown; the server compacts no logs"
_BY_SIZE: Final = "kept and shown; segments are rolled by size"

_ROWS: Final = (
    _kept("cleanup.policy", _LIST, "delete", _NOTHING_GOES, "log.cleanup.policy", choices=("compact", "delete")),
    _fixed("compression.gzip.level", _INT, "-1", _ONLY_PRODUCER, "compression.gzip.level"),
    _fixed("compression.lz4.level", _INT, "9", _ONLY_PRODUCER, "compression.lz4.level"),
    _fixed("compression.type", _STRING, "producer", _ONLY_PRODUCER, "compression.type", choices=_CODECS),
    _fixed("compression.zstd.level", _INT, "3", _ONLY_PRODUCER, "compression.zstd.level"),
    _kept("delete.retention.ms", _LONG, _DAY, _NO_COMPACTION, "log.cleaner.delete.retention.ms", 0),
    _fixed("errors.deadletterqueue.group.enable", _BOOLEAN, "false", "there are no share groups"),
    _fixed("file.delete.delay.ms", _LONG, "60000", "files go with their topic", "log.segment.delete.delay.ms"),
    _free("flush.messages", _LONG, _MAX, _FLUSHED, "log.flush.interval.messages", 1),
    _free("flush.ms", _LONG, _MAX, _FLUSHED, at_least=0),
    _fixed("follower.replication.throttled.replicas", _LIST, "", _NO_THROTTLE),
    _fixed("index.interval.bytes", _INT, "4096", _INDEXES, "log.index.interval.bytes", 0),
    _fixed("leader.replication.throttled.replicas", _LIST, "", _NO_THROTTLE),
    _fixed("local.retention.bytes", _LONG, "-2", _NO_TIERS, "log.local.retention.bytes"),
    _fixed("local.retention.ms", _LONG, "-2", _NO_TIERS, "log.local.retention.ms"),
    _kept("max.compaction.lag.ms", _LONG, _MAX, _NO_COMPACTION, "log.cleaner.max.compaction.lag.ms", 1),
    _fixed("max.decompressed.message.bytes", _INT, "2147483639", _DECOMPRESSED, "max.decompressed.message.bytes"),
    _free("max.message.bytes", _INT, "1048588", "the largest record batch accepted", "message.max.bytes", 0),
    _free("message.timestamp.after.max.ms", _LONG, "3600000", _AHEAD, "log.message.timestamp.after.max.ms", 0),
    _fixed("message.timestamp.before.max.ms", _LONG, _MAX, _ANY_AGE, "log.message.timestamp.before.max.ms", 0),
    _free("message.timestamp.type", _STRING, "CreateTime", _KEEPS, "log.message.timestamp.type", choices=_TIMES),
    _kept("min.cleanable.dirty.ratio", Kind.DOUBLE, "0.5", _NO_COMPACTION, "log.cleaner.min.cleanable.ratio", 0, 1),
    _kept("min.compaction.lag.ms", _LONG, "0", _NO_COMPACTION, "log.cleaner.min.compaction.lag.ms", 0),
    _fixed("min.insync.replicas", _INT, "1", _ONE_REPLICA, "min.insync.replicas", 1),
    _fixed("preallocate", _BOOLEAN, "false", "segments grow as they are written", "log.preallocate"),
    _fixed("remote.copy.lag.bytes", _LONG, "-1", _NO_TIERS, "log.remote.copy.lag.bytes"),
    _fixed("remote.copy.lag.ms", _LONG, "0", _NO_TIERS, "log.remote.copy.lag.ms"),
    _fixed("remote.log.copy.disable", _BOOLEAN, "false", _NO_TIERS),
    _fixed("remote.log.delete.on.disable", _BOOLEAN, "false", _NO_TIERS),
    _fixed("remote.storage.enable", _BOOLEAN, "false", _NO_TIERS),
    _kept("retention.bytes", _LONG, "-1", _NOTHING_GOES, "log.retention.bytes"),
    _kept("retention.ms", _LONG, "-1", _NOTHING_GOES, at_least=-1),
    _free("segment.bytes", _INT, "1073741824", "size of a segment file", "log.segment.bytes", 1_048_576),
    _fixed("segment.index.bytes", _INT, "10485760", "indexes grow as they are written", "log.index.size.max.bytes"),
    _kept("segment.jitter.ms", _LONG, "0", _BY_SIZE, at_least=0),
    _kept("segment.ms", _LONG, "604800000", _BY_SIZE, at_least=1),
    _free("unclean.leader.election.enable", _BOOLEAN, "false", _ONE_REPLICA, "unclean.leader.election.enable"),
)

#: Every topic config by name, sorted by name.
TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {row.name: row for row in _ROWS}
assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)

_MIN_LAG: Final = "min.compaction.lag.ms"
_MAX_LAG: Final = "max.compaction.lag.ms"


def check_topic_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Validate a topic's configs, also against each other, and return them as stored."""
    checked = {name: check_topic_config(name, value) for name, value in configs.items()}
    least, most = (int(checked.get(name, TOPIC_CONFIGS[name].default)) for name in (_MIN_LAG, _MAX_LAG))
    if least > most:
        raise _refused(_MIN_LAG, str(least), f"Value must be no more than {_MAX_LAG} ({most})")
    return checked


def check_topic_config(name: str, value: str) -> str:
    """Validate one value, and return it as stored.

    Raises ConfigurationError for an unknown config, an invalid value, or one that the server does not honour; its
    ``rule`` is in Kafka's words if Kafka has it too.
    """
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        raise _refused(name, value, "unknown topic config")
    text = value.strip()
    _check_value(config, text)
    if config.use == "fixed" and text.lower() != config.default.lower():
        raise _refused(name, value, f"{config.doc}, so only {config.default!r} is accepted")
    return text


def _check_value(config: TopicConfig, text: str) -> None:
    if config.kind is Kind.BOOLEAN:
        if text.lower() not in {"true", "false"}:
            raise _refused(config.name, text, "Expected value to be either true or false")
    elif config.kind in {Kind.STRING, Kind.LIST}:
        for element in list_elements(text) if config.kind is Kind.LIST else [text]:
            if config.choices and element not in config.choices:
                raise _refused(config.name, element, f"String must be one of: {', '.join(config.choices)}")
    else:
        number = _number(config.kind, text)
        if number is None:
            raise _refused(config.name, text, f"Not a number of type {config.kind.name}")
        if config.at_least is not None and not number >= config.at_least:
            raise _refused(config.name, text, f"Value must be at least {config.at_least}")
        if config.at_most is not None and not number <= config.at_most:
            raise _refused(config.name, text, f"Value must be no more than {config.at_most}")


def _number(kind: Kind, text: str) -> float | None:
    try:
        if kind is Kind.DOUBLE:
            return float(text)
        number = int(text)
    except ValueError:
        return None
    most = INT32_MAX if kind is Kind.INT else INT64_MAX
    return number if "_" not in text and -most - 1 <= number <= most else None


def list_elements(text: str) -> list[str]:
    return [element.strip() for element in text.split(",")] if text.strip() else []


def _refused(name: str, value: str, rule: str) -> ConfigurationError:
    return refused(name, value, rule, "leave it out, or correct it")


def note_topic_configs(topic: str, configs: Mapping[str, str]) -> None:
    known = TOPIC_CONFIGS
    if idle := [name for name in configs if known[name].use == "kept" and configs[name] != known[name].default]:
        _log.warning("topic %s: %s has no effect: records are never removed", topic, ", ".join(sorted(idle)))


def log_settings(configs: Mapping[str, str], properties: BrokerProperties) -> LogSettings:
    def effective(name: str) -> str:
        if name in configs:
            return configs[name]
        config = TOPIC_CONFIGS[name]
        return str(getattr(properties, (config.broker or name).replace(".", "_"), config.default))

    return LogSettings(
        segment_bytes=int(effective("segment.bytes")),
        message_max_bytes=int(effective("max.message.bytes")),
        log_append_time=effective("message.timestamp.type") == "LogAppendTime",
        timestamp_after_max_ms=int(effective("message.timestamp.after.max.ms")),
        verification=properties.transaction_partition_verification_enable,
        producer_id_expiration_ms=properties.producer_id_expiration_ms,
        cleanup_policy=frozenset(list_elements(effective("cleanup.policy"))),
    )


def internal_topics(properties: BrokerProperties) -> tuple[tuple[str, int, dict[str, str]], ...]:
    """Name, partitions and configs (Kafka: ``transactionTopicConfigs`` and ``groupMetadataTopicConfigs``)."""
    transactions = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": str(properties.transaction_state_log_segment_bytes),
        "unclean.leader.election.enable": "false",
    }
    offsets = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(properties.offsets_topic_segment_bytes),
    }
    return (
        (TRANSACTION_STATE, properties.transaction_state_log_num_partitions, transactions),
        (GROUP_OFFSETS, properties.offsets_topic_num_partitions, offsets),
    )


def topic_entries(configs: Mapping[str, str], properties: BrokerProperties) -> tuple[ConfigEntry, ...]:
    """The configs of a topic, set or not, by name (Kafka: ``ConfigHelper.createTopicConfigEntry``)."""
    entries = []
    for name, config in TOPIC_CONFIGS.items():
        synonyms: list[tuple[str, str | None, Source]] = []
        if name in configs:
            synonyms.append((name, configs[name], Source.DYNAMIC_TOPIC_CONFIG))
        if config.broker in ROWS or config.broker in FIXED:
            synonyms += property_entry(properties, config.broker).synonyms
        elif config.broker is not None:
            synonyms.append((config.broker, config.default, Source.DEFAULT_CONFIG))
        _, value, source = synonyms[0] if synonyms else (name, config.default, Source.DEFAULT_CONFIG)
        entries.append(ConfigEntry(name, config.kind, value, source, tuple(synonyms), config.doc))
    return tuple(entries)
