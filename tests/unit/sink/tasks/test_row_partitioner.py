"""Rows that no partition can take, reported with their keys."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import UnknownTopicError, UnstorableValueError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.sink.contract.record_expressions import KEY, PARTITION, TOPIC, VALUE
from spark_2pc_sink.sink.contract.topics import Topics
from spark_2pc_sink.sink.tasks.row_partitioner import RowPartitioner
from spark_2pc_sink.wire.error_codes import describe_error

COUNTS = {"orders": 4, "returns": 2}


def partitions_of(topic: str | None, columns: dict[str, Any]) -> dict[str, int]:
    def count(name: str) -> int:
        if name not in COUNTS:
            raise UnknownTopicError(api="Metadata", code=3, name=describe_error(3).name, detail=name)
        return COUNTS[name]

    partitioner = RowPartitioner(topic, count, lambda _, number: tuple(range(number)))
    return {str(part.partition): len(part.rows) for part in partitioner.split_batch(pa.record_batch(columns))}


def test_rows_without_a_key_are_shared_out_over_the_free_partitions() -> None:
    assert partitions_of("orders", {VALUE: [b"v"] * 8}) == {f"orders-{number}": 2 for number in range(4)}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({PARTITION: [0, 3, 4], KEY: ["a", "b", "c"]}, r"key='c'.*partitions 0 to 3|partitions 0 to 3.*key='c'"),
        ({PARTITION: [0, -1, 0]}, "number 1 of its Arrow batch"),
        ({TOPIC: ["orders", None, None], KEY: ["a", "b", "c"]}, "key='b'"),
        ({TOPIC: ["orders", "returns", "refunds"], KEY: ["a", "b", "c"]}, "key='c'"),
        ({TOPIC: ["orders", "returns", "returns"], PARTITION: [3, 1, 2], KEY: ["a", "b", "c"]}, "key='c'"),
        ({TOPIC: [b"orders", b"\xff", b"orders"]}, "number 1 of its Arrow batch"),
    ],
)
def test_a_row_that_can_go_nowhere_is_named(columns: dict[str, Any], said: str) -> None:
    """A topic or partition that a value names and Kafka lacks is that value's fault."""
    with pytest.raises(UnstorableValueError, match=said):
        partitions_of("orders", {VALUE: [b"v"] * 3, **columns})


def test_a_row_that_names_the_topic_of_dead_letters_can_go_nowhere() -> None:
    """The driver gives sequence numbers there: the records of a task would be taken for repetitions."""
    topics = Topics(KafkaOptions.parse({"bootstrap.servers": "h:1"}), dead_letters="bad")
    partitioner = RowPartitioner(None, COUNTS.__getitem__, lambda _, number: tuple(range(number)), topics.fault_of)
    columns = pa.record_batch({VALUE: [b"v"] * 2, TOPIC: ["orders", "bad"], KEY: ["a", "b"]})
    with pytest.raises(UnstorableValueError, match=r"dead letters go there, and nothing else.*key='b'|key='b'"):
        list(partitioner.split_batch(columns))


def test_that_the_topic_of_the_sink_is_missing_is_no_rows_fault() -> None:
    with pytest.raises(UnknownTopicError):
        partitions_of("refunds", {VALUE: [b"v"]})
