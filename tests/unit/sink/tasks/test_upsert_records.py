"""The last record of each upsert key is the row that the table keeps, however a batch is shared out. C9."""

from __future__ import annotations

import json
import pickle
import tempfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.producer.leader_lookup import TopicLimits
from spark_2pc_sink.producer.partition_queue import PartitionReceipt
from spark_2pc_sink.producer.record_encoder import RecordEncoder
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
from spark_2pc_sink.sink.contract.receipts import RESULT_SCHEMA, TaskReceipt, TaskResults, add_up, read_results
from spark_2pc_sink.sink.contract.shuffle_schema import INDEX_KIND, SALT
from spark_2pc_sink.sink.contract.task_plan import LanePlan, TaskIdentity, TaskPlan, UpsertRecordsPlan
from spark_2pc_sink.sink.contract.topics import Topics
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN
from spark_2pc_sink.sink.tasks import upsert_records
from spark_2pc_sink.sink.tasks.encode_and_send_task import write_alone
from spark_2pc_sink.sink.tasks.send_task import run_count_task, run_send_task
from spark_2pc_sink.sink.tasks.shuffle_batches import RowIndex
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests
from spark_2pc_sink.wire.record_contents import contents_of
from tests.harness.shuffle_rows import encoded_rows
from tests.unit.producer.support import PAIR, options_for

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.producer.record_encoder import EncodedBatch
    from spark_2pc_sink.wire.record_rows import Rows

PARTITIONS = 3
SALTS = (100, 200)
FIRST_ATTEMPT = "Executor task launch worker for task 0.0 in stage 2.0 (TID 9)"

#: Key, order, and a number that tells rows apart.
Row = tuple[int | None, int | None, int]


@dataclass
class Session:
    """What a producer session would have sent, by partition."""

    plan: TaskPlan
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    digest: int = EMPTY_DIGEST
    record_bytes: int = 0

    def __post_init__(self) -> None:
        self._encoder = RecordEncoder(self.plan.kafka, timestamp_ms=1, limits=self.plan.topics.limits_of)

    def meet(self, partitions: Iterable[TopicPartition]) -> None:
        pass

    def append(self, partition: TopicPartition, rows: Rows) -> None:
        for batch in self._encoder.append(partition, rows):
            self.append_encoded(batch)

    def append_encoded(self, batch: EncodedBatch) -> None:
        self.digest = combine_digests(self.digest, batch.digest)
        self.sent.setdefault(batch.partition, []).extend(contents_of(batch.payload, batch.record_count).to_pylist())

    def flush(self) -> dict[TopicPartition, PartitionReceipt]:
        for batch in self._encoder.finish():
            self.append_encoded(batch)
        return {
            partition: PartitionReceipt(first_offset=0, last_offset=len(contents) - 1, records=len(contents))
            for partition, contents in self.sent.items()
        }


@dataclass(frozen=True)
class Plan(TaskPlan):
    """With sessions that send nothing."""

    sessions: list[Session] = field(default_factory=list)

    def open_session(self) -> Any:
        self.sessions.append(Session(self))
        return self.sessions[-1]

    def records(self) -> list[Row]:
        """All that was sent; what went to one partition is in its order."""
        contents = (content for one in self.sessions for sent in one.sent.values() for content in sent)
        return [tuple(json.loads(content[content.index(b"[") : -1])) for content in contents]


def plan_of(*, leave_out: bool, folder: Path | None = None, batch_bytes_max: int = 150) -> Plan:
    kafka = options_for("nowhere:9092", batch_bytes_max=batch_bytes_max, max_request_bytes=10_000)
    limits = {"t": TopicLimits(None, create_time=None)}
    return Plan(
        ticket=TransactionTicket("orders", PAIR, 2, 1, 1, "test", kafka_only=True),
        kafka=kafka,
        lanes=(LanePlan(topic="t", upsert_records=UpsertRecordsPlan(("id",), leave_out=leave_out)),),
        topics=Topics(kafka, counts={"t": PARTITIONS}, limits=limits),
        salts=SALTS,
        timestamp_ms=1_700_000_000_000,
        stage_attempts_max=1,
        shuffle_folder=folder,
    )


def batch_of(rows: list[Row], *, text: bool = False) -> pa.RecordBatch:
    keys = [None if key is None else f"k{key}" for key, _, _ in rows]
    identities = [0 if key is None else key for key, _, _ in rows]
    return pa.RecordBatch.from_pydict(
        {
            record_expressions.KEY: pa.array(keys, pa.string()),
            record_expressions.VALUE: pa.array([json.dumps(row) for row in rows], pa.string()),
            "id": pa.array(list(map(str, identities)) if text else identities, pa.string() if text else pa.int64()),
            ORDER_COLUMN: pa.array([order for _, order, _ in rows], pa.int64()),
        }
    )


def in_order(made: list[pa.RecordBatch], task: int) -> list[pa.RecordBatch]:
    """As Spark shuffles and sorts them (`INDEXES_FIRST`), with the name of the thread in the first row."""
    mine = [each for each in made if each.column(SALT)[0].as_py() == SALTS[task]]

    def place(each: pa.RecordBatch) -> tuple[bool, int, int, int]:
        encode_task, task_attempt, number, kind = (
            each.column(name)[0].as_py() for name in ("encode_task", "task_attempt", "number", "kind")
        )
        return kind != INDEX_KIND, encode_task, task_attempt, number

    found = sorted(mine, key=place)
    threads = [FIRST_ATTEMPT, *[None] * len(found)]
    return [
        each.append_column(record_expressions.ATTEMPT, pa.array([thread], pa.string()))
        for each, thread in zip(found, threads, strict=False)
    ]


def exchange(plan: TaskPlan, inputs: list[list[pa.RecordBatch]], *, count: bool = False) -> TaskResults:
    made = [
        each
        for encode_task, batches in enumerate(inputs)
        for each in encoded_rows(batches, plan, TaskIdentity(encode_task, 50 + encode_task))
    ]
    results = [
        result
        for task in range(len(SALTS))
        for result in (
            run_count_task(in_order(made, task), plan, TaskIdentity(task, 1))
            if count
            else run_send_task(in_order(made, task), plan, TaskIdentity(task, 1))
        )
    ]
    return read_results(pa.Table.from_batches(results, RESULT_SCHEMA), tasks_expected=len(SALTS))


def greatness(row: Row) -> int:
    return -1 if row[1] is None else row[1]


def winners_of(rows: list[Row]) -> list[Row]:
    """The rows that the table keeps; all with the same greatest order. Rows without a record key have none beside."""
    best: dict[int | None, int] = {}
    for row in rows:
        best[row[0]] = max(greatness(row), best.get(row[0], -1))
    return [row for row in rows if row[0] is None or greatness(row) == best[row[0]]]


def check(sent: list[Row], rows: list[Row], *, leave_out: bool) -> None:
    assert sorted(sent, key=lambda row: row[2]) == (winners_of(rows) if leave_out else rows)
    last = {row[0]: row for row in sent if row[0] is not None}
    assert set(last.values()) <= set(winners_of(rows))


ROWS = st.lists(st.tuples(st.none() | st.integers(0, 6), st.none() | st.integers(0, 5)), max_size=40).map(
    lambda pairs: [(key, order, number) for number, (key, order) in enumerate(pairs)]
)
LEAVE_OUT = pytest.mark.parametrize("leave_out", [False, True], ids=["send first", "leave out"])


@LEAVE_OUT
@pytest.mark.parametrize("index_rows", [1, upsert_records.INDEX_ROWS])
@given(rows=ROWS, text=st.booleans(), data=st.data())
def test_whatever_the_split(leave_out: bool, index_rows: int, rows: list[Row], text: bool, data: st.DataObject) -> None:
    """C9: the last of each key is the winner, and the digest and the counts are those of any other split."""
    inputs: list[list[pa.RecordBatch]] = [[] for _ in range(data.draw(st.integers(1, 3)))]
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
        inputs[data.draw(st.integers(0, len(inputs) - 1))].append(batch_of(rows[start:stop], text=text))
    plan = plan_of(leave_out=leave_out)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(upsert_records, "INDEX_ROWS", index_rows)
        results = exchange(plan, inputs)
    check(plan.records(), rows, leave_out=leave_out)
    assert (results.rows, results.rows - results.left_out[0]) == (len(rows), results.records)
    alone = plan_of(leave_out=leave_out)
    alone = replace(alone, salts=SALTS[:1])
    by_driver = add_up([write_alone([batch_of(rows, text=text)], alone)], tasks_expected=1)
    check(alone.records(), rows, leave_out=leave_out)
    assert (by_driver.digest, by_driver.left_out) == (results.digest, results.left_out)
    counted = exchange(plan_of(leave_out=leave_out), inputs, count=True)
    assert (counted.digest, counted.left_out, counted.records) == (results.digest, results.left_out, 0)


@LEAVE_OUT
def test_records_that_wait_go_through_a_file(leave_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are many; and through the files of made as through the shuffle."""
    monkeypatch.setattr(upsert_records, "WAITING_BYTES_MAX", 10)
    rows: list[Row] = [(number % 100, 500 - number, number) for number in range(500)]
    plan = plan_of(leave_out=leave_out, folder=tmp_path / "shuffle")
    exchange(plan, [[batch_of(rows[:250])], [batch_of(rows[250:])]])
    check(plan.records(), rows, leave_out=leave_out)


@LEAVE_OUT
def test_batches_go_as_they_came_where_no_key_is_there_twice(leave_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken apart, and nothing waits."""
    monkeypatch.setattr(upsert_records, "contents_of", None)
    rows: list[Row] = [(number, number, number) for number in range(200)]
    plan = plan_of(leave_out=leave_out)
    exchange(plan, [[batch_of(rows[:120])], [batch_of(rows[120:])]])
    check(plan.records(), rows, leave_out=leave_out)


def test_rows_in_order_of_their_versions_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual stream: the newest comes last by itself."""
    monkeypatch.setattr(upsert_records, "contents_of", None)
    rows: list[Row] = [(number % 10, number, number) for number in range(200)]
    plan = plan_of(leave_out=False)
    exchange(plan, [[batch_of(rows[:120])], [batch_of(rows[120:])]])
    check(plan.records(), rows, leave_out=False)


# --- what the shuffle must not do ------------------------------------------------------------------------------


def sent_in(plan: Plan, made: list[pa.RecordBatch]) -> BaseException | None:
    (*_, last) = run_send_task(made, plan, TaskIdentity(0, 1))
    receipt: TaskReceipt = pickle.loads(last.column("receipt")[0].as_buffer())  # noqa: S301 - made above
    return receipt.error


DOUBLED: Final[list[Row]] = [(number % 20, number, number) for number in range(200)]


def encoded_by(plan: Plan, *, inputs: int = 1) -> list[pa.RecordBatch]:
    made = [
        each
        for encode_task in range(inputs)
        for each in encoded_rows([batch_of(DOUBLED)], plan, TaskIdentity(encode_task, 1))
    ]
    return in_order(made, 0)


def one_index_late(made: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    indexes = [each for each in made if kind_of(each) == INDEX_KIND]
    others = made[len(indexes) :]
    return [*indexes[:-1], others[0], indexes[-1], *others[1:]]


def kind_of(each: pa.RecordBatch) -> str:
    return str(each.column("kind")[0].as_py())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (one_index_late, "an index of encode task 0 came behind records"),
        (lambda made: [each for each in made if kind_of(each) != INDEX_KIND], "more records than its indexes"),
        (lambda made: [*made[:-2], made[-1]], "fewer records than their indexes"),
    ],
    ids=["an index that is late", "no index", "a each that is missing"],
)
def test_a_sort_that_was_not_kept_throws_the_attempt_away(
    monkeypatch: pytest.MonkeyPatch, change: Any, said: str
) -> None:
    monkeypatch.setattr(upsert_records, "INDEX_ROWS", 1)
    plan = plan_of(leave_out=False)
    made = encoded_by(plan)
    threads = [each.column(record_expressions.ATTEMPT) for each in made]
    changed = [
        each.set_column(each.schema.get_field_index(record_expressions.ATTEMPT), record_expressions.ATTEMPT, thread)
        for each, thread in zip(change(made), threads, strict=False)
    ]
    error = sent_in(plan, changed)
    assert isinstance(error, BatchRetryError)
    assert said in str(error)


def test_encode_tasks_in_another_order_throw_the_attempt_away() -> None:
    """What stands before what was decided by the order of their ids."""
    plan = plan_of(leave_out=False)
    made = encoded_by(plan, inputs=2)
    indexes = [each for each in made if kind_of(each) == INDEX_KIND]
    others = [each for each in made if kind_of(each) != INDEX_KIND]
    by_task = sorted(others, key=lambda each: -each.column("encode_task")[0].as_py())
    error = sent_in(plan, [*indexes, *by_task])
    assert isinstance(error, BatchRetryError)
    assert "came late" in str(error)


def test_a_full_disk_throws_the_attempt_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the records that wait."""

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    rows: list[Row] = [(1, 500 - number, number) for number in range(50)]
    plan = plan_of(leave_out=False)
    with pytest.raises(BatchRetryError, match="No space left"):
        exchange(plan, [[batch_of(rows)]])


def test_an_index_crosses_the_shuffle() -> None:
    index = RowIndex(pa.array([1, None]), pa.array([b"a", None]))
    again = RowIndex.of_bytes(index.to_bytes())
    assert (again.identities.to_pylist(), again.orders.to_pylist()) == ([1, None], [b"a", None])
    assert len(again) == 2
