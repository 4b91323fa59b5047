"""The topics and logs of a batch as they are now: asked at once, and in the ordinary way where that does not do."""

from __future__ import annotations

import uuid

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.log_reader import view_logs
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.wire import answer, hang_up, keep_silent
from tests.unit.producer.support import T0, T1, options_for

ID, TEXT = uuid.UUID(int=7), "AAAAAAAAAAAAAAAAAAAABw"
GONE = TopicPartition("gone", 0)


def view(cluster: Cluster, *partitions: TopicPartition, starts: bool = False, limit_ms: int = 5_000) -> LogsView:
    return view_logs(cluster, partitions or (T0, T1), cluster.deadline(limit_ms), starts=starts)


@pytest.fixture
def met(fake: FakeCluster, cluster: Cluster) -> Cluster:
    """Connected, and told of the topic."""
    fake.topic_ids["t"] = ID
    fake.partitions[T0].fill(5)
    fake.partitions[T1].fill(9)
    cluster.partition_counts(["t"])
    fake.received.clear()
    return cluster


FOUND = LogsView({"t": TEXT}, {T0: 5, T1: 9})


def test_one_metadata_and_one_list_offsets_on_open_connections(fake: FakeCluster, met: Cluster) -> None:
    """KIP-516: what a running driver asks after every batch."""
    view(met)
    fake.received.clear()
    assert view(met) == FOUND
    assert [Api(each.api) for each in fake.received] == [Api.METADATA, Api.LIST_OFFSETS]


def test_the_logs_of_two_leaders() -> None:
    """One request to each, the first time by a new connection."""
    with fake_cluster(brokers=2) as fake, Cluster(options_for(fake)) as cluster:
        fake.partitions[T1].fill(3)
        for _ in range(2):
            assert view(cluster) == LogsView({"t": ""}, {T0: 0, T1: 3})
        assert {each.node_id for each in fake.of(Api.LIST_OFFSETS)} == {0, 1}


def test_the_starts_of_logs_are_asked_for_where_they_matter(fake: FakeCluster, met: Cluster) -> None:
    fake.partitions[T1].log.delete_before(4)
    assert view(met, starts=True) == LogsView({"t": TEXT}, FOUND.ends, {T0: 0, T1: 4})


@pytest.mark.parametrize("api", [Api.METADATA, Api.LIST_OFFSETS])
@pytest.mark.parametrize("step", [hang_up, answer(Code.LEADER_NOT_AVAILABLE)])
def test_an_answer_that_is_none_is_asked_for_again(fake: FakeCluster, met: Cluster, api: Api, step: object) -> None:
    """B14: a leader has just moved, a connection has just ended."""
    view(met)
    fake.script(api, step)  # type: ignore[arg-type]
    assert view(met) == FOUND


def test_a_topic_made_anew_has_another_id(fake: FakeCluster, met: Cluster) -> None:
    """B18."""
    view(met)
    fake.topic_ids["t"] = uuid.UUID(int=8)
    assert view(met).topic_ids == {"t": "AAAAAAAAAAAAAAAAAAAACA"}


def test_topics_and_partitions_that_are_gone_are_left_out(fake: FakeCluster, met: Cluster) -> None:
    """B18: several answers in a row must not show a topic."""
    found = view(met, T0, GONE, TopicPartition("t", 2))
    assert found == LogsView({"t": TEXT}, {T0: 5})
    assert len(fake.of(Api.METADATA)) >= 5
    del fake.partitions[T0], fake.partitions[T1]
    assert view(met) == LogsView({}, {})
    assert view(met, GONE) == LogsView({}, {})


def test_nothing_to_look_at_asks_nobody(fake: FakeCluster, met: Cluster) -> None:
    assert view_logs(met, (), met.deadline()) == LogsView({}, {})
    assert fake.received == []


def test_a_topic_of_which_nobody_can_tell_is_an_error(fake: FakeCluster, met: Cluster) -> None:
    """It is not taken for deleted."""
    fake.script(Api.METADATA, *[answer(Code.LEADER_NOT_AVAILABLE)] * 10)
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
        view(met)


def test_a_topic_that_may_not_be_described_is_an_error(fake: FakeCluster, met: Cluster) -> None:
    fake.script(Api.METADATA, *[answer(Code.TOPIC_AUTHORIZATION_FAILED)] * 2)
    with pytest.raises(AuthorizationError):
        view(met)


def test_a_leader_that_does_not_answer_is_an_error(fake: FakeCluster, met: Cluster) -> None:
    """B25: within the deadline."""
    view(met)
    fake.script(Api.LIST_OFFSETS, *[keep_silent] * 100)
    with pytest.raises(KafkaTimeoutError):
        view(met, limit_ms=200)
