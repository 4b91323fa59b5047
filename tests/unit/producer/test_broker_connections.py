"""What is told at the end of a deadline, and answers that are taken later or never."""

from __future__ import annotations

import pytest

from spark_2pc_sink.clock import QUIET_S, Deadline
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.broker_connections import Reasons
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.messages import IsolationLevel, KafkaRequest, OffsetSpec
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.wire import hang_up
from tests.unit.producer.support import T0, T1, options_for


def test_the_newest_reason_is_told_unless_the_deadline_cut_the_attempt_short() -> None:
    clock = FakeClock()
    reasons = Reasons(Deadline(clock, 1000))
    reasons.note("refused")
    reasons.note(OSError("loading"))
    assert reasons.newest == "loading"
    clock.sleep(1)
    reasons.note("not answered in time")
    assert reasons.newest == "loading"


def test_a_first_attempt_that_was_cut_short_is_all_there_is_to_tell() -> None:
    clock = FakeClock()
    reasons = Reasons(Deadline(clock, 1000))
    clock.sleep(1)
    reasons.note("not answered in time")
    assert reasons.newest == "not answered in time"


def test_attempts_that_go_on_for_long_are_in_the_log_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    """At night a job that hangs says what it waits for, not only in the error at the end."""
    clock = FakeClock()
    deadline = Deadline(clock, 60_000)
    for reason in ("refused", "loading", "loading"):
        Reasons(deadline).note(reason)
        clock.sleep(QUIET_S)
    assert caplog.messages == ["still waiting for Kafka, for up to 55 s more: loading"]


def ends_of(cluster: Cluster, *partitions: TopicPartition) -> KafkaRequest:
    (leader,) = {cluster.leader(partition) for partition in partitions}
    assert leader is not None
    version = cluster.version(leader, Api.LIST_OFFSETS, cluster.deadline())
    ends = dict.fromkeys(partitions, OffsetSpec.LATEST)
    return messages.list_offsets_request(ends, version=version, isolation=IsolationLevel.READ_UNCOMMITTED)


def test_an_answer_that_nobody_takes_is_not_given_to_the_next_request(fake: FakeCluster, cluster: Cluster) -> None:
    """Answers come in the order of the requests, and each belongs to its own."""
    fake.partitions[T1].fill(9)
    cluster.partition_counts(["t"])
    left = cluster.begin(0, ends_of(cluster, T0), cluster.deadline())
    assert left is not None
    answer = responses.by_partition(cluster.request(0, ends_of(cluster, T1), cluster.deadline()).topics)
    assert {partition: found.offset for partition, found in answer.items()} == {T1: 9}
    assert responses.by_partition(left().topics).keys() == {T0}


def test_several_brokers_are_asked_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with fake_cluster(brokers=2) as fake, Cluster(options_for(fake)) as cluster:
        fake.partitions[T1].fill(3)
        cluster.partition_counts(["t"])
        for partition in (T0, T1):
            cluster.request(cluster.leader(partition) or 0, ends_of(cluster, partition), cluster.deadline())
        asked = {cluster.leader(each) or 0: ends_of(cluster, each) for each in (T0, T1)}
        answers = cluster.request_at_once(asked, cluster.deadline())
        assert answers is not None
        found = {key: end for answer in answers.values() for key, end in responses.by_partition(answer.topics).items()}
        assert {partition: end.offset for partition, end in found.items()} == {T0: 0, T1: 3}
        fake.script(Api.LIST_OFFSETS, hang_up)
        assert cluster.request_at_once(asked, cluster.deadline()) is None
        assert "asking again" in caplog.text


def test_who_is_not_connected_is_not_asked_at_once(fake: FakeCluster, cluster: Cluster) -> None:
    cluster.partition_counts(["t"])
    request = ends_of(cluster, T0)
    with Cluster(options_for(fake)) as another:
        assert another.request_at_once({0: request}, another.deadline()) is None
    assert not fake.of(Api.LIST_OFFSETS)
