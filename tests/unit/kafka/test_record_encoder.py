"""From rows to acknowledged batches: partitions, encoding, order and repetition. Covers B5 and B22."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortableError, LocalProtocolError, UnknownTopicError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import (
    BatchListSender,
    StickyPartitioner,
    join_batches,
    split_batches,
)
from spark_2pc_sink.kafka.record_encoder import (
    TOGETHER_BYTES_MAX,
    EncodingOptions,
    RecordEncoder,
    RowBuffer,
    TopicLimits,
    partition_for_keys,
    spread,
)
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from spark_2pc_sink.wire.batch_format import record_content
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import EncodedBatch, PlacedBatch, encode_listed_batch, encode_sections
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.wire import Step, answer, hang_up, lose_answer
from tests.unit.kafka.support import PAIR, T0, T1, options_for, sent_batches

OPTIONS = KafkaOptions.parse({"bootstrap.servers": "localhost:9092", "compression.type": "none"})
#: Columns of one partition each: no two of the same length, with and without keys, text and bytes of both widths.
PARTS = (
    (None, pa.array([b"a", None, b"c"])),
    (None, pa.array([b"d"] * 100)),
    (pa.array([b"k"]), pa.array([b"e"])),
    (pa.array(["k", None]), pa.array(["f", "g"])),
    (pa.array([b"k"] * 70), pa.array([b"h"] * 70, pa.large_binary())),
)


def encoder() -> RecordEncoder:
    limits = TopicLimits(None, create_time=True)
    return RecordEncoder(EncodingOptions.of(OPTIONS), timestamp_ms=1_700_000_000_000, limits=lambda _: limits)


def encoded(*parts: tuple[int, pa.Array | None, pa.Array]) -> list[EncodedBatch]:
    one = encoder()
    batches = [
        batch
        for number, key, value in parts
        for batch in one.append(TopicPartition("t", number), EncodedRows.of(key, value, None))
    ]
    return [*batches, *one.finish()]


@pytest.mark.parametrize(
    "columns", [PARTS, *([(None, pa.array([b"x" * (TOGETHER_BYTES_MAX // share)]))] * 5 for share in (2, 3))]
)
def test_batches_are_those_of_each_partition_alone(columns: Any) -> None:
    parts = [(number, *each) for number, each in enumerate(columns)]
    together = encoded(*parts)
    assert together == [batch for part in parts for batch in encoded(part)]
    if columns is PARTS:
        assert [batch.row_key for batch in together] == [None, None, "k", None, None]


def rows_of(values: list[bytes | None], *, kind: Any = None, key: bool = True) -> EncodedRows:
    column = pa.array(values, kind or pa.binary())
    return EncodedRows.of(column if key else None, column, None)


def values_of(batches: list[EncodedRows]) -> list[bytes | None]:
    return [value for batch in batches for column in batch.value.values() for value in column.to_pylist()]


@given(
    st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=60)), max_size=30), max_size=8),
    st.integers(min_value=20, max_value=400),
)
def test_every_row_leaves_once_and_in_order(chunks: list[list[bytes | None]], bytes_max: int) -> None:
    buffer = RowBuffer(bytes_max)
    batches = [batch for chunk in chunks for batch in buffer.add(rows_of(chunk))]
    kept = buffer.take()
    assert values_of(batches) + values_of(kept) == [value for chunk in chunks for value in chunk]
    assert len(kept) <= 1
    assert buffer.kept_bytes == 0
    for batch in (*batches, *kept):
        (section,) = encode_sections(batch, [len(batch)])
        assert len(section.buffer) <= bytes_max or len(batch) == 1


def test_columns_of_another_layout_begin_a_new_batch() -> None:
    buffer = RowBuffer(1000)
    assert buffer.add(rows_of([b"a"])) == []
    (first,) = buffer.add(rows_of([b"b"], kind=pa.large_binary()))
    (second,) = buffer.add(rows_of([b"c"], key=False))
    assert values_of([first, second, *buffer.take()]) == [b"a", b"b", b"c"]


def split_up(partitioner: StickyPartitioner, table: Any) -> dict[str, list[str]]:
    return {str(partition): texts(rows) for partition, rows in partitioner.split_call(partitioner.columns(table))}


def texts(rows: EncodedRows) -> list[str]:
    return [value.decode() for column in rows.value.values() for value in column.to_pylist()]


@pytest.fixture
def partitioner() -> Any:
    with fake_cluster(topics={"t": 4, "u": 2}) as fake, Cluster(options_for(fake)) as cluster:
        yield StickyPartitioner(cluster, "t")


def test_keys_go_where_a_java_producer_would_put_them(partitioner: StickyPartitioner) -> None:
    keys = [f"order-{number}" for number in range(50)]
    expected: dict[str, list[str]] = {}
    for key, partition in zip(keys, partition_for_keys(pa.array(keys), 4), strict=True):
        expected.setdefault(f"t-{partition}", []).append(key)
    assert split_up(partitioner, pa.table({"key": keys, "value": keys})) == expected


def test_keyless_rows_of_a_call_stay_together_and_calls_take_turns(partitioner: StickyPartitioner) -> None:
    """KIP-480: sticky for a batch, then another partition."""
    table = pa.table({"value": ["a", "b"]})
    places = [next(iter(split_up(partitioner, table))) for _ in range(8)]
    assert all(len(split_up(partitioner, table)) == 1 for _ in range(2))
    assert set(places) == {"t-0", "t-1", "t-2", "t-3"}


def test_a_column_names_the_topic_row_by_row(partitioner: StickyPartitioner) -> None:
    table = pa.table({"topic": ["u", None, "u"], "partition": [1, 0, 1], "value": ["a", "b", "c"]})
    assert split_up(partitioner, table) == {"u-1": ["a", "c"], "t-0": ["b"]}


def test_no_rows_go_nowhere(partitioner: StickyPartitioner) -> None:
    nothing = pa.array([], pa.string())
    assert split_up(partitioner, pa.table({"value": nothing})) == {}
    assert split_up(partitioner, pa.table({"topic": nothing, "value": nothing})) == {}


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_is_not_there_is_an_error(partitioner: StickyPartitioner, partition: int) -> None:
    with pytest.raises(UnknownTopicError, match=f"partitions 0 to 3, and a row requests {partition}"):
        split_up(partitioner, pa.table({"partition": [partition], "value": ["a"]}))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"key": ["a"]}), "no column 'value'"),
        (pa.table({"value": ["a"], "valeu": ["a"]}), "valeu"),
        (pa.table({"value": ["a"], "partition": ["0"]}), "partition"),
    ],
)
def test_columns_that_cannot_be_sent_are_refused(partitioner: StickyPartitioner, table: Any, said: str) -> None:
    with pytest.raises(LocalProtocolError, match=said):
        partitioner.columns(table)


def test_rows_need_a_topic_from_somewhere(partitioner: StickyPartitioner) -> None:
    nameless = StickyPartitioner(partitioner._cluster, None)
    for table in (pa.table({"value": ["a"]}), pa.table({"value": ["a"], "topic": pa.array([None], pa.string())})):
        with pytest.raises(LocalProtocolError, match="without a topic"):
            nameless.columns(table)
    assert split_up(nameless, pa.table({"value": ["a"], "topic": ["u"], "partition": [0]})) == {"u-0": ["a"]}


@given(rows=st.integers(0, 2_000), partitions=st.lists(st.integers(0, 99), min_size=1, max_size=20, unique=True))
def test_rows_without_a_key_are_shared_out_evenly_in_runs(rows: int, partitions: list[int]) -> None:
    """As a sticky partitioner does."""
    spread_out = spread(rows, partitions).tolist()
    assert len(spread_out) == rows
    assert set(spread_out) <= set(partitions)
    counts = [spread_out.count(partition) for partition in partitions]
    assert max(counts) - min(counts) <= 1
    assert sum(a != b for a, b in pairwise(spread_out)) < len(partitions)


pytestmark = pytest.mark.usefixtures("begun")


def batch(partition: TopicPartition, *values: str) -> PlacedBatch:
    contents = [record_content(None, value.encode()) for value in values]
    return encode_listed_batch(partition, contents, timestamp_ms=1, compression="none")


def sequences_of(fake: FakeCluster) -> set[tuple[int, int, int]]:
    """Partition, sequence number and producer of every batch that came."""
    return {
        (index, found.base_sequence, found.producer_id)
        for index, data in sent_batches(fake)
        for found in decode_record_batches(data)
    }


def test_all_are_acknowledged_in_their_order(fake: FakeCluster, cluster: Cluster) -> None:
    sender = BatchListSender(cluster, "orders", options_for(fake))
    sent = sender.send(PAIR, 2, [batch(T0, "a", "b"), batch(T1, "c"), batch(T0, "d")])
    assert {partition: last - first for partition, (first, last) in sent.offsets.items()} == {T0: 2, T1: 0}
    assert sequences_of(fake) == {(0, 0, PAIR.producer_id), (0, 2, PAIR.producer_id), (1, 0, PAIR.producer_id)}


def at_rest(cluster: Cluster) -> None:
    """The leaders are known, and so is a connection to them."""
    cluster.partition_counts([T0.topic])
    cluster.features()
    assert T0 in cluster.leaders


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


@pytest.mark.parametrize("known", [True, False], ids=["one request", "leaders are asked for"])
def test_a_refusal_is_raised(fake: FakeCluster, cluster: Cluster, *, known: bool) -> None:
    if known:
        at_rest(cluster)
    fake.script(Api.PRODUCE, answer(Code.INVALID_TXN_STATE))
    with pytest.raises(AbortableError):
        BatchListSender(cluster, "orders", options_for(fake)).send(PAIR, 2, [batch(T0, "a")])
    assert len(fake.of(Api.PRODUCE)) == 1


def test_what_is_kept_is_what_was_sent() -> None:
    batches = [batch(T0, "a", "b"), batch(T1, "c"), batch(T0, "d")]
    partitions, data = join_batches(batches)
    found = list(split_batches(partitions, data))
    assert [(each.partition, bytes(each.payload), each.record_count) for each in found] == [
        (each.partition, bytes(each.payload), each.record_count) for each in batches
    ]


def test_what_is_kept_and_damaged_is_refused() -> None:
    partitions, data = join_batches([batch(T0, "a"), batch(T1, "b")])
    for wrong_partitions, wrong_data in (
        (partitions[:1], data),
        ((*partitions, "t-0"), data),
        (partitions, data[:-1]),
        (partitions, b""),
        (partitions, data + b"?"),
    ):
        with pytest.raises(LocalProtocolError, match="read kept records"):
            list(split_batches(wrong_partitions, wrong_data))
