"""Reading logs: end markers (B6, B9), what was committed since the row (C5), and the logs as they are now."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Final

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.log_reader import CommitQuery, CommitScan, LogReader, Marker, fetch_logs
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, FakeProducer, fake_cluster
from tests.unit.fakes.wire import answer, hang_up
from tests.unit.kafka.support import T0, T1, data, marker, options_for
from tests.unit.reference.batches import client_batch

OURS, OTHERS = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(8, 3)
ABORT, COMMIT, OTHER_CONTROL = 0, 1, 5


def find(cluster: Cluster, from_offset: int = 0, limit_ms: int = 5000) -> Marker:
    epochs = frozenset({3, 4})
    return LogReader(cluster).find_marker(T0, from_offset=from_offset, producer_id=7, epochs=epochs, limit_ms=limit_ms)


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


def test_the_deadline_holds_inside_the_log(fake: FakeCluster, cluster: Cluster) -> None:
    """B26: no read without end."""
    for _ in range(3):
        data(fake, OTHERS)
    fake.script(Api.FETCH, *[answer(Code.NOT_LEADER_OR_FOLLOWER)] * 10_000)
    with pytest.raises(KafkaTimeoutError, match="150 ms"):
        find(cluster, limit_ms=150)


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


ROW: Final = ProducerIdAndEpoch(7, 3)
FOREIGN: Final = ProducerIdAndEpoch(8, 9)
QUERY: Final = CommitQuery(after={T0: 1}, newer_than=ROW, producer_ids=frozenset({7, 9}))


def epoch(number: int, producer_id: int = 7) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id, number)


def scan(
    cluster: Cluster,
    query: CommitQuery = QUERY,
    *partitions: TopicPartition,
    bytes_max: int = 1_000_000,
    limit_ms: int = 5_000,
) -> FoundCommits:
    return CommitScan(cluster, query, cluster.deadline(limit_ms), bytes_max=bytes_max).run(partitions or (T0, T1))


def row_batch(fake: FakeCluster) -> None:
    """The batch of the row: two records at offsets 0 and 1, and their marker."""
    data(fake, ROW, 2)
    marker(fake, epoch(4), kind=COMMIT)


def test_transactions_behind_the_rows_are_found_in_their_order(fake: FakeCluster, cluster: Cluster) -> None:
    """C5, KIP-890: the marker carries the bumped epoch, or below transaction.version 2 the transaction's own."""
    row_batch(fake)
    first = data(fake, epoch(4), 3)
    data(fake, FOREIGN, 5)
    data(fake, epoch(4), 2)
    data(fake, epoch(4), at=T1)
    marker(fake, epoch(5), kind=COMMIT)
    marker(fake, epoch(5), kind=COMMIT, at=T1)
    marker(fake, FOREIGN, kind=COMMIT)
    second = data(fake, epoch(6), 4)
    marker(fake, epoch(6), kind=COMMIT)
    found = scan(cluster)
    assert found == FoundCommits(
        (
            CommittedTransaction(epoch(4), 6, {T0: (first, first + 9), T1: (0, 0)}),
            CommittedTransaction(epoch(6), 4, {T0: (second, second + 3)}),
        )
    )


def test_what_was_aborted_or_is_open_is_not_found(fake: FakeCluster, cluster: Cluster) -> None:
    """Nor what another marker of the producer does not belong to, and what is no transaction's at all."""
    row_batch(fake)
    data(fake, epoch(5))
    marker(fake, epoch(6), kind=ABORT)
    marker(fake, epoch(6), kind=OTHER_CONTROL)
    marker(fake, epoch(7), kind=COMMIT)
    data(fake, epoch(8))
    assert scan(cluster) == FoundCommits()


def test_what_a_lost_marker_has_left_is_not_taken_for_the_next_transaction(fake: FakeCluster, cluster: Cluster) -> None:
    """B15: compaction, or an unclean election, has taken a marker."""
    row_batch(fake)
    data(fake, epoch(4), 7)
    first = data(fake, epoch(6), 2)
    marker(fake, epoch(7), kind=COMMIT)
    (only,) = scan(cluster).transactions
    assert (only.producer, only.records, only.offsets) == (epoch(6), 2, {T0: (first, first + 1)})


def test_the_producer_id_that_came_after_the_rows_is_read_too(fake: FakeCluster, cluster: Cluster) -> None:
    """KIP-890, "Epoch overflow": the epochs of the one before were used up."""
    row_batch(fake)
    data(fake, epoch(0, 9))
    marker(fake, epoch(1, 9), kind=COMMIT)
    data(fake, epoch(30), at=T1)
    marker(fake, epoch(31), kind=COMMIT, at=T1)
    assert [each.producer for each in scan(cluster).transactions] == [epoch(30), epoch(0, 9)]
    without_row = replace(QUERY, newer_than=None, producer_ids=frozenset({9}))
    assert [each.producer for each in scan(cluster, without_row).transactions] == [epoch(0, 9)]


def test_partitions_that_the_row_does_not_name_begin_at_its_time(fake: FakeCluster, cluster: Cluster) -> None:
    data(fake, epoch(4), at=T1)
    marker(fake, epoch(5), kind=COMMIT, at=T1)
    timed = replace(QUERY, since_ms=1_700_000_000_000)
    assert scan(cluster, timed, T1) == FoundCommits()
    assert fake.of(Api.FETCH) == []
    data(fake, epoch(5), at=T1, timestamp_ms=1_700_000_000_000)
    marker(fake, epoch(6), kind=COMMIT, at=T1)
    assert len(scan(cluster, timed, T1).transactions) == 1


def test_what_cannot_be_read_is_said(fake: FakeCluster, cluster: Cluster) -> None:
    """The others are read all the same: the log of one is deleted, another may not be read, a third does not exist."""
    row_batch(fake)
    data(fake, epoch(4))
    marker(fake, epoch(5), kind=COMMIT)
    fake.partitions[T0].log.delete_before(3)
    fake.script(Api.LIST_OFFSETS, *[answer(Code.NONE)] * 2, answer(Code.TOPIC_AUTHORIZATION_FAILED))
    gone = TopicPartition("gone", 0)
    found = scan(cluster, QUERY, T0, T1, gone)
    assert len(found.transactions) == 1
    assert len(found.unread) == 3
    assert "t-0 from offset 2 to 2 (deleted)" in found.unread
    for code in ("UNKNOWN_TOPIC", "TOPIC_AUTHORIZATION_FAILED"):
        assert any(code in text for text in found.unread)


def test_the_scan_is_bounded_in_bytes_and_in_time(fake: FakeCluster, cluster: Cluster) -> None:
    """B26: no read without end; from where on nothing was read is said."""
    row_batch(fake)
    for _ in range(3):
        data(fake, epoch(4), 10)
    marker(fake, epoch(5), kind=COMMIT)
    found = scan(cluster, bytes_max=1)
    assert found == FoundCommits(
        (), ("t-0 from offset 3 to 34 (beyond the limit)", "t-1 (not reached within the limit)")
    )
    late = scan(cluster, limit_ms=0)
    assert late.transactions == ()
    assert len(late.unread) == 2


ID, TEXT = uuid.UUID(int=7), "AAAAAAAAAAAAAAAAAAAABw"
GONE = TopicPartition("gone", 0)


def view(cluster: Cluster, *partitions: TopicPartition, starts: bool = False) -> LogsView:
    return LogReader(cluster).view_logs(partitions or (T0, T1), starts=starts)


@pytest.fixture
def met(fake: FakeCluster, cluster: Cluster) -> Cluster:
    """Connected, and told of the topic."""
    fake.topic_ids["t"] = ID
    fake.partitions[T0].put(client_batch([b"x"] * 5))
    fake.partitions[T1].put(client_batch([b"x"] * 9))
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
    # The starts are asked for where they matter.
    fake.partitions[T1].log.delete_before(4)
    assert view(met, starts=True) == LogsView({"t": TEXT}, FOUND.ends, {T0: 0, T1: 4})


@pytest.mark.parametrize("api", [Api.METADATA, Api.LIST_OFFSETS])
@pytest.mark.parametrize("step", [hang_up, answer(Code.LEADER_NOT_AVAILABLE)])
def test_an_answer_that_is_none_is_asked_for_again(fake: FakeCluster, met: Cluster, api: Api, step: object) -> None:
    """B14: a leader has just moved, a connection has just ended."""
    view(met)
    fake.script(api, step)  # type: ignore[arg-type]
    assert view(met) == FOUND


def test_topics_and_partitions_that_are_gone_are_left_out(fake: FakeCluster, met: Cluster) -> None:
    """B18: several answers in a row must not show a topic."""
    found = view(met, T0, GONE, TopicPartition("t", 2))
    assert found == LogsView({"t": TEXT}, {T0: 5})
    assert len(fake.of(Api.METADATA)) >= 5
    del fake.partitions[T0], fake.partitions[T1]
    assert view(met) == LogsView({}, {})
    assert view(met, GONE) == LogsView({}, {})


def test_a_topic_of_which_nobody_can_tell_is_an_error(fake: FakeCluster, met: Cluster) -> None:
    """It is not taken for deleted."""
    fake.script(Api.METADATA, *[answer(Code.LEADER_NOT_AVAILABLE)] * 10)
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
        view(met)
