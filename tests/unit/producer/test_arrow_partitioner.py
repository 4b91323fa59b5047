"""Rows and the partitions that they go to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import LocalProtocolError, UnknownTopicError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import StickyPartitioner
from spark_2pc_sink.kafka.record_encoder import partition_for_keys, spread
from spark_2pc_sink.wire.record_rows import Rows
from tests.unit.fakes.cluster import fake_cluster
from tests.unit.producer.support import options_for


def split_up(partitioner: StickyPartitioner, table: Any) -> dict[str, list[str]]:
    return {str(item.partition): texts(item.rows) for item in partitioner.split_call(partitioner.columns(table))}


def texts(rows: Rows) -> list[str]:
    return [value.decode() for column in rows.value.values() for value in column.to_pylist()]


@pytest.fixture
def partitioner() -> Any:
    with fake_cluster(topics={"t": 4, "u": 2}) as fake, Cluster(options_for(fake)) as cluster:
        yield StickyPartitioner(cluster, "t")


def test_keys_go_where_a_java_producer_would_put_them(partitioner: StickyPartitioner) -> None:
    keys = [f"order-{number}" for number in range(50)]
    expected: dict[str, list[bytes]] = {}
    for key, partition in zip(keys, partition_for_keys(pa.array(keys), 4), strict=True):
        expected.setdefault(f"t-{partition}", []).append(key.encode())
    assert split_up(partitioner, pa.table({"key": keys, "value": keys})) == {
        name: [value.decode() for value in values] for name, values in sorted(expected.items())
    }


def test_rows_of_one_partition_keep_their_order(partitioner: StickyPartitioner) -> None:
    numbers = [str(number) for number in range(100)]
    split = split_up(partitioner, pa.table({"partition": [int(n) % 4 for n in numbers], "value": numbers}))
    assert split == {f"t-{part}": [n for n in numbers if int(n) % 4 == part] for part in range(4)}


def test_keyless_rows_of_a_call_stay_together_and_calls_take_turns(partitioner: StickyPartitioner) -> None:
    """KIP-480: sticky for a batch, then another partition."""
    table = pa.table({"value": ["a", "b"]})
    places = [next(iter(split_up(partitioner, table))) for _ in range(8)]
    assert all(len(split_up(partitioner, table)) == 1 for _ in range(2))
    assert set(places) == {"t-0", "t-1", "t-2", "t-3"}


def test_a_null_partition_falls_back_to_the_key(partitioner: StickyPartitioner) -> None:
    key = "order-1"
    (by_key,) = partition_for_keys(pa.array([key]), 4)
    table = pa.table(
        {"key": [key, key], "partition": pa.array([None, (by_key + 1) % 4], pa.int32()), "value": ["a", "b"]}
    )
    assert split_up(partitioner, table) == dict(sorted({f"t-{by_key}": ["a"], f"t-{(by_key + 1) % 4}": ["b"]}.items()))


def test_a_column_names_the_topic_row_by_row(partitioner: StickyPartitioner) -> None:
    table = pa.table({"topic": ["u", None, "u"], "partition": [1, 0, 1], "value": ["a", "b", "c"]})
    assert split_up(partitioner, table) == {"u-1": ["a", "c"], "t-0": ["b"]}


def test_no_rows_go_nowhere(partitioner: StickyPartitioner) -> None:
    assert split_up(partitioner, pa.table({"value": pa.array([], pa.string())})) == {}
    assert (
        split_up(partitioner, pa.table({"topic": pa.array([], pa.string()), "value": pa.array([], pa.string())})) == {}
    )


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_is_not_there_is_an_error(partitioner: StickyPartitioner, partition: int) -> None:
    with pytest.raises(UnknownTopicError, match=f"4 partitions, 0 to 3, and a row names {partition}"):
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


def test_chunked_columns_and_record_batches_are_the_same_rows(partitioner: StickyPartitioner) -> None:
    table = pa.table({"partition": [0, 1, 0], "value": ["a", "b", "c"]})
    chunked = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    assert (
        split_up(partitioner, chunked) == split_up(partitioner, table) == split_up(partitioner, table.to_batches()[0])
    )


@given(rows=st.integers(0, 2_000), partitions=st.lists(st.integers(0, 99), min_size=1, max_size=20, unique=True))
def test_rows_without_a_key_are_shared_out_evenly_in_runs(rows: int, partitions: list[int]) -> None:
    """As a sticky partitioner does."""
    spread_out = spread(rows, partitions).tolist()
    assert len(spread_out) == rows
    assert set(spread_out) <= set(partitions)
    counts = [spread_out.count(partition) for partition in partitions]
    assert max(counts) - min(counts) <= 1
    assert sum(a != b for a, b in pairwise(spread_out)) < len(partitions)
