"""Rows that are written while a job runs, on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_2pc_sink.errors import ConstraintError
from spark_2pc_sink.sink.columns import ColumnPlan
from spark_2pc_sink.sink.receipts import EncodedSource
from spark_2pc_sink.sink.row_feed import RowFeed, SourceRows
from spark_2pc_sink.sink.staging_files import FileStaging
from spark_2pc_sink.testing import wait_until
from tests.integration.database_tables import ORDERS, create, orders, plan_of, rows, run, transaction
from tests.integration.staging_places import TICKET, copying, tables

IDLE_TIMEOUT_S = 0.6


@pytest.fixture
def plan(database: str) -> ColumnPlan:
    create(database, ORDERS)
    return plan_of(database)


@pytest.mark.parametrize("kind", ["tables", "files"])
def test_a_transaction_that_waits_for_tasks_outlives_the_idle_timeout(
    database: str, plan: ColumnPlan, tmp_path: Path, kind: str
) -> None:
    """C12: the server ends idle transactions, to be rid of drivers that are gone; this one is not."""
    feed = RowFeed()
    place = tables(database) if kind == "tables" else FileStaging(tmp_path)
    with transaction(database) as connection:
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'")
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with copying(connection, plan, place, feed, look_s=IDLE_TIMEOUT_S / 3) as copy:
            feed.extend([SourceRows(TICKET.attempt, 0, 7, tuple(orders(plan, (1, "early"))))])
            long = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND now() - xact_start > '{3 * IDLE_TIMEOUT_S}s'"
            wait_until(lambda: rows(database, long), deadline_s=30, what="a transaction of some age")
            feed.extend([SourceRows(TICKET.attempt, 1, 8, tuple(orders(plan, (2, "late"))))])
        sources = EncodedSource(0, run=7, copy_rows=1), EncodedSource(1, run=8, copy_rows=1)
        assert copy.finish(connection, sources) == 2
    assert rows(database, "SELECT id, item FROM orders ORDER BY id") == [(1, "early"), (2, "late")]


def test_a_row_that_is_refused_is_named(database: str, plan: ColumnPlan) -> None:
    """Errors of the table are those of a COPY that comes at the end."""
    run(database, "ALTER TABLE orders ADD PRIMARY KEY (id)")
    feed = RowFeed()
    twice = SourceRows(TICKET.attempt, 0, 7, tuple(orders(plan, (1, "a"), (1, "b"))))
    refused = pytest.raises(ConstraintError, match=r"\(id\)=\(1\)")
    with transaction(database, commit=False) as connection, refused, copying(connection, plan, tables(database), feed):
        feed.extend([twice])
