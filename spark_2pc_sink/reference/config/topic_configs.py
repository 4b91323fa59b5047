"""Topic configs: their checks, their effective values, and the log settings that follow from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import INT32_MAX
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.config.property_entries import Kind, Source, property_entry
from spark_2pc_sink.reference.config.topic_config_table import INT64_MAX, TOPIC_CONFIGS, TopicConfig, Use
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, TRANSACTION_STATE
from spark_2pc_sink.reference.log.log_values import LogSettings

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
    """What the partitions of a topic go by.

    Args:
        configs: what is set for the topic.
        properties: give everything else.
    """
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
        configs: what is set for the topic.
        properties: where the defaults come from.
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
    """The elements of a config of type LIST; none of an empty text."""
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
