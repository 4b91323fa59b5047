"""Rows that are written while a job runs, on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest
import sqlalchemy as sa

from jdbc_state import SqlStateStore
from jdbc_state.connections import Database
from spark_2pc_sink.errors import BatchRetryError, ConstraintError, StateStoreError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job.table_loader import table_transaction
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from spark_2pc_sink.sink.rows.keyed_rows import KeyedRows
from spark_2pc_sink.sink.rows.table_copy import AppendedRows, CopyReader, CopyTarget, TableCopy
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, LocalStream
from spark_2pc_sink.sink.stream.background_task import AttemptThreads
from spark_2pc_sink.testing import wait_until
from tests.integration.postgres.database_tables import ORDERS, create, orders, plan_of, rows, run, transaction
from tests.integration.state.state_stores import ID, claim, settings, sql_store

IDLE_TIMEOUT_S = 1.2
STATEMENT_TIMEOUT_MS = 1_500
#: After this a stopped server goes on whatever happens, so that a wait without a bound ends too, and is noticed.
STOPPED_S = 20.0


class JobFailedError(Exception):
    """What Spark raises."""


class Copying:
    """One attempt: tasks that send rows, and the copy of these."""

    def __init__(
        self, connection: sa.Connection, *targets: CopyTarget, idle_s: float = 20, early: bool = False
    ) -> None:
        self.source = AttemptInput(2**26, 2)
        self.connection = connection
        self.copy = TableCopy(
            self.source, open_decision=lambda: connection, targets=targets, idle_s=idle_s, early=early
        )

    def __enter__(self) -> Copying:
        self.threads = AttemptThreads(self.source, self.copy.task)
        self.threads.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.threads.__exit__(kind, error, trace)

    def send(self, task: int, pieces: Sequence[bytes], *, lane: int = 0, count: int = 1) -> None:
        """A task sends rows and ends."""
        stream = LocalStream(self.source, task, 7)
        stream.rows(lane, b"".join(pieces), count)
        stream.finish()

    def finish(self, **encoded: int) -> int:
        """How many rows the tables were given; ``lane_0=2`` says that tasks have encoded two for the first."""
        return self.copy.finish(self.connection, {int(name[5:]): count for name, count in encoded.items()}).given


def target(plan: ColumnPlan, kind: type[Any] = AppendedRows, **more: Any) -> CopyTarget:
    return CopyTarget(more.pop("lane", 0), lambda connection: kind(connection, plan), **more)


@pytest.fixture
def plan(database: str) -> ColumnPlan:
    create(database, ORDERS)
    return plan_of(database)


def test_rows_are_written_while_the_job_runs(database: str, plan: ColumnPlan) -> None:
    """One COPY for frames that follow each other, and another one after a pause."""
    with transaction(database) as connection, Copying(connection, target(plan)) as copying:
        copying.send(0, orders(plan, (1, "a")))
        wait_until(lambda: copying.copy._copied[0] == 1, deadline_s=10, what="the first row")
        copying.send(1, orders(plan, (2, "b"), (3, "c")), count=2)
        copying.source.close_input()
        copying.copy.task.finish()
        assert copying.finish(lane_0=3) == 3
    assert rows(database, "SELECT id, item FROM orders ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("early", [True, False])
def test_a_transaction_can_be_begun_before_the_rows(early: bool) -> None:
    """A batch without rows needs none; in a small one all rows come at once, and would wait for it."""
    begun: list[int] = []

    def open_decision() -> Any:
        begun.append(1)
        raise BatchRetryError(reason="begun")

    source, table = AttemptInput(2**20, 1), CopyTarget(0, lambda _: pytest.fail("no connection"))
    copy = TableCopy(source, open_decision=open_decision, targets=[table], idle_s=1, early=early)
    try:
        with AttemptThreads(source, copy.task):
            pass
    except BatchRetryError:
        assert early
    assert bool(begun) is early


def test_a_transaction_that_waits_for_tasks_outlives_the_idle_timeout(database: str, plan: ColumnPlan) -> None:
    """C12: the server ends idle transactions, to be rid of drivers that are gone; this one is not."""
    with transaction(database) as connection:
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'")
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with Copying(connection, target(plan), idle_s=IDLE_TIMEOUT_S / 3) as copying:
            copying.send(0, orders(plan, (1, "early")))
            long = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND now() - xact_start > '{3 * IDLE_TIMEOUT_S}s'"
            wait_until(lambda: rows(database, long), deadline_s=30, what="a transaction of some age")
            copying.send(1, orders(plan, (2, "late")))
        assert copying.finish(lane_0=2) == 2
    assert rows(database, "SELECT id, item FROM orders ORDER BY id") == [(1, "early"), (2, "late")]


def test_a_row_that_is_refused_is_named_and_tasks_are_told_at_once(database: str, plan: ColumnPlan) -> None:
    """Errors of the table are those of a COPY that comes at the end; the tasks' own end does not hide it."""
    run(database, "ALTER TABLE orders ADD PRIMARY KEY (id)")

    def job(copying: Copying) -> None:
        copying.send(0, orders(plan, (1, "a"), (1, "b")), count=2)
        wait_until(lambda: copying.source.failure is not None, deadline_s=10, what="the failure of the attempt")
        raise BatchRetryError(reason="the driver ended the attempt")

    refused = pytest.raises(ConstraintError, match=r"\(id\)=\(1\)")
    with transaction(database, commit=False) as connection, refused, Copying(connection, target(plan)) as copying:
        job(copying)


def test_rows_that_refer_to_another_table_come_after_it(database: str, plan: ColumnPlan) -> None:
    """C10: in whatever order tasks send them. What waits is on the disk of the driver, and is removed."""
    run(database, "ALTER TABLE orders ADD PRIMARY KEY (id)")
    run(database, "CREATE TABLE lines (id bigint REFERENCES orders, item text)")
    lines = plan_of(database, table="lines")
    with transaction(database) as connection:
        with Copying(connection, target(plan), target(lines, lane=1, waits=True)) as copying:
            copying.send(0, orders(lines, (1, "a line"), (2, "another")), lane=1, count=2)
            copying.send(1, orders(plan, (1, "a"), (2, "b")), count=2)
        assert copying.finish(lane_0=2, lane_1=2) == 4
        copying.copy.close()
    assert rows(database, "SELECT count(*) FROM lines") == [(2,)]


@pytest.mark.parametrize("encoded", [0, 1, 3])
def test_another_number_of_rows_than_tasks_have_encoded_is_refused(
    database: str, plan: ColumnPlan, encoded: int
) -> None:
    """B22, C10: Spark's job says what was made, and PostgreSQL what has arrived."""
    with transaction(database, commit=False) as connection:
        with Copying(connection, target(plan)) as copying:
            copying.send(0, orders(plan, (1, "a"), (2, "b")), count=2)
        with pytest.raises(BatchRetryError, match="the database received 2"):
            copying.finish(lane_0=encoded)


def test_a_job_that_fails_does_not_wait_for_a_lock(database: str, plan: ColumnPlan) -> None:
    """The connection is cut, so that nothing uses it when the transaction is rolled back."""
    with transaction(database, commit=False) as other, transaction(database, commit=False) as connection:
        other.exec_driver_sql("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        begun_s = time.monotonic()
        with pytest.raises(JobFailedError), Copying(connection, target(plan), early=True):
            raise JobFailedError
        assert time.monotonic() - begun_s < STOPPED_S
        connection.invalidate()


# --- a server that stands still -------------------------------------------------------------------------------------


class Stopper:
    """Stops a server once, where it is told to."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.stopped_s: float | None = None

    def stop(self) -> None:
        if self.stopped_s is None:
            self.server.pause()
            self.stopped_s = time.monotonic()

    def before(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, *, call: int = 1) -> None:
        """Stop when ``method`` is called for the ``call``-th time."""
        original = getattr(owner, method)
        calls = iter(range(1, 1_000))

        def called(*arguments: Any, **more: Any) -> Any:
            if next(calls) == call:
                self.stop()
            return original(*arguments, **more)

        monkeypatch.setattr(owner, method, called)

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Stopped in the block, which ends long before the server goes on; it goes on afterwards."""
        late = threading.Timer(STOPPED_S, self.server.resume)
        late.start()
        try:
            yield
        finally:
            late.cancel()
            self.server.resume()
        assert self.stopped_s is not None, "nothing has stopped the server"
        assert time.monotonic() - self.stopped_s < STOPPED_S / 2


@pytest.fixture
def stopper(start_postgres: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Stopper:
    """Of a server of its own."""
    for module in ("jdbc_state.deciding", "jdbc_state.connections"):
        monkeypatch.setattr(f"{module}.ANSWER_GRACE_MS", 0)
    return Stopper(start_postgres())


def attempt(store: SqlStateStore, plan: ColumnPlan) -> None:
    """What an attempt does with rows, but for the decision."""
    row = claim(store)
    with store.deciding(ID, row.generation) as deciding:
        with Copying(deciding.connection, target(plan, KeyedRows)) as copying:
            copying.send(0, orders(plan, (1, "x" * 2**21)))
        assert copying.finish(lane_0=1) == 1
        assert deciding.connection.exec_driver_sql("SELECT count(*) FROM orders").scalar() == 1


@pytest.mark.parametrize(
    ("owner", "method", "call"),
    [
        pytest.param(KeyedRows, "__init__", 1, marks=pytest.mark.thorough),
        (CopyReader, "read", 3),
        pytest.param(KeyedRows, "write", 1, marks=pytest.mark.thorough),
        (KeyedRows, "finish", 1),
    ],
    ids=["LOCK TABLE", "COPY", "INSERT", "SET CONSTRAINTS"],
)
def test_a_server_that_stands_still_ends_the_attempt(
    stopper: Stopper, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, call: int
) -> None:
    """B26: no time-out of the server runs then. The batch may run again, and goes through when the server goes on."""
    url = stopper.server.create_database("shop")
    create(url, ORDERS, keys=["id"])
    with sql_store(url, statement_timeout_ms=STATEMENT_TIMEOUT_MS, commit_timeout_ms=STATEMENT_TIMEOUT_MS) as store:
        plan = plan_of(url, keys=["id"])
        stopper.before(monkeypatch, owner, method, call=call)
        with stopper.bounded(), pytest.raises(StateStoreError) as raised:
            attempt(store, plan)
        assert (raised.value.sqlstate, raised.value.retriable) == ("08006", True)
        attempt(store, plan)


def test_a_server_that_stands_still_ends_the_look_at_the_table(stopper: Stopper) -> None:
    """B26: before the first task; the connection is not used again."""
    url = stopper.server.create_database("shop")
    options = SinkOptions.parse(
        transactional_id=ID,
        topic="orders",
        table="orders",
        kafka={"bootstrap.servers": "nowhere:1"},
        database=url,
        lock_timeout_ms=STATEMENT_TIMEOUT_MS,
        statement_timeout_ms=STATEMENT_TIMEOUT_MS,
    )
    database = Database(url, settings())

    def look(*, stop: bool) -> None:
        with table_transaction(database, options, "test") as connection:
            if stop:
                stopper.stop()
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1

    with stopper.bounded(), pytest.raises(StateStoreError) as raised:
        look(stop=True)
    assert (raised.value.sqlstate, raised.value.retriable) == ("08006", True)
    look(stop=False)
    database.close()
