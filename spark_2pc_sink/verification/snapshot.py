"""The snapshot: the state row, its history and the table, as they were at one instant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, select, text

from jdbc_state import HistoryLine, StateRow, StoreSettings
from jdbc_state.claim import row_columns, row_of
from jdbc_state.connections import Database, discard, driver_connection
from jdbc_state.history import figures_of, newest_line
from jdbc_state.schema import FIGURES, StateTables, quoted
from jdbc_state.sqlstate import translated
from spark_2pc_sink.verification.staging import SETTINGS, cancel, utf8_client

if TYPE_CHECKING:
    from psycopg2.extensions import connection as DriverConnection
    from psycopg2.extensions import cursor as Cursor

#: Up to a tenth more lines than wanted are there, see `jdbc_state.history`.
_LINES_SHARE = 10


@dataclass(frozen=True)
class Snapshot:
    """One transaction that sees nothing of what is committed after it began. It changes nothing.

    Attributes:
        row: the state row; None where there is none.
        lines: of its history, the oldest first.
    """

    connection: Connection
    row: StateRow | None
    lines: Sequence[HistoryLine]

    @property
    def driver(self) -> DriverConnection:
        """psycopg2's connection, in the same transaction."""
        return cast("DriverConnection", driver_connection(self.connection))

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement answers; nothing for one that is no query."""
        with self.driver.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """The same for many rows, which are fetched one portion after the other."""
        with self.driver.cursor("verify_stream") as cursor:
            cursor.execute(statement)
            yield from cursor

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Remove whatever the block makes, when it ends well; else the transaction is of no more use."""
        self.run("SAVEPOINT undone")
        yield
        self.run("ROLLBACK TO SAVEPOINT undone; RELEASE SAVEPOINT undone")

    @contextmanager
    def cancelled_on_error(self) -> Iterator[None]:
        """End what a thread has the database do here when the block fails, or Ctrl-C ends it: nobody waits for it."""
        try:
            yield
        except BaseException:
            cancel(self.driver)
            raise

    def cursor(self) -> Cursor:
        """A cursor in the transaction."""
        return self.driver.cursor()


@contextmanager
def taken_snapshot(
    database: Database, settings: StoreSettings, transactional_id: str, *, statement_timeout_ms: int
) -> Iterator[Snapshot]:
    """Take a snapshot for a block; afterwards its session is closed, and whatever it was doing is cancelled.

    Args:
        database: opens the session.
        settings: the names of the state tables.
        transactional_id: the sink.
        statement_timeout_ms: longest single statement.

    Raises:
        StateStoreError: the database failed, in the block too.
    """
    connection = database.open("verify").execution_options(isolation_level="REPEATABLE READ")
    try:
        with translated(database.named("verify")):
            utf8_client(driver_connection(connection))
            connection.begin()
            connection.exec_driver_sql(f"{SETTINGS}; SET LOCAL statement_timeout = {statement_timeout_ms:d}")
            tables = StateTables.named(settings)
            row = _read_row(connection, tables, transactional_id)
            lines = _read_lines(connection, tables, transactional_id, settings.history_batches)
            yield Snapshot(connection, row, lines)
    finally:
        cancel(driver_connection(connection))
        discard(connection)


def _read_row(connection: Connection, tables: StateTables, transactional_id: str) -> StateRow | None:
    if not _exists(connection, quoted(tables.state)):
        return None
    wanted = tables.state.c.transactional_id == transactional_id
    answer = connection.execute(select(*row_columns(tables.state)).where(wanted)).one_or_none()
    return None if answer is None else row_of(answer)


def _read_lines(connection: Connection, tables: StateTables, transactional_id: str, kept: int) -> list[HistoryLine]:
    if not kept or not _exists(connection, quoted(tables.history)):
        return []
    newest = newest_line(tables, transactional_id, last=kept + kept // _LINES_SHARE + 1)
    lines = newest.add_columns(figures_of(tables)).subquery()
    columns = (lines.c.event, lines.c[FIGURES], *row_columns(lines))
    found = connection.execute(select(*columns).order_by(lines.c.decision))
    return [HistoryLine(answer.event, row_of(answer), answer.figures) for answer in found]


def _exists(connection: Connection, name: str) -> bool:
    """Whether there is such a table: asking one that is not there would end the transaction."""
    return connection.scalar(text("SELECT to_regclass(:name) IS NOT NULL"), {"name": name}) is True
