"""The end marker of a transaction, read from a log (the rule for what the coordinator has forgotten; B6, B9)."""

from __future__ import annotations

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, KafkaTimeoutError, UnknownTopicError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.leader_lookup import end_offset
from spark_2pc_sink.kafka.log_reader import Marker, fetch_logs, find_marker
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.messages import OffsetSpec
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.logs import FakeProducer
from tests.unit.fakes.wire import answer, hang_up, serve_no_records
from tests.unit.producer.support import T0, T1, data, marker, options_for

OURS, OTHERS = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(8, 3)
ABORT, COMMIT, OTHER_CONTROL = 0, 1, 5


def find(cluster: Cluster, from_offset: int = 0, limit_ms: int = 5000) -> Marker:
    return find_marker(
        cluster,
        T0,
        from_offset=from_offset,
        producer_id=7,
        epochs=frozenset({3, 4}),
        deadline=cluster.deadline(limit_ms),
    )


@pytest.mark.parametrize(("kind", "expected"), [(COMMIT, Marker.COMMIT), (ABORT, Marker.ABORT)])
@pytest.mark.parametrize("epoch", [3, 4])
def test_the_first_marker_of_the_producer_tells(
    fake: FakeCluster, cluster: Cluster, kind: int, expected: Marker, epoch: int
) -> None:
    """KIP-890: with transaction.version 2 the marker carries the bumped epoch, below the transaction's own."""
    first = data(fake, OURS, 3)
    marker(fake, OTHERS, kind=1 - kind)
    data(fake, OTHERS)
    marker(fake, ProducerIdAndEpoch(7, epoch), kind=kind)
    marker(fake, ProducerIdAndEpoch(7, 5), kind=1 - kind)
    assert find(cluster, first + 3) is expected


def test_markers_before_the_transaction_and_of_later_epochs_do_not_count(fake: FakeCluster, cluster: Cluster) -> None:
    marker(fake, ProducerIdAndEpoch(7, 3), kind=COMMIT)
    first = data(fake, OURS)
    marker(fake, ProducerIdAndEpoch(7, 5), kind=COMMIT)
    assert find(cluster, first + 1) is Marker.MISSING


def test_other_control_records_are_passed_over(fake: FakeCluster, cluster: Cluster) -> None:
    marker(fake, ProducerIdAndEpoch(7, 4), kind=OTHER_CONTROL)
    marker(fake, ProducerIdAndEpoch(7, 4), kind=COMMIT)
    assert find(cluster) is Marker.COMMIT


def test_an_open_transaction_is_not_a_missing_marker(fake: FakeCluster, cluster: Cluster) -> None:
    """B26: the end of what can be read is not the end of the transaction."""
    first = data(fake, OURS)
    assert find(cluster, first + 1) is Marker.OPEN
    fake.partitions[T0].shown = [FakeProducer(7), FakeProducer(8, start_offset=0)]
    fake.partitions[T0].stable_offset = first + 1
    assert find(cluster, first + 1) is Marker.MISSING


def test_a_marker_that_readers_cannot_see_yet_is_not_missing(fake: FakeCluster, cluster: Cluster) -> None:
    """The leader knows the transaction as ended from the append on, the high watermark follows later (KIP-98).

    The transaction, or another one, is found unfinished by the last stable offset; a stable offset behind it is not.
    """
    first = data(fake, OURS, 3)
    data(fake, OTHERS)
    fake.partitions[T0].shown = []
    fake.partitions[T0].stable_offset = first
    assert find(cluster, first + 3) is Marker.OPEN
    fake.partitions[T0].stable_offset = first + 3
    assert find(cluster, first + 3) is Marker.MISSING


def test_a_log_that_ends_before_the_offset_is_missing_it(fake: FakeCluster, cluster: Cluster) -> None:
    assert find(cluster, 1000) is Marker.MISSING
    assert fake.of(Api.FETCH) == []


def test_lost_answers_are_asked_again(fake: FakeCluster, cluster: Cluster) -> None:
    marker(fake, ProducerIdAndEpoch(7, 4), kind=COMMIT)
    fake.script(Api.DESCRIBE_PRODUCERS, hang_up, answer(Code.NOT_LEADER_OR_FOLLOWER))
    fake.script(Api.LIST_OFFSETS, hang_up, answer(Code.LEADER_NOT_AVAILABLE))
    fake.script(Api.FETCH, hang_up, answer(Code.NOT_LEADER_OR_FOLLOWER))
    assert find(cluster) is Marker.COMMIT


def test_a_leader_that_is_too_new_for_offsets_is_asked_again(fake: FakeCluster, cluster: Cluster) -> None:
    """B14: until its high watermark has come to where its leadership began, it tells nobody an end (KIP-207)."""
    marker(fake, ProducerIdAndEpoch(7, 4), kind=COMMIT)
    fake.script(Api.LIST_OFFSETS, answer(Code.OFFSET_NOT_AVAILABLE), answer(Code.OFFSET_NOT_AVAILABLE))
    assert find(cluster) is Marker.COMMIT


def test_the_deadline_holds_inside_the_log(fake: FakeCluster, cluster: Cluster) -> None:
    """B26: no read without end."""
    for _ in range(3):
        data(fake, OTHERS)
    fake.script(Api.FETCH, *[answer(Code.NOT_LEADER_OR_FOLLOWER)] * 10_000)
    with pytest.raises(KafkaTimeoutError, match="150 ms"):
        find(cluster, limit_ms=150)


def test_a_log_without_records_to_read_ends_at_the_deadline(fake: FakeCluster, cluster: Cluster) -> None:
    fake.partitions[T0].fill(5)

    fake.script(Api.FETCH, *[serve_no_records] * 10_000)
    with pytest.raises(KafkaTimeoutError, match="150 ms"):
        find(cluster, limit_ms=150)


def test_a_topic_that_may_not_be_read_is_an_error(fake: FakeCluster, cluster: Cluster) -> None:
    fake.script(Api.DESCRIBE_PRODUCERS, answer(Code.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(AuthorizationError):
        find(cluster)


def test_a_topic_that_is_gone_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError):
        find_marker(
            cluster,
            TopicPartition("gone", 0),
            from_offset=0,
            producer_id=7,
            epochs=frozenset({3}),
            deadline=cluster.deadline(),
        )


def test_logs_of_several_leaders_come_from_each_that_answers() -> None:
    """B14: a leader that is gone holds up nobody else's log, and alone it is asked until it answers."""
    with fake_cluster(brokers=2) as brokers, Cluster(options_for(brokers)) as connections:
        for at in (T0, T1):
            data(brokers, OURS, at=at)
        brokers.script(Api.FETCH, hang_up)
        found = fetch_logs(connections, {T0: 0, T1: 0}, connections.deadline())
        assert [len(found.get(at, b"")) > 0 for at in (T0, T1)] == [False, True]
        brokers.script(Api.FETCH, hang_up, answer(Code.NOT_LEADER_OR_FOLLOWER))
        assert fetch_logs(connections, {T0: 0}, connections.deadline()).keys() == {T0}


def test_a_log_that_may_not_be_read_is_an_error_when_it_is_the_only_one(fake: FakeCluster, cluster: Cluster) -> None:
    data(fake, OURS)
    fake.script(Api.FETCH, *[answer(Code.TOPIC_AUTHORIZATION_FAILED)] * 2)
    with pytest.raises(AuthorizationError):
        fetch_logs(cluster, {T0: 0}, cluster.deadline())


def test_a_log_without_a_leader_is_waited_for(fake: FakeCluster, cluster: Cluster) -> None:
    data(fake, OURS)
    fake.partitions[T0].leader = -1
    with pytest.raises(KafkaTimeoutError, match="has no leader"):
        fetch_logs(cluster, {T0: 0}, cluster.deadline(150))


def test_a_time_that_was_over_before_anybody_was_asked_says_so(cluster: Cluster) -> None:
    with pytest.raises(KafkaTimeoutError, match="the time was over before its leader was asked"):
        end_offset(cluster, T0, OffsetSpec.LATEST, cluster.deadline(0))
