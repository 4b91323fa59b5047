"""The search of a task for rows that Kafka refuses."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa

from spark_2pc_sink.errors import RecordRefusedError
from spark_2pc_sink.kafka.record_encoder import EncodingOptions, TopicLimits
from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY, NUMBER, WINS
from spark_2pc_sink.sink.job.sift_task import SiftPlan, SiftReceipt, run_sift_task
from spark_2pc_sink.sink.job.task_plan import LanePlan, TaskIdentity, TaskPlan
from spark_2pc_sink.sink.records import record_columns
from spark_2pc_sink.sink.records.topics import TopicFacts, Topics
from spark_2pc_sink.sink.stream.connections import StreamLimits
from spark_2pc_sink.sink.stream.listener import StreamEndpoint, StreamListener
from spark_2pc_sink.wire.record_contents import content_digests


def test_rows_are_found_by_the_records_that_a_broker_has_named() -> None:
    """For a reason that only the broker knows, as one that looks for a schema in each value."""
    named = content_digests(pa.array([b"\x02k\x06two\x00"]))
    refusal = RecordRefusedError(topic="t", partition=0, record="key k", reason="no schema", contents=named)
    tasks = TaskPlan(
        transactional_id="orders",
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
    plan = SiftPlan(
        tasks, records=True, staged=False, output_of_records="topic t", output_of_rows="", most=9, refusal=refusal
    )
    endpoint = StreamEndpoint("127.0.0.1", "127.0.0.1")
    with StreamListener(endpoint, StreamLimits()) as listener, listener.open_attempt() as attempt:
        plan = replace(plan, tasks=replace(tasks, stream=attempt.address))
        [answer] = run_sift_task([pa.RecordBatch.from_pydict(columns)], plan, TaskIdentity(0, 1))
    receipt: SiftReceipt = pickle.loads(answer.column("receipt")[0].as_py())  # noqa: S301 - our own bytes
    assert receipt.error is None
    assert [(row.number, row.reason) for row in receipt.refused] == [(1, "no schema"), (3, "no schema")]
