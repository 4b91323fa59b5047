"""Rows that no partition can take, reported with their keys."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.sink.job.encode_task import RowPartitioner
from spark_2pc_sink.sink.records.record_columns import KEY, PARTITION, TOPIC, VALUE
from spark_2pc_sink.sink.records.topics import TopicRefusedError

COUNTS = {"orders": 4, "returns": 2}


def partitions_of(topic: str | None, columns: dict[str, Any]) -> dict[str, int]:
    def count(name: str) -> int:
        if name not in COUNTS:
            raise TopicRefusedError("Kafka has no topic of this name", "Create the topic")
        return COUNTS[name]

    partitioner = RowPartitioner(topic, count)
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
