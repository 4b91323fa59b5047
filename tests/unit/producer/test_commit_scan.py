"""Which transactions of a sink were committed since its row, read from headers and markers (C5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.log_reader import CommitQuery, CommitScan
from spark_2pc_sink.recipe.lost_batches import CommittedTransaction, FoundCommits
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.wire import answer
from tests.unit.producer.support import T0, T1, data, marker

ABORT, COMMIT, OTHER_CONTROL = 0, 1, 5
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
    deleted, missing, forbidden = sorted(found.unread, key=lambda text: (text[0] != "t", text))[:1] + sorted(
        text for text in found.unread if "deleted" not in text
    )
    assert deleted == "t-0 from offset 2 to 2 (deleted)"
    assert "UNKNOWN_TOPIC" in missing or "UNKNOWN_TOPIC" in forbidden
    assert "TOPIC_AUTHORIZATION_FAILED" in missing + forbidden


def test_the_scan_is_bounded_in_bytes_and_in_time(fake: FakeCluster, cluster: Cluster) -> None:
    """B26: no read without end; from where on nothing was read is said."""
    row_batch(fake)
    for _ in range(3):
        data(fake, epoch(4), 10)
    marker(fake, epoch(5), kind=COMMIT)
    found = scan(cluster, bytes_max=1)
    assert found == FoundCommits((), ("t-0 from offset 3 to 34 (too much)", "t-1 (too much before it)"))
    late = scan(cluster, limit_ms=0)
    assert late.transactions == ()
    assert len(late.unread) == 2
