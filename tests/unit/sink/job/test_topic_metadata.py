"""What the driver knows of a topic from batch to batch."""

from __future__ import annotations

from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.sink.records.record_forwarder import TopicMetadata
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.cluster import fake_cluster
from tests.unit.producer.support import options_for


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
