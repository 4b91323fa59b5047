"""Append: the rows of all tasks by one COPY, in the caller's transaction, while a job runs. C8, C12."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types as t

from spark_2pc_sink.errors import BatchRetryError, ConstraintError
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from spark_2pc_sink.sink.rows.table_copy import AppendedRows, CopyTarget, TableCopy
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, LocalStream
from spark_2pc_sink.sink.stream.background_task import attempt_threads
from spark_2pc_sink.testing import wait_until
from tests.integration.postgres.database_tables import (
    ORDERS,
    create,
    orders,
    plan_of,
    put,
    rows,
    run,
    stream,
    table,
    transaction,
    write,
)

RAISING_TRIGGER = """
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not %', NEW.id; END $$;
CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no()
"""


KEYED = "ALTER TABLE orders ADD PRIMARY KEY (id)"


@pytest.mark.parametrize(
    ("ddl", "values", "said"),
    [
        (KEYED, [(1, "a"), (1, "b")], r"\(constraint orders_pkey\): .*\(id\)=\(1\)"),
        ("ALTER TABLE orders ADD CONSTRAINT c CHECK (id > 0)", [(0, "a")], r"\(constraint c\): .*contains \(0, a\)"),
        ("ALTER TABLE orders ALTER item TYPE jsonb USING null", [(1, "no")], r'"no" is invalid.* \[22P02\]'),
        (RAISING_TRIGGER, [(7, "a")], "not 7.*P0001"),
    ],
)
def test_row_that_the_table_refuses_is_named(database: str, ddl: str, values: Any, said: str) -> None:
    run(database, "CREATE TABLE orders (id bigint, item text)", ddl)
    plan = plan_of(database)
    with pytest.raises(ConstraintError, match=said) as caught:
        put(database, plan, *values)
    assert caught.value.table == '"public"."orders"'
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes
    assert table(database) == []


@pytest.fixture
def plan(database: str) -> ColumnPlan:
    create(database, ORDERS)
    return plan_of(database)


def test_errors_that_say_nothing_about_rows_pass_unchanged(database: str, plan: ColumnPlan) -> None:
    """C7: whoever owns the transaction sees what it was."""
    with transaction(database) as blocker, transaction(database) as connection:
        blocker.exec_driver_sql("LOCK TABLE orders")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 100")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            write(connection, plan, [orders(plan, (1, "a"))])
        connection.rollback()


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("ALTER id TYPE double precision", "'id' .* was bigint and is double precision"),
        ("RENAME item TO name", "'item' .* was text and is gone"),
    ],
)
def test_table_that_was_altered_since_it_was_planned_takes_no_rows(
    database: str, plan: ColumnPlan, ddl: str, said: str
) -> None:
    """COPY BINARY has no types: a bigint's eight bytes would be read as a double without any error. C12."""
    run(database, f"ALTER TABLE orders {ddl}", "ALTER TABLE orders ADD unrelated int")
    with pytest.raises(BatchRetryError, match=said):
        put(database, plan, (1, "long"))
    assert table(database) == []


def test_deferred_constraints_are_checked_after_all_rows(database: str) -> None:
    """A row may refer to one that another task brings; COMMIT is too late to tell a bad row from a lost answer."""
    run(
        database,
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text, "
        "parent bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED)",
    )
    fields = {"id": t.LongType(), "parent": t.LongType()}
    plan = plan_of(database, fields)

    def children(*pairs: tuple[int, int]) -> list[bytes]:
        ids, parents = zip(*pairs, strict=True)
        return stream(plan, pa.record_batch({"id": ids, "parent": parents}))

    with transaction(database) as connection:
        assert write(connection, plan, [children((1, 2)), children((2, 1))]).given == 2
    refused = r"orders_parent_fkey\): .*\(parent\)=\(9\) is not present"
    with transaction(database, commit=False) as connection, pytest.raises(ConstraintError, match=refused):
        write(connection, plan, [children((3, 9))])
    assert rows(database, "SELECT count(*) FROM orders") == [(2,)]


# --- rows that are written while a job runs --------------------------------------------------------------------------

IDLE_TIMEOUT_S = 0.9
#: After this a stopped server goes on whatever happens, so that a wait without a bound ends too, and is noticed.
STOPPED_S = 20.0


class JobFailedError(Exception):
    """What Spark raises."""


class Copying:
    """One attempt: tasks that send rows, and the copy of these."""

    def __init__(
        self, connection: sa.Connection, *targets: CopyTarget, idle_s: float = 20, early: bool = False
    ) -> None:
        self.source, self.connection = AttemptInput(2**26, 2), connection
        self.copy = TableCopy(
            self.source, open_decision=lambda: connection, targets=targets, idle_s=idle_s, early=early
        )

    def __enter__(self) -> Copying:
        self.threads = attempt_threads(self.source, self.copy.task)
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


def copied_to(plan: ColumnPlan, lane: int = 0, *, waits: bool = False) -> CopyTarget:
    return CopyTarget(lane, lambda connection: AppendedRows(connection, plan), waits=waits)


def test_rows_are_written_while_the_job_runs(database: str, plan: ColumnPlan) -> None:
    """One COPY for frames that follow each other, and another one after a pause."""
    with transaction(database) as connection, Copying(connection, copied_to(plan)) as copying:
        copying.send(0, orders(plan, (1, "a")))
        wait_until(lambda: copying.copy._copied[0] == 1, deadline_s=10, what="the first row")
        copying.send(1, orders(plan, (2, "b"), (3, "c")), count=2)
        copying.source.close_input()
        copying.copy.task.finish()
        assert copying.finish(lane_0=3) == 3
    assert table(database) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_transaction_that_waits_for_tasks_outlives_the_idle_timeout(database: str, plan: ColumnPlan) -> None:
    """C12: the server ends idle transactions, to be rid of drivers that are gone; this one is not."""
    with transaction(database) as connection:
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'")
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with Copying(connection, copied_to(plan), idle_s=IDLE_TIMEOUT_S / 3) as copying:
            copying.send(0, orders(plan, (1, "early")))
            long = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND now() - xact_start > '{3 * IDLE_TIMEOUT_S}s'"
            wait_until(lambda: rows(database, long), deadline_s=30, what="a transaction of some age")
            copying.send(1, orders(plan, (2, "late")))
        assert copying.finish(lane_0=2) == 2
    assert table(database) == [(1, "early"), (2, "late")]


def test_rows_that_refer_to_another_table_come_after_it(database: str, plan: ColumnPlan) -> None:
    """C10: in whatever order tasks send them. What waits is on the disk of the driver, and is removed."""
    run(database, KEYED, "CREATE TABLE lines (id bigint REFERENCES orders, item text)")
    lines = plan_of(database, table="lines")
    with transaction(database) as connection:
        with Copying(connection, copied_to(plan), copied_to(lines, lane=1, waits=True)) as copying:
            copying.send(0, orders(lines, (1, "a line"), (2, "another")), lane=1, count=2)
            copying.send(1, orders(plan, (1, "a"), (2, "b")), count=2)
        assert copying.finish(lane_0=2, lane_1=2) == 4
        copying.copy.close()
    assert rows(database, "SELECT count(*) FROM lines") == [(2,)]


@pytest.mark.parametrize("encoded", [1, 3])
def test_another_number_of_rows_than_tasks_have_encoded_is_refused(
    database: str, plan: ColumnPlan, encoded: int
) -> None:
    """B22, C10: Spark's job says what was made, and PostgreSQL what has arrived."""
    with transaction(database, commit=False) as connection:
        with Copying(connection, copied_to(plan)) as copying:
            copying.send(0, orders(plan, (1, "a"), (2, "b")), count=2)
        with pytest.raises(BatchRetryError, match="the database received 2"):
            copying.finish(lane_0=encoded)


def test_a_job_that_fails_does_not_wait_for_a_lock(database: str, plan: ColumnPlan) -> None:
    """The connection is cut, so that nothing uses it when the transaction is rolled back."""
    with transaction(database, commit=False) as other, transaction(database, commit=False) as connection:
        other.exec_driver_sql("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        begun_s = time.monotonic()
        with pytest.raises(JobFailedError), Copying(connection, copied_to(plan), early=True):
            raise JobFailedError
        assert time.monotonic() - begun_s < STOPPED_S
        connection.invalidate()
