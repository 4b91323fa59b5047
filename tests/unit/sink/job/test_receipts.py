"""Tasks: what the driver believes of what they returned, where their rows go; and the dead-letter topic's part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import BatchRetryError, ConfigurationError, UnknownTopicError, UnstorableValueError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.sink.job import encode_task
from spark_2pc_sink.sink.job.encode_task import RowPartitioner, task_function
from spark_2pc_sink.sink.job.task_plan import RESULT_SCHEMA, TaskIdentity, TaskReceipt, TaskResults
from spark_2pc_sink.sink.records.record_columns import VALUE, TopicRefusedError
from spark_2pc_sink.sink.records.record_side import DeadLetterTopic, ForwarderConnections, TopicMetadata
from spark_2pc_sink.sink.stream.task_stream import LaneTotals
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.kafka.support import kafka_for, options_for
from tests.unit.options.test_sink_options import sink as sink_options

DATA_ERROR = UnstorableValueError(column="c", row_key="key=1", value="x", rule="r")
SENT = LaneTotals(row_bytes=10, rows=2, record_bytes=20, records=2, digest=3)


def receipt(task: int, *, attempt: int = 7, digest: int = SENT.digest) -> TaskReceipt:
    sent = {0: replace(SENT, digest=digest)}
    return TaskReceipt(task, attempt, rows=2, lane_rows={0: 2}, left_out={0: 1}, sent=sent, row_digest=5)


def read(*receipts: TaskReceipt) -> TaskResults:
    return TaskResults.read(pa.Table.from_batches([one.to_result() for one in receipts], RESULT_SCHEMA))


def test_receipts_are_added_up_in_the_order_of_tasks() -> None:
    results = read(receipt(1, digest=2**128 - 1), receipt(0, digest=3))
    assert [one.task for one in results.receipts] == [0, 1]
    assert (results.rows, results.digest, results.row_digest) == (4, 2, 10)
    assert (results.lane_rows[0], results.left_out[0], results.copy_rows[0]) == (4, 2, 4)


@pytest.mark.parametrize("came", [(1,), (0, 2), (1, 2)])
def test_a_missing_receipt_is_refused(came: tuple[int, ...]) -> None:
    """A3: success that did not reach the driver is no success."""
    with pytest.raises(BatchRetryError, match="some are missing"):
        read(*map(receipt, came))


def test_two_receipts_of_one_task_are_refused() -> None:
    """A4: two attempts of one task both came through."""
    with pytest.raises(BatchRetryError, match="two receipts"):
        read(receipt(0), receipt(0))


def test_the_error_of_a_row_comes_before_the_error_of_an_attempt() -> None:
    """A row that no retry can mend says more than a task that met its consequences."""
    with pytest.raises(UnstorableValueError) as raised:
        read(TaskReceipt(0, error=BatchRetryError(reason="ran again")), TaskReceipt(1, error=DATA_ERROR))
    assert str(raised.value) == str(DATA_ERROR)


def test_what_tasks_say_is_what_has_arrived() -> None:
    read(receipt(0), receipt(1)).check_arrived({0: (7, {0: SENT}), 1: (7, {0: SENT})})


@pytest.mark.parametrize(
    "arrived",
    [
        {0: (8, {0: SENT})},
        {0: (7, {})},
        {0: (7, {0: replace(SENT, digest=4)})},
        {0: (7, {0: SENT, 1: SENT})},
        {0: (7, {0: SENT}), 1: (9, {0: SENT})},
    ],
    ids=["another attempt", "no lane", "another digest", "a lane more", "a task more"],
)
def test_anything_else_that_has_arrived_is_refused(arrived: dict[int, tuple[int, dict[int, LaneTotals]]]) -> None:
    """A4, B22: Spark ran a task again, and the receipt is of one attempt, the rows and records are of another."""
    with pytest.raises(BatchRetryError, match="ran again, or its stream lost data"):
        read(receipt(0)).check_arrived(arrived)


def test_a_task_that_gives_up_reads_its_input_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its answer: Spark would end the worker process, and the next task would wait for a new one."""
    monkeypatch.setattr(encode_task, "_task_identity", lambda: TaskIdentity(0, 0))
    batch = pa.record_batch({"id": [1]})
    events: list[str] = []

    def given() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            events.append(f"read {number}")
            yield batch

    def give_up(batches: Iterable[pa.RecordBatch], plan: None, identity: TaskIdentity) -> TaskReceipt:
        del plan
        next(iter(batches))
        return TaskReceipt(identity.task)

    events.extend("answer" for _ in task_function(give_up, None, "orders")(given()))
    assert events == ["read 0", "answer", "read 1", "read 2"]


COUNTS = {"orders": 4, "returns": 2}


def partitions_of(topic: str | None, columns: dict[str, Any]) -> dict[str, int]:
    def count(name: str) -> int:
        if name not in COUNTS:
            raise TopicRefusedError("Kafka has no topic of this name", "Create the topic")
        return COUNTS[name]

    partitioner = RowPartitioner(topic, count)
    return {str(partition): len(rows) for partition, rows in partitioner.split_batch(pa.record_batch(columns))}


def test_rows_without_a_key_are_shared_out_over_the_free_partitions() -> None:
    assert partitions_of("orders", {VALUE: [b"v"] * 8}) == {f"orders-{number}": 2 for number in range(4)}


PAIR = ProducerIdAndEpoch(7, 1)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with fake_cluster(topics={"bad": 2, "orders": 1}, begun=PAIR) as running:
        yield running


def check(fake: FakeCluster, topic: str = "bad") -> None:
    options = sink_options(kafka=kafka_for(fake), topic="orders", bad_rows="dead_letter", dead_letter_topic=topic)
    connections = ForwarderConnections(options.kafka)
    with Cluster(options.kafka) as cluster:
        DeadLetterTopic(options, "query", TopicMetadata(cluster, FakeClock()), connections).check()
    connections.drop()


def test_a_topic_that_cannot_take_letters_is_refused_at_the_start(fake: FakeCluster) -> None:
    check(fake)
    with pytest.raises(UnknownTopicError):
        check(fake, "missing")
    with pytest.raises(ConfigurationError):
        check(fake, "__consumer_offsets")
    fake.configs = {"max.message.bytes": "32767"}
    with pytest.raises(ConfigurationError, match=r"max\.message\.bytes of the topic is 32767"):
        check(fake)


def test_limits_are_asked_again_when_they_are_old_and_partitions_always() -> None:
    with fake_cluster(topics={"t": 2}) as fake, Cluster(options_for(fake, metadata_max_age_ms=5_000)) as cluster:
        clock = FakeClock()
        topics = TopicMetadata(cluster, clock)
        begun_s = clock.now
        for later_s, asked in ((0, 1), (4, 1), (6, 2), (10, 2)):
            clock.now = begun_s + later_s
            topics.limits("t")
            assert len(fake.of(Api.DESCRIBE_CONFIGS)) == asked
        before = len(fake.of(Api.METADATA))
        assert topics.counts(["t"]) == topics.counts(["t"]) == {"t": 2}
        assert len(fake.of(Api.METADATA)) == before + 2
