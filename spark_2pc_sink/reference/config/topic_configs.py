"""Broker properties as DescribeConfigs shows them, and topic configs: Kafka's names, defaults, bounds and checks.

The server never removes a record by age or size and never compacts. So the topic configs that say when Kafka may remove
records (``retention.*``, ``cleanup.policy``, ``segment.ms`` and those of the cleaner) are taken with any value that
Kafka takes, kept and shown, and nothing is removed: a topic has what it would have in Kafka before the cleaner's next
run. Setting one is noted in the log. What would have to change anything else, and does not here, is refused with
INVALID_CONFIG unless it has the value that describes what is done anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass
from enum import Enum, auto
from typing import Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import INT32_MAX, setting_of, shown_name
from spark_2pc_sink.reference.config.properties import FIXED, ROWS, BrokerProperties
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, TRANSACTION_STATE
from spark_2pc_sink.reference.log.log_values import LogSettings

#: Texts that are lists to Kafka.
_LISTS: Final = frozenset({"listeners", "advertised.listeners", "sasl.enabled.mechanisms"})


class Source(Enum):
    """Where the value of a property comes from; the numbers are those of DescribeConfigs (KIP-226)."""

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


@dataclass(frozen=True, kw_only=True)
class PropertyEntry:
    """One property as DescribeConfigs shows it.

    Args:
        value: its text; None hides a secret one.
        default: its text, None where there is none.
        doc: what it does.
    """

    name: str
    value: str | None
    source: Source
    kind: Kind
    default: str | None
    doc: str

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD


def property_entries(properties: BrokerProperties) -> tuple[PropertyEntry, ...]:
    found = (property_entry(properties, name) for name in sorted((*ROWS, *FIXED)))
    return tuple(entry for entry in found if entry is not None)


def property_entry(properties: BrokerProperties, name: str) -> PropertyEntry | None:
    """One property, set or not; None where the server has none of this name."""
    if name in ROWS:
        return _own_entry(properties, name, ROWS[name])
    fixed = FIXED.get(name)
    if fixed is None:
        return None
    return PropertyEntry(
        name=name,
        value=fixed.value,
        source=_source(properties, name),
        kind=Kind[fixed.kind],
        default=fixed.value,
        doc=fixed.rule,
    )


def _source(properties: BrokerProperties, name: str) -> Source:
    return Source.STATIC_BROKER_CONFIG if name in properties.given else Source.DEFAULT_CONFIG


def _own_entry(properties: BrokerProperties, name: str, item: Field[Any]) -> PropertyEntry:
    about = setting_of(item)
    return PropertyEntry(
        name=name,
        value=None if about.secret else _shown(getattr(properties, item.name)),
        source=_source(properties, name),
        kind=_kind(item),
        default=None if about.secret else _shown(item.default),
        doc=about.why,
    )


def _kind(item: Field[Any]) -> Kind:
    about = setting_of(item)
    if about.secret:
        return Kind.PASSWORD
    if str(item.type) == "bool":
        return Kind.BOOLEAN
    if str(item.type) == "int":
        return Kind.INT if (about.at_most or 0) <= INT32_MAX else Kind.LONG
    return Kind.LIST if shown_name(item) in _LISTS else Kind.STRING


def _shown(value: object) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


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


_MIN_LAG: Final = "min.compaction.lag.ms"
_MAX_LAG: Final = "max.compaction.lag.ms"
_log = logging.getLogger(__name__)


def check_topic_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """The configs of a topic as they are kept.

    Raises:
        ConfigurationError: as `check_topic_config` says, or two that contradict each other.
    """
    checked = {name: check_topic_config(name, value) for name, value in configs.items()}
    least, most = (int(checked.get(name, TOPIC_CONFIGS[name].default)) for name in (_MIN_LAG, _MAX_LAG))
    if least > most:
        raise _refused(_MIN_LAG, str(least), f"Value must be no more than {_MAX_LAG} ({most})")
    return checked


def check_topic_config(name: str, value: str) -> str:
    """The value as it is kept.

    Raises:
        ConfigurationError: no such config, no value of it, or one that the server does not honour. ``rule`` says which
            of Kafka's rules is broken, in Kafka's words where Kafka has it too.
    """
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        raise _refused(name, value, "there is no such topic config")
    text = value.strip()
    _CHECKS[config.kind](config, text)
    if config.use is Use.FIXED and text.lower() != config.default.lower():
        raise _refused(name, value, f"{config.doc}, so only {config.default!r} is taken")
    return text


def note_topic_configs(topic: str, configs: Mapping[str, str]) -> None:
    """Say in the log which configs of a topic are kept without effect."""
    idle = [
        name for name in configs if TOPIC_CONFIGS[name].use is Use.KEPT and configs[name] != TOPIC_CONFIGS[name].default
    ]
    if idle:
        _log.warning("topic %s: %s is kept and shown, but no records are ever removed", topic, ", ".join(sorted(idle)))


def log_settings(configs: Mapping[str, str], properties: BrokerProperties) -> LogSettings:
    """What the partitions of a topic go by."""
    return LogSettings(
        segment_bytes=int(_effective("segment.bytes", configs, properties)),
        message_max_bytes=int(_effective("max.message.bytes", configs, properties)),
        log_append_time=_effective("message.timestamp.type", configs, properties) == "LogAppendTime",
        timestamp_after_max_ms=int(_effective("message.timestamp.after.max.ms", configs, properties)),
        verification=properties.transaction_partition_verification_enable,
        producer_id_expiration_ms=properties.producer_id_expiration_ms,
        cleanup_policy=frozenset(list_elements(_effective("cleanup.policy", configs, properties))),
    )


def _effective(name: str, configs: Mapping[str, str], properties: BrokerProperties) -> str:
    """The value that counts: the topic's, else the broker's where it has such a property, else the default."""
    if name in configs:
        return configs[name]
    config = TOPIC_CONFIGS[name]
    return str(getattr(properties, (config.broker or name).replace(".", "_"), config.default))


@dataclass(frozen=True)
class InternalTopic:
    """A topic of the coordinators, as Kafka creates it."""

    name: str
    partitions: int
    configs: Mapping[str, str]


def internal_topics(properties: BrokerProperties) -> tuple[InternalTopic, InternalTopic]:
    """The coordinators' topics (Kafka: ``transactionTopicConfigs`` and ``groupMetadataTopicConfigs``)."""
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
        InternalTopic(TRANSACTION_STATE, properties.transaction_state_log_num_partitions, transactions),
        InternalTopic(GROUP_OFFSETS, properties.offsets_topic_num_partitions, offsets),
    )


@dataclass(frozen=True)
class ConfigEntry:
    """One config of a topic as DescribeConfigs and CreateTopics show it.

    Args:
        synonyms: where the value could come from, the one that counts first.
    """

    config: TopicConfig
    value: str
    source: Source
    synonyms: tuple[tuple[str, str, Source], ...]


def topic_entries(
    configs: Mapping[str, str], properties: BrokerProperties, wanted: Callable[[str], bool] = lambda _name: True
) -> tuple[ConfigEntry, ...]:
    """The configs of a topic, set or not, by name (Kafka: ``ConfigHelper.createTopicConfigEntry``).

    Args:
        wanted: which names; every one unless given.
    """
    return tuple(
        _entry(config, configs.get(name), properties) for name, config in TOPIC_CONFIGS.items() if wanted(name)
    )


def _entry(config: TopicConfig, own: str | None, properties: BrokerProperties) -> ConfigEntry:
    synonyms: list[tuple[str, str, Source]] = []
    if own is not None:
        synonyms.append((config.name, own, Source.DYNAMIC_TOPIC_CONFIG))
    if config.broker is not None:
        broker = property_entry(properties, config.broker)
        if broker is not None and broker.source is not Source.DEFAULT_CONFIG:
            synonyms.append((config.broker, broker.value or "", broker.source))
        default = config.default if broker is None else broker.default or ""
        synonyms.append((config.broker, default, Source.DEFAULT_CONFIG))
    _, value, source = synonyms[0] if synonyms else (config.name, config.default, Source.DEFAULT_CONFIG)
    return ConfigEntry(config, value, source, tuple(synonyms))


def _check_integer(config: TopicConfig, text: str) -> None:
    most = INT32_MAX if config.kind is Kind.INT else INT64_MAX
    try:
        number = int(text) if "_" not in text else None
    except ValueError:
        number = None
    if number is None or not -most - 1 <= number <= most:
        raise _refused(config.name, text, f"Not a number of type {config.kind.name}")
    _check_bounds(config, text, number)


def _check_double(config: TopicConfig, text: str) -> None:
    try:
        number = float(text)
    except ValueError as error:
        raise _refused(config.name, text, "Not a number of type DOUBLE") from error
    _check_bounds(config, text, number)


def _check_bounds(config: TopicConfig, text: str, number: float) -> None:
    if config.at_least is not None and not number >= config.at_least:
        raise _refused(config.name, text, f"Value must be at least {config.at_least}")
    if config.at_most is not None and not number <= config.at_most:
        raise _refused(config.name, text, f"Value must be no more than {config.at_most}")


def _check_boolean(config: TopicConfig, text: str) -> None:
    if text.lower() not in {"true", "false"}:
        raise _refused(config.name, text, "Expected value to be either true or false")


def _check_text(config: TopicConfig, text: str) -> None:
    if config.choices and text not in config.choices:
        raise _refused(config.name, text, f"String must be one of: {', '.join(config.choices)}")


def _check_list(config: TopicConfig, text: str) -> None:
    for element in list_elements(text):
        if config.choices and element not in config.choices:
            raise _refused(config.name, element, f"String must be one of: {', '.join(config.choices)}")


def list_elements(text: str) -> list[str]:
    return [element.strip() for element in text.split(",")] if text.strip() else []


_CHECKS: Final[Mapping[Kind, Callable[[TopicConfig, str], None]]] = {
    Kind.BOOLEAN: _check_boolean,
    Kind.STRING: _check_text,
    Kind.INT: _check_integer,
    Kind.LONG: _check_integer,
    Kind.DOUBLE: _check_double,
    Kind.LIST: _check_list,
}


def _refused(name: str, value: str, rule: str) -> ConfigurationError:
    return ConfigurationError(option=name, value=value, rule=rule, remedy="leave it out, or correct it")
