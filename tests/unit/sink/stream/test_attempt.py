"""Tasks of one attempt, their streams, the driver's listener and forwarder, and a scripted cluster; no Spark.

What goes wrong between them ends the attempt, or leaves every record there once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, FencedError, UnstorableValueError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.record_encoder import EncodingOptions, TopicLimits
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
from spark_2pc_sink.sink.job.encode_task import encode, receipt_of, run_encode_task, run_reread_task
from spark_2pc_sink.sink.job.task_plan import LanePlan, TaskIdentity, TaskPlan, TaskReceipt, TaskResults
from spark_2pc_sink.sink.records import record_columns
from spark_2pc_sink.sink.records.record_columns import TopicFacts, Topics
from spark_2pc_sink.sink.records.record_side import Forwarded, ForwarderConnections, KnownTopics, RecordForwarder
from spark_2pc_sink.sink.stream import attempt_input
from spark_2pc_sink.sink.stream.attempt_input import LocalStream, attempt_threads
from spark_2pc_sink.sink.stream.listener import StreamAttempt, StreamEndpoint, StreamLimits, StreamListener
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.wire import answer
from tests.unit.kafka.support import options_for

TOPIC = TopicFacts(2, "", TopicLimits(None, create_time=True))
TICKET = TransactionTicket("orders", ProducerIdAndEpoch(7, 1), 2, kafka_only=True)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with fake_cluster(topics={"t": 2, "other": 1, "letters": 1}, begun=ProducerIdAndEpoch(7, 1)) as running:
        yield running


class Driver:
    def __init__(self, fake: FakeCluster, topic: str | None = "t") -> None:
        self.kafka: KafkaOptions = options_for(fake)
        self.connections = ForwarderConnections(self.kafka)
        known = {"t": TOPIC} if topic else {}
        self.topics = KnownTopics(known, dead_letters="letters")
        self.plan = TaskPlan(
            encoding=EncodingOptions.of(self.kafka),
            lanes=(LanePlan(topic=topic),),
            topics=Topics(dict(known)),
            timestamp_ms=1_700_000_000_000,
        )
        self.stack = ExitStack()

    def __enter__(self) -> Driver:
        endpoint = StreamEndpoint("127.0.0.1", "127.0.0.1")
        listener = self.stack.enter_context(StreamListener(endpoint, StreamLimits()))
        self.source: StreamAttempt = self.stack.enter_context(listener.open_attempt())
        self.plan = replace(self.plan, stream=self.source.address)
        self.forwarder = RecordForwarder(self.source, TICKET, self.connections, self.kafka, self.topics)
        self.stack.enter_context(attempt_threads(self.source, self.forwarder.task))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stack.__exit__(kind, error, trace)
        finally:
            self.connections.drop()

    def finish(self, *receipts: TaskReceipt) -> Forwarded:
        results = TaskResults.of(receipts)
        self.source.close_input()
        results.check_arrived(self.source.finished)
        forwarded = self.forwarder.finish()
        assert forwarded.digest == results.digest
        return forwarded


def rows(count: int, first: int = 0, topic: str | None = None) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns = {
        record_columns.KEY: pa.array([b"%d" % number for number in numbers], pa.binary()),
        record_columns.VALUE: pa.array([b"v" * 100 for _ in numbers], pa.binary()),
    }
    if topic is not None:
        columns[record_columns.TOPIC] = pa.array([topic] * count)
    return pa.RecordBatch.from_pydict(columns)


def run(plan: TaskPlan, task: int, attempt: int, *given: Any, task_run: Any = run_encode_task) -> TaskReceipt:
    """Run a task on Arrow batches, or on an iterator of them; its receipt."""
    batches = given if isinstance(given[0], pa.RecordBatch) else given[0]
    return receipt_of(task_run, batches, plan, TaskIdentity(task, attempt))


def test_records_of_all_tasks_have_one_sequence_per_partition(fake: FakeCluster) -> None:
    """B30: the driver gives sequence numbers, and nothing else does."""
    with Driver(fake) as driver:
        first, second = run(driver.plan, 0, 5, rows(300), rows(200, 300)), run(driver.plan, 1, 6, rows(9, 500))
        forwarded = driver.finish(first, second)
    assert forwarded.records == 509
    assert {batch[0] for log in fake.partitions.values() for batch in log.batches} == {(7, 1)}


def test_the_driver_encodes_by_the_same_code(fake: FakeCluster) -> None:
    batches = [rows(300)]
    with Driver(fake) as driver:
        here = encode(batches, driver.plan, TaskIdentity(0, 0), LocalStream(driver.source))
        assert driver.finish(here).records == 300
    reread = run(replace(driver.plan, stream=None), 0, 1, *batches, task_run=run_reread_task)
    assert TaskResults.of([reread]).digest == TaskResults.of([here]).digest


def test_rows_that_are_superseded_have_no_record(fake: FakeCluster) -> None:
    """C9: they are counted."""
    batch = rows(4).append_column(record_columns.SUPERSEDED, pa.array([True, False, True, False]))
    with Driver(fake) as driver:
        plan = replace(driver.plan, lanes=(LanePlan(topic="t", leaves_out=True),))
        receipt = run(plan, 0, 1, batch)
        assert driver.finish(receipt).records == 2
    assert (receipt.lane_rows, receipt.left_out) == ({0: 4}, {0: 2})


def test_the_driver_tells_tasks_about_topics_that_rows_name(fake: FakeCluster) -> None:
    with Driver(fake, topic=None) as driver:
        forwarded = driver.finish(run(driver.plan, 0, 1, rows(5, topic="other"), rows(5, topic="other")))
    assert forwarded.records == 10
    assert {partition.topic for partition in forwarded.written} == {"other"}


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("nowhere", "Kafka has no topic of this name"),
        ("no topic", "no topic can have this name"),
        ("__transaction_state", "an internal topic of Kafka"),
        ("letters", "it is the sink's dead-letter topic"),
    ],
)
def test_a_topic_to_which_no_row_may_go_is_the_fault_of_the_row(fake: FakeCluster, topic: str, said: str) -> None:
    with pytest.raises(UnstorableValueError, match=said), Driver(fake, topic=None) as driver:
        driver.finish(run(driver.plan, 0, 1, rows(5, topic=topic)))


def test_a_refusal_of_a_broker_is_what_the_driver_raises(fake: FakeCluster) -> None:
    """A19: connections on which anything failed are not used again."""
    fake.script(Api.PRODUCE, answer(Code.INVALID_PRODUCER_EPOCH))
    driver = Driver(fake)
    kept = driver.connections.cluster()
    with pytest.raises(FencedError), driver:
        driver.finish(run(driver.plan, 0, 1, rows(30)))
    assert driver.connections.cluster() is not kept
    driver.connections.drop()


def test_a_task_that_runs_again_after_its_end_ends_the_attempt(fake: FakeCluster) -> None:
    """A4, B30: the connection was lost after the driver had all, so Spark runs it again."""
    with pytest.raises(BatchRetryError, match="task 0 ran again as attempt 6"), Driver(fake) as driver:
        driver.finish([run(driver.plan, 0, attempt, rows(10)) for attempt in (5, 6)][-1])


def test_two_attempts_of_a_task_are_not_mixed(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A4, A5, B30: both send at the same time, and what the first has sent is being written."""
    monkeypatch.setattr(attempt_input, "HOLD_BYTES_MAX", 0)
    receipts: list[TaskReceipt] = []

    def interleaved() -> Iterable[pa.RecordBatch]:
        for number in range(100):
            if number == 50:
                again = threading.Thread(target=lambda: receipts.append(run(driver.plan, 0, 6, rows(10))))
                again.start()
                again.join()
            yield rows(1_000, number * 1_000)

    with pytest.raises(BatchRetryError, match="task 0 ran again as attempt 6"), Driver(fake) as driver:
        driver.finish(run(driver.plan, 0, 5, interleaved()))
    [second] = receipts
    assert isinstance(second.error, BatchRetryError)
