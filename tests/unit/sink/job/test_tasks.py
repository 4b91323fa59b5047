"""What a task does for its worker process, to which partition its rows go, and which rows it refuses."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import RecordRefusedError, UnstorableValueError
from spark_2pc_sink.kafka.record_encoder import EncodingOptions, TopicLimits
from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY, NUMBER, WINS
from spark_2pc_sink.sink.job import encode_task
from spark_2pc_sink.sink.job.encode_task import RowPartitioner, task_function
from spark_2pc_sink.sink.job.search_task import SearchPlan, SearchReceipt, run_search_task
from spark_2pc_sink.sink.job.task_plan import LanePlan, TaskIdentity, TaskPlan
from spark_2pc_sink.sink.records import record_columns
from spark_2pc_sink.sink.records.record_columns import KEY, PARTITION, TOPIC, VALUE
from spark_2pc_sink.sink.records.topics import TopicFacts, TopicRefusedError, Topics
from spark_2pc_sink.sink.stream.listener import StreamEndpoint, StreamLimits, StreamListener
from spark_2pc_sink.wire.batch_reader import content_digests

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


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({PARTITION: [0, 3, 4], KEY: ["a", "b", "c"]}, r"key='c'.*partitions 0 to 3|partitions 0 to 3.*key='c'"),
        ({PARTITION: [0, -1, 0]}, "number 1 of its Arrow batch"),
        ({TOPIC: ["orders", None, None], KEY: ["a", "b", "c"]}, "key='b'"),
        ({TOPIC: ["orders", "returns", "refunds"], KEY: ["a", "b", "c"]}, "key='c'"),
        ({TOPIC: ["orders", "returns", "returns"], PARTITION: [3, 1, 2], KEY: ["a", "b", "c"]}, "key='c'"),
    ],
)
def test_a_row_that_can_go_nowhere_is_named(columns: dict[str, Any], said: str) -> None:
    """A topic or partition that a value names and Kafka lacks is that value's fault."""
    with pytest.raises(UnstorableValueError, match=said):
        partitions_of("orders", {VALUE: [b"v"] * 3, **columns})


def test_rows_are_found_by_the_records_that_a_broker_has_named() -> None:
    """For a reason that only the broker knows, as one that looks for a schema in each value."""
    named = content_digests(pa.array([b"\x02k\x06two\x00"]))
    refusal = RecordRefusedError(topic="t", partition=0, record="key k", reason="no schema", contents=named)
    tasks = TaskPlan(
        encoding=EncodingOptions(1_000_000, 1_000_000, "none", None),
        lanes=(LanePlan(topic="t"),),
        topics=Topics({"t": TopicFacts(2, "", TopicLimits(None, None))}),
        timestamp_ms=1,
    )
    columns = {
        record_columns.KEY: pa.array([b"k"] * 4),
        record_columns.VALUE: pa.array([b"one", b"two", b"three", b"two"]),
        IDENTITY: list(range(4)),
        NUMBER: list(range(4)),
        WINS: [True] * 4,
    }
    plan = SearchPlan(
        tasks, records=True, staged=False, output_of_records="topic t", output_of_rows="", most=9, refusal=refusal
    )
    endpoint = StreamEndpoint("127.0.0.1", "127.0.0.1")
    with StreamListener(endpoint, StreamLimits()) as listener, listener.open_attempt() as attempt:
        plan = replace(plan, tasks=replace(tasks, stream=attempt.address))
        [answer] = run_search_task([pa.RecordBatch.from_pydict(columns)], plan, TaskIdentity(0, 1))
    receipt: SearchReceipt = pickle.loads(answer.column("receipt")[0].as_py())  # noqa: S301 - our own bytes
    assert receipt.error is None
    assert [(row.number, row.reason) for row in receipt.refused] == [(1, "no schema"), (3, "no schema")]
