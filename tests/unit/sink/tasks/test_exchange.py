"""Sources encode, made are shuffled, senders send: rows to records, without Spark and with a scripted broker."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    BatchRetryError,
    ConfigurationError,
    DualWriteError,
    FencedError,
    LocalProtocolError,
    UnstorableValueError,
)
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.arrow_partitioner import PartitionRows
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
from spark_2pc_sink.sink.contract.receipts import RESULT_SCHEMA, TaskReceipt, TaskResults, add_up, read_results
from spark_2pc_sink.sink.contract.shuffle_schema import SALT, SHUFFLE_DDL
from spark_2pc_sink.sink.contract.task_plan import LanePlan, TaskIdentity, TaskPlan
from spark_2pc_sink.sink.contract.topics import Connections, Topics, worker_connections
from spark_2pc_sink.sink.tasks import encode_task as encode_task_module
from spark_2pc_sink.sink.tasks.encode_and_send_task import run_encode_and_send_task, write_alone
from spark_2pc_sink.sink.tasks.row_partitioner import RowPartitioner
from spark_2pc_sink.sink.tasks.send_task import run_send_task
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.digest import batch_digest
from spark_2pc_sink.wire.partitioner import partition_for_keys
from spark_2pc_sink.wire.record_batch import decode_record_batches
from tests.harness.record_batches import section_of
from tests.harness.shuffle_rows import encoded_rows
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import answer
from tests.unit.producer.support import PAIR, options_for

TASKS = 2
PARTITIONS = 5
SALTS = (100, 200)
FIRST_ATTEMPT = "Executor task launch worker for task 0.0 in stage 2.0 (TID 9)"


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with fake_cluster(topics={"t": PARTITIONS, "u": 2}, begun=PAIR) as cluster:
        yield cluster


@pytest.fixture(params=[False, True], ids=["through the shuffle", "in files"])
def plan(fake: FakeCluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskPlan]:
    kafka = options_for(fake, batch_bytes_max=400, max_request_bytes=10_000)
    ticket = TransactionTicket(
        transactional_id="orders",
        producer=PAIR,
        transaction_version=2,
        generation=1,
        transaction=1,
        application_name="test",
        kafka_only=True,
    )
    topics = Topics(kafka, counts={"t": PARTITIONS})
    folder = tmp_path / "shuffle" if request.param else None
    yield TaskPlan(
        ticket,
        kafka,
        (LanePlan(topic="t"),),
        topics,
        SALTS,
        1_700_000_000_000,
        stage_attempts_max=4,
        shuffle_folder=folder,
    )
    worker_connections(kafka).drop()


def rows(keys: list[str | None], values: list[str], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            record_expressions.KEY: pa.array(keys, pa.string()),
            record_expressions.VALUE: pa.array(values, pa.string()),
            **columns,
        }
    )


def keyed(start: int, stop: int) -> pa.RecordBatch:
    numbers = range(start, stop)
    return rows([f"k{number % 17}" for number in numbers], [f"value-{number:05}" for number in numbers])


def shuffled(made: list[pa.RecordBatch], task: int, *, thread: str = FIRST_ATTEMPT) -> list[pa.RecordBatch]:
    """What Spark would hand to a task: its rows, several in one batch, with the name of the thread in the first."""
    salts = pa.array([SALTS[task]], pa.int32())
    table = pa.Table.from_batches([each for each in made if each.column(SALT).equals(salts)], made[0].schema)
    attempt = pa.array([thread, *[None] * (table.num_rows - 1)][: table.num_rows], pa.string())
    batches: list[pa.RecordBatch] = (
        table.append_column(record_expressions.ATTEMPT, attempt).combine_chunks().to_batches(7)
    )
    return batches


def exchange(plan: TaskPlan, inputs: list[list[pa.RecordBatch]]) -> TaskResults:
    made = [
        each
        for encode_task, batches in enumerate(inputs)
        for each in encoded_rows(batches, plan, TaskIdentity(encode_task, 50 + encode_task))
    ]
    results = [
        result for task in range(TASKS) for result in run_send_task(shuffled(made, task), plan, TaskIdentity(task, 1))
    ]
    return read_results(pa.Table.from_batches(results, RESULT_SCHEMA), tasks_expected=TASKS)


def logs(fake: FakeCluster, topic: str = "t") -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Key and value of every record that was produced, by partition, in order."""
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for request in fake.of(Api.PRODUCE):
        for data in (part for one in request.body.topic_data if one.name == topic for part in one.partition_data):
            for batch in decode_record_batches(bytes(data.records)):
                assert (batch.producer_id, batch.producer_epoch) == (PAIR.producer_id, PAIR.epoch)
                found.setdefault(data.index, []).extend((record.key, record.value) for record in batch.records())
    return found


def error_of(results: Iterator[pa.RecordBatch]) -> DualWriteError | None:
    (*_, last) = results
    receipt: TaskReceipt = pickle.loads(last.column("receipt")[0].as_buffer())  # noqa: S301 - made above
    return receipt.error


def test_rows_arrive_where_their_keys_say_each_once_and_in_order(fake: FakeCluster, plan: TaskPlan) -> None:
    """D1, B22: as a Java producer partitions; the order of an encode task's rows is kept in each partition."""
    results = exchange(plan, [[keyed(0, 150), keyed(150, 200)], [keyed(200, 260)], []])
    assert (results.rows, results.records) == (260, 260)
    batches = [keyed(0, 260)]
    section = section_of(batches[0].column(record_expressions.KEY), batches[0].column(record_expressions.VALUE), None)
    assert results.digest == batch_digest("t", section)
    found = logs(fake)
    assert sorted(value for records in found.values() for _, value in records if value) == [
        f"value-{number:05}".encode() for number in range(260)
    ]
    for partition, records in found.items():
        keys = pa.array([key for key, _ in records], pa.binary())
        assert set(partition_for_keys(keys, PARTITIONS).tolist()) == {partition}
        for first, last in ((0, 200), (200, 260)):
            values = [int((value or b"")[6:]) for _, value in records]
            of_task = [number for number in values if first <= number < last]
            assert of_task == sorted(of_task)


def test_few_large_pieces_are_shuffled_and_not_rows(plan: TaskPlan) -> None:
    """What this is for: 2 000 rows, some hundred times fewer made."""
    large = replace(plan, kafka=replace(plan.kafka, batch_bytes_max=100_000, max_request_bytes=200_000))
    made = list(encoded_rows([keyed(0, 1_000), keyed(1_000, 2_000)], large, TaskIdentity(0, 1)))
    assert len(made) == PARTITIONS + 1
    assert [field.name for field in made[0].schema] == [part.split()[0] for part in SHUFFLE_DDL.split(", ")]


def test_rows_without_a_key_are_spread(fake: FakeCluster, plan: TaskPlan) -> None:
    results = exchange(plan, [[rows([None] * 100, ["x"] * 100)]])
    assert {partition.partition: last - first + 1 for partition, (first, last) in results.offsets.items()} == (
        dict.fromkeys(range(PARTITIONS), 20)
    )


def test_topic_and_partition_columns_go_first(fake: FakeCluster, plan: TaskPlan) -> None:
    """A topic that the driver does not know is asked for by the task."""
    batch = rows(
        ["a", "b", "c", "d"],
        ["1", "2", "3", "4"],
        **{
            record_expressions.TOPIC: pa.array(["t", "u", "t", "u"]),
            record_expressions.PARTITION: pa.array([3, 1, None, 0]),
        },
    )
    exchange(plan, [[batch]])
    third = partition_for_keys(pa.array(["c"]), PARTITIONS)[0]
    assert logs(fake, "u") == {0: [(b"d", b"4")], 1: [(b"b", b"2")]}
    assert (b"a", b"1") in logs(fake)[3]
    assert (b"c", b"3") in logs(fake)[third]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (record_expressions.TOPIC, pa.array([None], pa.string())),
        (record_expressions.PARTITION, pa.array([PARTITIONS])),
        (record_expressions.PARTITION, pa.array([2**32])),
    ],
)
def test_a_row_that_cannot_be_sent_fails_the_task_that_sends(plan: TaskPlan, column: str, value: Any) -> None:
    """C1: the error of an encode task reaches the driver through the task that gets its receipt."""
    made = list(encoded_rows([rows(["a"], ["1"], **{column: value})], plan, TaskIdentity(1, 1)))
    error = error_of(run_send_task(shuffled(made, 1), plan, TaskIdentity(1, 1)))
    assert isinstance(error, UnstorableValueError)


def test_a_second_attempt_sends_nothing(fake: FakeCluster, plan: TaskPlan) -> None:
    """A4, A5, B30: neither a task's nor a stage's, and where the stage's cannot be read, none."""
    made = list(encoded_rows([keyed(0, 50)], plan, TaskIdentity(0, 1)))
    stage = FIRST_ATTEMPT.replace("stage 2.0", "stage 2.1")
    refused = [
        error_of(run_send_task(shuffled(made, 0), plan, TaskIdentity(0, 2, 1))),
        error_of(run_send_task(shuffled(made, 0, thread=stage), plan, TaskIdentity(0, 1))),
        error_of(run_encode_and_send_task(shuffled_rows(thread=stage), plan, TaskIdentity(0, 1))),
        error_of(run_encode_and_send_task(shuffled_rows(thread=FIRST_ATTEMPT), plan, TaskIdentity(0, 1, 2))),
    ]
    assert all(isinstance(error, BatchRetryError) for error in refused), refused
    unknown = error_of(run_send_task(shuffled(made, 0, thread="main"), plan, TaskIdentity(0, 1)))
    assert isinstance(unknown, ConfigurationError)
    assert fake.of(Api.PRODUCE) == []


def shuffled_rows(*, thread: str) -> list[pa.RecordBatch]:
    return [keyed(0, 2).append_column(record_expressions.ATTEMPT, pa.array([thread, None], pa.string()))]


def test_an_encode_task_may_run_again_but_its_attempts_are_never_mixed(plan: TaskPlan) -> None:
    """A4: shuffle files are lost, and one task has sent of the first run, the other of the second."""
    first = list(encoded_rows([keyed(0, 100)], plan, TaskIdentity(0, 1)))
    second = list(encoded_rows([keyed(0, 100)], plan, TaskIdentity(0, 2)))
    results = [
        *run_send_task(shuffled(first, 0), plan, TaskIdentity(0, 1)),
        *run_send_task(shuffled(second, 1), plan, TaskIdentity(1, 1)),
    ]
    with pytest.raises(BatchRetryError, match="an encode task ran again"):
        read_results(pa.Table.from_batches(results, RESULT_SCHEMA), tasks_expected=TASKS)


def test_pieces_out_of_order_are_refused(plan: TaskPlan) -> None:
    """Rows with one key would be out of order."""
    made = list(encoded_rows([keyed(0, 200)], plan, TaskIdentity(0, 1)))
    error = error_of(run_send_task(shuffled(made[::-1], 0), plan, TaskIdentity(0, 1)))
    assert isinstance(error, BatchRetryError)
    assert "order" in str(error)


def test_a_piece_for_another_task_is_refused(plan: TaskPlan) -> None:
    """B30: two tasks would write one partition."""
    made = list(encoded_rows([keyed(0, 200)], plan, TaskIdentity(0, 1)))
    error = error_of(run_send_task(shuffled(made, 0), plan, TaskIdentity(1, 1)))
    assert isinstance(error, BatchRetryError)
    assert "does not own" in str(error)


def test_one_task_that_does_all_writes_the_same(fake: FakeCluster, plan: TaskPlan) -> None:
    """A batch that is small: no shuffle, and the same records in the same partitions."""
    alone = replace(plan, salts=SALTS[:1])
    results = run_encode_and_send_task(shuffled_rows(thread=FIRST_ATTEMPT), alone, TaskIdentity(0, 1))
    read = read_results(pa.Table.from_batches(results, RESULT_SCHEMA), tasks_expected=None)
    assert (read.rows, read.records) == (2, 2)
    expected = partition_for_keys(pa.array(["k0", "k1"]), PARTITIONS).tolist()
    assert set(read.offsets) == {TopicPartition("t", partition) for partition in expected}


def test_tasks_without_rows_ask_no_broker(fake: FakeCluster, plan: TaskPlan) -> None:
    """Small batches have many of them."""
    results = [
        *run_encode_and_send_task([], plan, TaskIdentity(0, 1)),
        *run_send_task([], plan, TaskIdentity(1, 1)),
    ]
    read = read_results(pa.Table.from_batches(results, RESULT_SCHEMA), tasks_expected=2)
    assert (read.rows, read.records, read.offsets) == (0, 0, {})
    assert fake.received == []


def test_the_driver_writes_the_same_and_by_connections_of_its_own(fake: FakeCluster, plan: TaskPlan) -> None:
    """A small batch: two queries of one driver have one process, and must not share a connection."""
    connections = Connections(plan.kafka)
    alone = replace(plan, salts=SALTS[:1], topics=replace(plan.topics, own=connections))
    receipt = write_alone([keyed(0, 100), keyed(100, 200)], alone)
    connections.drop()
    next_one = replace(PAIR, epoch=PAIR.epoch + 1)
    fake.know(FakeTransaction(next_one.producer_id, next_one.epoch, state="Empty"))
    in_tasks = exchange(
        replace(plan, ticket=replace(plan.ticket, producer=next_one)), [[keyed(0, 100), keyed(100, 200)]]
    )
    alone_read = add_up([receipt], tasks_expected=1)
    assert (alone_read.rows, alone_read.records, alone_read.digest) == (200, 200, in_tasks.digest)
    assert set(alone_read.offsets) == set(in_tasks.offsets)


def test_what_fails_in_the_driver_is_raised_and_its_connections_closed(fake: FakeCluster, plan: TaskPlan) -> None:
    connections = Connections(plan.kafka)
    kept = connections.cluster()
    alone = replace(plan, salts=SALTS[:1], topics=replace(plan.topics, own=connections))
    fake.script(Api.PRODUCE, answer(Code.INVALID_PRODUCER_EPOCH))
    with pytest.raises(FencedError):
        write_alone([keyed(0, 1)], alone)
    assert connections.cluster() is not kept
    connections.drop()


def test_pieces_whose_file_is_gone_throw_the_attempt_away(plan: TaskPlan, tmp_path: Path) -> None:
    plan = replace(plan, shuffle_folder=tmp_path / "shuffle")
    made = [*encoded_rows([keyed(0, 200)], plan, TaskIdentity(0, 1))]
    shutil.rmtree(tmp_path / "shuffle")
    error = error_of(run_send_task(shuffled(made, 0), plan, TaskIdentity(0, 1)))
    assert isinstance(error, BatchRetryError)
    assert "shuffle/0-1 cannot be used: No such file" in str(error)
    without = error_of(run_send_task(shuffled(made, 0), replace(plan, shuffle_folder=None), TaskIdentity(0, 1)))
    assert isinstance(without, LocalProtocolError)


def test_tasks_end_without_failing_where_the_database_has_refused_a_row(plan: TaskPlan, tmp_path: Path) -> None:
    """Whatever they make of that attempt is thrown away. The file may come in the middle of a task."""
    refusal = tmp_path / "refusal"
    plan = replace(plan, refusal=refusal)
    made = [*encoded_rows([keyed(0, 200)], plan, TaskIdentity(0, 1))]
    taken: list[int] = []

    def rows_of_a_task() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1_000, 100):
            taken.append(start)
            yield keyed(start, start + 100)
            refusal.touch()

    (*_, last) = encoded_rows(rows_of_a_task(), plan, TaskIdentity(1, 2))
    account = pickle.loads(last.column("payload")[0].as_buffer())  # noqa: S301 - made above
    assert "the database has refused a row" in str(account.error)
    assert taken == [0, 100]
    error = error_of(run_send_task(shuffled(made, 0), plan, TaskIdentity(0, 1)))
    assert isinstance(error, BatchRetryError)
    assert "the database has refused a row" in str(error)


def test_an_encode_task_gives_up_where_nobody_counts_bytes(plan: TaskPlan) -> None:
    """`arrow_batch_size`: else a task would be handed all made of a batch that has grown, at once."""
    plan = replace(plan, shuffle_folder=None)
    counted = [*encoded_rows([keyed(0, 200)], plan, TaskIdentity(0, 1))]
    limit = sum(len(each.column("payload")[0].as_py()) for each in counted[:-1])
    fits = [*encoded_rows([keyed(0, 200)], replace(plan, shuffle_bytes_max=limit), TaskIdentity(0, 1))]
    assert len(fits) == len(counted)
    (*_, last) = encoded_rows([keyed(0, 200)], replace(plan, shuffle_bytes_max=limit - 1), TaskIdentity(0, 1))
    account = pickle.loads(last.column("payload")[0].as_buffer())  # noqa: S301 - made above
    assert isinstance(account.error, BatchRetryError)
    assert "far larger than the one before" in str(account.error)


def test_encode_tasks_say_how_much_they_were_handed_and_have_made(plan: TaskPlan) -> None:
    batches = [keyed(0, 150), keyed(150, 200)]
    (*made, last) = encoded_rows(batches, plan, TaskIdentity(0, 1))
    account = pickle.loads(last.column("payload")[0].as_buffer())  # noqa: S301 - made above
    assert account.arrow_bytes == sum(batch.nbytes for batch in batches)
    moved = made if plan.shuffle_folder is None else []
    assert account.shuffle_bytes == sum(len(each.column("payload")[0].as_py()) for each in moved)


@pytest.mark.parametrize(("bytes_max", "expected"), [(2**25, [700, 300]), (1, [100] * 10)])
def test_batches_with_few_rows_for_each_partition_wait_for_more(
    fake: FakeCluster, plan: TaskPlan, monkeypatch: pytest.MonkeyPatch, bytes_max: int, expected: list[int]
) -> None:
    """Each cut into partitions has its price. Rows keep their order, and only so many bytes wait."""
    monkeypatch.setattr(encode_task_module, "_WAITING_BYTES_MAX", bytes_max)
    cut: list[int] = []
    split = RowPartitioner.split_batch

    def counted(self: RowPartitioner, batch: pa.RecordBatch) -> Iterator[PartitionRows]:
        cut.append(batch.num_rows)
        return split(self, batch)

    monkeypatch.setattr(RowPartitioner, "split_batch", counted)
    results = exchange(plan, [[keyed(start, start + 100) for start in range(0, 1_000, 100)]])
    assert (results.records, cut) == (1_000, expected)
    for records in logs(fake).values():
        values = [value for _, value in records]
        assert values == sorted(values, key=lambda value: value or b"")
