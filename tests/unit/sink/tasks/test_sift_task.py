"""The search of a task for rows that Kafka refuses."""

from __future__ import annotations

import pickle

import pyarrow as pa

from spark_2pc_sink.errors import RecordRefusedError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.error_policy import content_digests
from spark_2pc_sink.producer.leader_lookup import TopicLimits
from spark_2pc_sink.sink.bad_rows.row_identity import IDENTITY, NUMBER, WINS
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
from spark_2pc_sink.sink.contract.sift_plan import SiftPlan, SiftReceipt
from spark_2pc_sink.sink.contract.task_plan import LanePlan, TaskIdentity, TaskPlan
from spark_2pc_sink.sink.contract.topics import Topics
from spark_2pc_sink.sink.tasks.sift_task import run_sift_task


def test_rows_are_found_by_the_records_that_a_broker_has_named() -> None:
    """For a reason that only the broker knows, as one that looks for a schema in each value."""
    named = content_digests(pa.array([b"\x02k\x06two\x00"]))
    refusal = RecordRefusedError(topic="t", partition=0, record="key k", reason="no schema", contents=named)
    kafka = KafkaOptions.parse({"bootstrap.servers": "none:1"})
    tasks = TaskPlan(
        ticket=TransactionTicket("orders", ProducerIdAndEpoch(7, 1), 2, 1, 1, "", kafka_only=True),
        kafka=kafka,
        lanes=(LanePlan(topic="t"),),
        topics=Topics(kafka, counts={"t": 2}, limits={"t": TopicLimits(None, None)}),
        salts=(0,),
        timestamp_ms=1,
    )
    columns = {
        record_expressions.KEY: pa.array([b"k"] * 4),
        record_expressions.VALUE: pa.array([b"one", b"two", b"three", b"two"]),
        IDENTITY: list(range(4)),
        NUMBER: list(range(4)),
        WINS: [True] * 4,
    }
    plan = SiftPlan(
        tasks, records=True, staged=False, output_of_records="topic t", output_of_rows="", most=9, refusal=refusal
    )
    [answer] = run_sift_task([pa.RecordBatch.from_pydict(columns)], plan, TaskIdentity(0, 1, 0))
    receipt: SiftReceipt = pickle.loads(answer.column("receipt")[0].as_py())  # noqa: S301 - our own bytes
    assert receipt.error is None
    assert [(row.number, row.reason) for row in receipt.refused] == [(1, "no schema"), (3, "no schema")]
