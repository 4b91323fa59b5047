"""A few batches at once against a scripted broker; and as a database keeps them."""

from __future__ import annotations

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortableError, LocalProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import BatchListSender, PlacedBatch, joined, parted
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_list import encode_listed_batch, record_content
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.wire import Step, answer, hang_up, lose_answer
from tests.unit.producer.support import PAIR, T0, T1, options_for

pytestmark = pytest.mark.usefixtures("begun")


def batch(partition: TopicPartition, *values: str) -> PlacedBatch:
    contents = [record_content(None, value.encode(), ()) for value in values]
    made = encode_listed_batch(partition.topic, contents, timestamp_ms=1, compression="none")
    return PlacedBatch(partition, made.payload, made.record_count)


def sequences_of(fake: FakeCluster) -> set[tuple[int, int, int]]:
    """Partition, sequence number and producer of every batch that came."""
    return {
        (data.index, found.base_sequence, found.producer_id)
        for request in fake.of(Api.PRODUCE)
        for topic in request.body.topic_data
        for data in topic.partition_data
        for found in decode_record_batches(bytes(data.records))
    }


def test_all_are_acknowledged_in_their_order(fake: FakeCluster, cluster: Cluster) -> None:
    sender = BatchListSender(cluster, "orders", options_for(fake))
    sent = sender.send(PAIR, 2, [batch(T0, "a", "b"), batch(T1, "c"), batch(T0, "d")])
    assert {partition: last - first for partition, (first, last) in sent.offsets.items()} == {T0: 2, T1: 0}
    assert sequences_of(fake) == {(0, 0, PAIR.producer_id), (0, 2, PAIR.producer_id), (1, 0, PAIR.producer_id)}


def test_a_refusal_is_raised(fake: FakeCluster, cluster: Cluster) -> None:
    fake.script(Api.PRODUCE, answer(Code.INVALID_TXN_STATE))
    with pytest.raises(AbortableError):
        BatchListSender(cluster, "orders", options_for(fake)).send(PAIR, 2, [batch(T0, "a")])


def at_rest(cluster: Cluster) -> None:
    """The leaders are known, and so is a connection to them."""
    cluster.partition_counts([T0.topic])
    cluster.features()
    assert cluster.leader(T0) is not None


@pytest.mark.parametrize(
    "happening",
    [hang_up, lose_answer, answer(Code.NOT_LEADER_OR_FOLLOWER), answer(Code.CONCURRENT_TRANSACTIONS)],
    ids=["lost before", "lost after", "moved", "concurrent"],
)
def test_what_was_not_acknowledged_is_sent_again(fake: FakeCluster, cluster: Cluster, happening: Step) -> None:
    """With the same sequence numbers, so that the broker takes none twice."""
    at_rest(cluster)
    fake.script(Api.PRODUCE, happening)
    sent = BatchListSender(cluster, "orders", options_for(fake)).send(PAIR, 2, [batch(T0, "b"), batch(T1, "c")])
    assert set(sent.offsets) == {T0, T1}
    assert sequences_of(fake) == {(0, 0, PAIR.producer_id), (1, 0, PAIR.producer_id)}
    assert len(fake.of(Api.PRODUCE)) == 2
    assert [len(fake.partitions[each].batches) for each in (T0, T1)] == [1, 1]


def test_one_request_takes_it_where_everything_is_known(fake: FakeCluster, cluster: Cluster) -> None:
    """And nothing is asked beside it."""
    at_rest(cluster)
    before = len(fake.received)
    BatchListSender(cluster, "orders", options_for(fake)).send(PAIR, 2, [batch(T0, "a"), batch(T1, "b")])
    assert [each.api for each in fake.received[before:]] == [Api.PRODUCE]


def test_a_refusal_of_one_request_is_raised(fake: FakeCluster, cluster: Cluster) -> None:
    at_rest(cluster)
    fake.script(Api.PRODUCE, answer(Code.INVALID_TXN_STATE))
    with pytest.raises(AbortableError):
        BatchListSender(cluster, "orders", options_for(fake)).send(PAIR, 2, [batch(T0, "a")])
    assert len(fake.of(Api.PRODUCE)) == 1


def test_what_is_kept_is_what_was_sent() -> None:
    batches = [batch(T0, "a", "b"), batch(T1, "c"), batch(T0, "d")]
    partitions, data = joined(batches)
    found = list(parted(partitions, data))
    assert [(each.partition, bytes(each.payload), each.record_count) for each in found] == [
        (each.partition, bytes(each.payload), each.record_count) for each in batches
    ]


def test_what_is_kept_and_damaged_is_refused() -> None:
    partitions, data = joined([batch(T0, "a"), batch(T1, "b")])
    for wrong_partitions, wrong_data in (
        (partitions[:1], data),
        ((*partitions, "t-0"), data),
        (partitions, data[:-1]),
        (partitions, b""),
        (partitions, data + b"?"),
    ):
        with pytest.raises(LocalProtocolError, match="read kept records"):
            list(parted(wrong_partitions, wrong_data))
