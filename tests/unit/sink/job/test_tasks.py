"""What a task does for its worker process, to which partition its rows go, and which rows it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_2pc_sink.sink.job import encode_task
from spark_2pc_sink.sink.job.encode_task import RowPartitioner, task_function
from spark_2pc_sink.sink.job.task_plan import TaskIdentity
from spark_2pc_sink.sink.records.record_columns import VALUE
from spark_2pc_sink.sink.records.topics import TopicRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def test_a_task_that_gives_up_reads_its_input_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its answer: Spark would end the worker process, and the next task would wait for a new one."""
    monkeypatch.setattr(encode_task, "_task_identity", lambda: TaskIdentity(0, 0))
    batch = pa.record_batch({"id": [1]})
    events: list[str] = []

    def given() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            events.append(f"read {number}")
            yield batch

    def give_up(batches: Iterable[pa.RecordBatch], plan: None, identity: TaskIdentity) -> Iterator[pa.RecordBatch]:
        del plan, identity
        yield next(iter(batches))

    events.extend("answer" for _ in task_function(give_up, None, "orders")(given()))
    assert events == ["read 0", "answer", "read 1", "read 2"]


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
