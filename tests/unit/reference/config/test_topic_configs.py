"""Which topic configs are taken, with which values, and what they come to."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.config.topic_configs import check_topic_config, check_topic_configs, log_settings
from spark_2pc_sink.reference.log.partition_log import LogSettings


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Value must be at least 0"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("cleanup.policy", "foo", "String must be one of: compact, delete"),
        ("compression.type", "foo", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("nonsense", "1", "unknown topic config"),
        # Kafka takes these, and would do something else than this server does.
        ("compression.type", "gzip", "stored as the producer sent them"),
        ("min.insync.replicas", "2", "there is one node"),
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
