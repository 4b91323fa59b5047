"""Which topic configs are taken, with which values, and what they come to."""

from __future__ import annotations

import logging

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.config.topic_configs import (
    TOPIC_CONFIGS,
    Kind,
    Source,
    Use,
    check_topic_config,
    check_topic_configs,
    internal_topics,
    list_elements,
    log_settings,
    note_topic_configs,
    topic_entries,
)
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, TRANSACTION_STATE
from spark_2pc_sink.reference.log.log_values import LogSettings
from spark_2pc_sink.reference.metadata.catalog_state import colliding, name_fault

#: Names, types and defaults as DescribeConfigs of Kafka 4.4.0 gives them for a new topic.
KAFKA = {
    "cleanup.policy": (7, "delete"),
    "compression.gzip.level": (3, "-1"),
    "compression.lz4.level": (3, "9"),
    "compression.type": (2, "producer"),
    "compression.zstd.level": (3, "3"),
    "delete.retention.ms": (5, "86400000"),
    "errors.deadletterqueue.group.enable": (1, "false"),
    "file.delete.delay.ms": (5, "60000"),
    "flush.messages": (5, "9223372036854775807"),
    "flush.ms": (5, "9223372036854775807"),
    "follower.replication.throttled.replicas": (7, ""),
    "index.interval.bytes": (3, "4096"),
    "leader.replication.throttled.replicas": (7, ""),
    "local.retention.bytes": (5, "-2"),
    "local.retention.ms": (5, "-2"),
    "max.compaction.lag.ms": (5, "9223372036854775807"),
    "max.decompressed.message.bytes": (3, "2147483639"),
    "max.message.bytes": (3, "1048588"),
    "message.timestamp.after.max.ms": (5, "3600000"),
    "message.timestamp.before.max.ms": (5, "9223372036854775807"),
    "message.timestamp.type": (2, "CreateTime"),
    "min.cleanable.dirty.ratio": (6, "0.5"),
    "min.compaction.lag.ms": (5, "0"),
    "min.insync.replicas": (3, "1"),
    "preallocate": (1, "false"),
    "remote.copy.lag.bytes": (5, "-1"),
    "remote.copy.lag.ms": (5, "0"),
    "remote.log.copy.disable": (1, "false"),
    "remote.log.delete.on.disable": (1, "false"),
    "remote.storage.enable": (1, "false"),
    "retention.bytes": (5, "-1"),
    "retention.ms": (5, "-1"),  # 604800000 in Kafka: nothing is removed here, and it says so
    "segment.bytes": (3, "1073741824"),
    "segment.index.bytes": (3, "10485760"),
    "segment.jitter.ms": (5, "0"),
    "segment.ms": (5, "604800000"),
    "unclean.leader.election.enable": (1, "false"),
}


def test_names_types_and_defaults_are_kafkas() -> None:
    entries = topic_entries({}, BrokerProperties())
    assert {each.name: (each.kind.value, each.value) for each in entries} == KAFKA


@pytest.mark.parametrize("name", KAFKA)
def test_every_default_is_a_value_that_can_be_set(name: str) -> None:
    assert check_topic_config(name, KAFKA[name][1]) == KAFKA[name][1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact, delete"),
        ("cleanup.policy", ""),
        ("segment.ms", "1"),
        ("segment.bytes", "1048576"),
        ("max.message.bytes", "0"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("flush.messages", "1"),
        ("unclean.leader.election.enable", "TRUE"),
        ("preallocate", "FALSE"),
    ],
)
def test_values_that_are_taken(name: str, value: str) -> None:
    assert check_topic_config(name, f" {value} ") == value


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("max.message.bytes", "99999999999", "Not a number of type INT"),
        ("max.message.bytes", "-1", "Value must be at least 0"),
        ("segment.bytes", "1", "Value must be at least 1048576"),
        ("min.insync.replicas", "0", "Value must be at least 1"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "-0.1", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "nan", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("cleanup.policy", "foo", "String must be one of: compact, delete"),
        ("cleanup.policy", "compact,foo", "String must be one of: compact, delete"),
        ("message.timestamp.type", "Foo", "String must be one of: CreateTime, LogAppendTime"),
        ("compression.type", "foo", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("nonsense", "1", "unknown topic config"),
        # Kafka takes these, and would do something else than this server does.
        ("compression.type", "gzip", "stored as the producer sent them"),
        ("min.insync.replicas", "2", "there is one node"),
        ("preallocate", "true", "segments grow as they are written"),
        ("remote.storage.enable", "true", "there is no remote storage"),
        ("message.timestamp.before.max.ms", "5", "records may have any age"),
    ],
)
def test_values_that_are_refused(name: str, value: str, rule: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_topic_config(name, value)
    assert refused.value.option == name
    assert rule in refused.value.rule


def test_two_configs_that_contradict_each_other_are_refused() -> None:
    check_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigurationError, match=r"no more than max.compaction.lag.ms \(5\)"):
        check_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_what_a_partition_goes_by() -> None:
    broker = BrokerProperties.from_mapping({"message.max.bytes": "500", "log.segment.bytes": "2000000"})
    assert log_settings({}, BrokerProperties()) == LogSettings()
    assert log_settings({}, broker) == LogSettings(message_max_bytes=500, segment_bytes=2_000_000)
    own = {
        "max.message.bytes": "600",
        "segment.bytes": "3000000",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.after.max.ms": "7",
    }
    assert log_settings(own, broker) == LogSettings(
        message_max_bytes=600, segment_bytes=3_000_000, log_append_time=True, timestamp_after_max_ms=7
    )
    unverified = BrokerProperties(transaction_partition_verification_enable=False, producer_id_expiration_ms=9)
    assert log_settings({}, unverified) == LogSettings(verification=False, producer_id_expiration_ms=9)


def test_a_value_is_shown_with_all_places_it_could_come_from() -> None:
    """KIP-226: the topic's own, the broker's, the default; the first of them counts."""
    broker = BrokerProperties.from_mapping({"message.max.bytes": "500"})
    (own,) = [each for each in topic_entries({"max.message.bytes": "600"}, broker) if each.value == "600"]
    assert own.source is Source.DYNAMIC_TOPIC_CONFIG
    assert own.synonyms == (
        ("max.message.bytes", "600", Source.DYNAMIC_TOPIC_CONFIG),
        ("message.max.bytes", "500", Source.STATIC_BROKER_CONFIG),
        ("message.max.bytes", "1048588", Source.DEFAULT_CONFIG),
    )
    (inherited,) = [each for each in topic_entries({}, broker) if each.name == "max.message.bytes"]
    assert (inherited.value, inherited.source) == ("500", Source.STATIC_BROKER_CONFIG)
    (alone,) = [each for each in topic_entries({}, broker) if each.name == "segment.ms"]
    assert (alone.value, alone.source, alone.synonyms) == ("604800000", Source.DEFAULT_CONFIG, ())


def test_the_coordinators_topics_are_made_as_kafka_makes_them() -> None:
    properties = BrokerProperties(
        transaction_state_log_num_partitions=4, offsets_topic_num_partitions=5, offsets_topic_segment_bytes=2_000_000
    )
    rows = {name: (partitions, configs) for name, partitions, configs in internal_topics(properties)}
    assert (rows[TRANSACTION_STATE][0], rows[GROUP_OFFSETS][0]) == (4, 5)
    compacted = {"cleanup.policy": "compact"}
    assert {**compacted, "segment.bytes": "104857600"}.items() <= rows[TRANSACTION_STATE][1].items()
    assert {**compacted, "segment.bytes": "2000000"}.items() <= rows[GROUP_OFFSETS][1].items()


def test_configs_without_effect_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        note_topic_configs("orders", {"retention.ms": "-1", "max.message.bytes": "5", "cleanup.policy": "delete"})
        assert not caplog.records
        note_topic_configs("orders", {"retention.ms": "5", "cleanup.policy": "compact"})
    assert "orders: cleanup.policy, retention.ms" in caplog.text


def test_every_use_has_a_row_and_lists_are_read_as_kafka_reads_them() -> None:
    assert {row.use for row in TOPIC_CONFIGS.values()} == set(Use)
    assert all(not row.choices or row.kind in {Kind.STRING, Kind.LIST} for row in TOPIC_CONFIGS.values())
    assert list_elements(" a, b ") == ["a", "b"]
    assert list_elements(" ") == []


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__x"])
def test_legal_names(name: str) -> None:
    assert name_fault(name) is None


def test_names_that_cannot_be_told_apart_in_metrics() -> None:
    assert colliding("a.b", ["a", "a_b"]) == "a_b"
    assert colliding("a_b.c", ["a.b_c"]) == "a.b_c"
    assert colliding("a.b", ["a.b"]) is None
    assert colliding("ab", ["a.b"]) is None
