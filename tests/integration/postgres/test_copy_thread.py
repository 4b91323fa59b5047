"""Rows that are written while a job runs, on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from jdbc_state import SqlStateStore
from jdbc_state.connections import Database
from spark_2pc_sink.errors import ConstraintError, StateStoreError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt
from spark_2pc_sink.sink.contract.row_transfer import Staging, Transfer
from spark_2pc_sink.sink.table.column_plan import ColumnPlan
from spark_2pc_sink.sink.table.copy_stream import CopyReader
from spark_2pc_sink.sink.table.keyed_rows import KeyedRows
from spark_2pc_sink.sink.transfer.copy_channel import CopyChannel
from spark_2pc_sink.sink.transfer.staging_files import FileStaging
from spark_2pc_sink.sink.transfer.staging_tables import StagedTables
from spark_2pc_sink.sink.transfer.table_loader import TableLoader
from spark_2pc_sink.testing import wait_until
from tests.integration.postgres.database_tables import ORDERS, create, orders, plan_of, rows, run, transaction
from tests.integration.postgres.staging_places import LARGE, TICKET, copied, copying, stage, tables
from tests.integration.state.state_stores import ID, claim, settings, sql_store

IDLE_TIMEOUT_S = 1.2
STATEMENT_TIMEOUT_MS = 1_500
#: After this a stopped server goes on whatever happens, so that a wait without a bound ends too, and is noticed.
STOPPED_S = 20.0


@pytest.fixture
def plan(database: str) -> ColumnPlan:
    create(database, ORDERS)
    return plan_of(database)


@pytest.mark.parametrize("kind", ["tables", "files"])
def test_a_transaction_that_waits_for_tasks_outlives_the_idle_timeout(
    database: str, plan: ColumnPlan, tmp_path: Path, kind: str
) -> None:
    """C12: the server ends idle transactions, to be rid of drivers that are gone; this one is not."""
    channel = CopyChannel()
    place = tables(database) if kind == "tables" else FileStaging(tmp_path)
    with transaction(database) as connection:
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'")
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with copying(connection, plan, place, channel, look_s=IDLE_TIMEOUT_S / 3) as copy:
            channel.extend([Transfer(TICKET.attempt, 0, 7, tuple(orders(plan, (1, "early"))))])
            long = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND now() - xact_start > '{3 * IDLE_TIMEOUT_S}s'"
            wait_until(lambda: rows(database, long), deadline_s=30, what="a transaction of some age")
            channel.extend([Transfer(TICKET.attempt, 1, 8, tuple(orders(plan, (2, "late"))))])
        sources = (
            copied(0, 1, task_attempt=7),
            copied(1, 1, task_attempt=8),
        )
        assert copy.finish(connection, sources).given == 2
    assert rows(database, "SELECT id, item FROM orders ORDER BY id") == [(1, "early"), (2, "late")]


def test_a_row_that_is_refused_is_named(database: str, plan: ColumnPlan) -> None:
    """Errors of the table are those of a COPY that comes at the end."""
    run(database, "ALTER TABLE orders ADD PRIMARY KEY (id)")
    channel = CopyChannel()
    twice = Transfer(TICKET.attempt, 0, 7, tuple(orders(plan, (1, "a"), (1, "b"))))
    refused = pytest.raises(ConstraintError, match=r"\(id\)=\(1\)")
    with (
        transaction(database, commit=False) as connection,
        refused,
        copying(connection, plan, tables(database), channel),
    ):
        channel.extend([twice])


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
    for module in ("jdbc_state.deciding", "jdbc_state.connections", "spark_2pc_sink.sink.transfer.staging_tables"):
        monkeypatch.setattr(f"{module}.ANSWER_GRACE_MS", 0)
    return Stopper(start_postgres())


def attempt(store: SqlStateStore, plan: ColumnPlan, place: Staging, staged: EncodeReceipt) -> None:
    """What an attempt does with rows by both ways, but for the decision."""
    channel = CopyChannel()
    row = claim(store)
    with store.deciding(ID, row.generation) as deciding:
        with copying(deciding.connection, plan, place, channel, KeyedRows) as copy:
            channel.extend([Transfer(TICKET.attempt, 0, 7, tuple(orders(plan, (1, LARGE))))])
        sources = copied(0, 1, task_attempt=7), staged
        assert copy.finish(deciding.connection, sources).given == 2
        assert deciding.connection.exec_driver_sql("SELECT count(*) FROM orders").scalar() == 2


@pytest.mark.parametrize(
    ("owner", "method", "call"),
    [
        (KeyedRows, "__init__", 1),
        (CopyReader, "read", 3),
        (KeyedRows, "write", 1),
        (KeyedRows, "_check_deferred", 1),
        (StagedTables, "_read", 1),
    ],
    ids=["LOCK TABLE", "COPY", "INSERT", "SET CONSTRAINTS", "reading what is staged"],
)
def test_a_server_that_stands_still_ends_the_attempt(
    stopper: Stopper, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, call: int
) -> None:
    """B26: no time-out of the server runs then. The batch may run again, and goes through when the server goes on."""
    url = stopper.server.create_database("shop")
    create(url, ORDERS, keys=["id"])
    with sql_store(url, statement_timeout_ms=STATEMENT_TIMEOUT_MS, commit_timeout_ms=STATEMENT_TIMEOUT_MS) as store:
        plan, place = plan_of(url, keys=["id"]), tables(url)
        staged = stage(place, plan, (2, "staged"), source=1)
        stopper.before(monkeypatch, owner, method, call=call)
        with stopper.bounded(), pytest.raises(StateStoreError) as raised:
            attempt(store, plan, place, staged)
        assert (raised.value.sqlstate, raised.value.retriable) == ("08006", True)
        attempt(store, plan, place, staged)


def test_a_server_that_stands_still_ends_a_task(stopper: Stopper, monkeypatch: pytest.MonkeyPatch) -> None:
    """B26: one that stages rows."""
    url = stopper.server.create_database("shop")
    create(url, ORDERS)
    plan, place = plan_of(url), tables(url, statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    stopper.before(monkeypatch, CopyReader, "read", call=2)
    with stopper.bounded(), pytest.raises(psycopg2.OperationalError):
        stage(place, plan, (1, LARGE))


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
    loader = TableLoader(options, options.lanes[0], database)

    def look(*, stop: bool) -> None:
        with loader._transaction("test") as connection:
            if stop:
                stopper.stop()
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1

    with stopper.bounded(), pytest.raises(StateStoreError) as raised:
        look(stop=True)
    assert (raised.value.sqlstate, raised.value.retriable) == ("08006", True)
    look(stop=False)
    database.close()
