"""A task against a scripted broker: what it leaves behind in its Python worker, which Spark uses again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import FencedError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
from spark_2pc_sink.sink.contract.receipts import TaskReceipt
from spark_2pc_sink.sink.contract.task_plan import LanePlan, TaskIdentity, TaskPlan
from spark_2pc_sink.sink.contract.topics import Topics, worker_connections
from spark_2pc_sink.sink.tasks.encode_and_send_task import run_encode_and_send_task
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import answer
from tests.unit.producer.support import options_for

THREAD = "Executor task launch worker for task 0.0 in stage 3.0 (TID 7)"


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    running = FakeCluster(topics={"t": 2}, begun=ProducerIdAndEpoch(7, 1))
    yield running
    running.close()


@pytest.fixture
def kafka(fake: FakeCluster) -> Iterator[KafkaOptions]:
    """Options of a worker that has no connections yet, and keeps none."""
    options = options_for(fake)
    yield options
    worker_connections(options).drop()


def run(kafka: KafkaOptions, *, attempt_number: int = 0, transaction: int = 1) -> TaskReceipt:
    """Run a task of two rows in the batch of this transaction; its receipt."""
    ticket = TransactionTicket(
        transactional_id="orders",
        producer=ProducerIdAndEpoch(7, transaction),
        transaction_version=2,
        generation=1,
        transaction=transaction,
        application_name="",
        kafka_only=True,
    )
    plan = TaskPlan(
        ticket=ticket,
        kafka=kafka,
        lanes=(LanePlan(topic="t"),),
        topics=Topics(kafka, counts={"t": 2}),
        salts=(0,),
        timestamp_ms=1_700_000_000_000,
        stage_attempts_max=1,
    )
    columns = {
        record_expressions.KEY: pa.array([b"1", b"2"], pa.binary()),
        record_expressions.VALUE: pa.array([b"a", b"b"], pa.binary()),
        record_expressions.ATTEMPT: pa.array([THREAD, None]),
    }
    *_, last = run_encode_and_send_task([pa.RecordBatch.from_pydict(columns)], plan, TaskIdentity(0, 1, attempt_number))
    receipt: TaskReceipt = pickle.loads(last.column("receipt")[0].as_py())  # noqa: S301 - our own bytes
    return receipt


def test_a_task_that_went_well_leaves_its_connections_to_the_next(fake: FakeCluster, kafka: KafkaOptions) -> None:
    assert run(kafka).error is None
    kept = worker_connections(kafka).cluster()
    fake.know(FakeTransaction(7, 2, state="Empty"))
    assert [encode_task.rows for encode_task in run(kafka, transaction=2).encoded] == [2]
    assert worker_connections(kafka).cluster() is kept


def test_connections_of_a_failed_task_are_not_used_again(fake: FakeCluster, kafka: KafkaOptions) -> None:
    """A19: what a task that failed leaves in its worker is closed, and the next task begins with its own."""
    kept = worker_connections(kafka).cluster()
    fake.script(Api.PRODUCE, answer(Code.INVALID_PRODUCER_EPOCH))
    assert isinstance(run(kafka).error, FencedError)
    fake.know(FakeTransaction(7, 2, state="Empty"))
    assert run(kafka, transaction=2).error is None
    assert worker_connections(kafka).cluster() is not kept


def test_a_second_attempt_writes_nothing(fake: FakeCluster, kafka: KafkaOptions) -> None:
    """A4: it refuses before it has sent anything."""
    assert "ran again as attempt 1" in str(run(kafka, attempt_number=1).error)
    assert fake.of(Api.PRODUCE) == []
