"""The dead-letter topic against a scripted broker: its letters are part of the transaction of their batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_2pc_sink.errors import ConfigurationError, UnknownTopicError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.sink.records.record_forwarder import ForwarderConnections, TopicMetadata
from spark_2pc_sink.sink.records.record_side import DeadLetterTopic
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.kafka.support import kafka_for, options_for
from tests.unit.options.test_sink_options import sink as sink_options

PAIR = ProducerIdAndEpoch(7, 1)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    running = FakeCluster(topics={"bad": 2, "orders": 1}, begun=PAIR)
    yield running
    running.close()


def check(fake: FakeCluster, topic: str = "bad") -> None:
    options = sink_options(kafka=kafka_for(fake), topic="orders", bad_rows="dead_letter", dead_letter_topic=topic)
    connections = ForwarderConnections(options.kafka)
    with Cluster(options.kafka) as cluster:
        DeadLetterTopic(options, "query", TopicMetadata(cluster, FakeClock()), connections).check()
    connections.drop()


def test_a_topic_that_cannot_take_letters_is_refused_at_the_start(fake: FakeCluster) -> None:
    check(fake)
    with pytest.raises(UnknownTopicError):
        check(fake, "missing")
    with pytest.raises(ConfigurationError):
        check(fake, "__consumer_offsets")
    fake.configs = {"max.message.bytes": "32767"}
    with pytest.raises(ConfigurationError, match=r"max\.message\.bytes of the topic is 32767"):
        check(fake)


def test_limits_are_asked_again_when_they_are_old_and_partitions_always() -> None:
    with fake_cluster(topics={"t": 2}) as fake, Cluster(options_for(fake, metadata_max_age_ms=5_000)) as cluster:
        clock = FakeClock()
        topics = TopicMetadata(cluster, clock)
        begun_s = clock.now
        for later_s, asked in ((0, 1), (4, 1), (6, 2), (10, 2)):
            clock.now = begun_s + later_s
            topics.limits("t")
            assert len(fake.of(Api.DESCRIBE_CONFIGS)) == asked
        before = len(fake.of(Api.METADATA))
        assert topics.counts(["t"]) == topics.counts(["t"]) == {"t": 2}
        assert len(fake.of(Api.METADATA)) == before + 2
