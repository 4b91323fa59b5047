"""The table writer: rows of a batch into the target table, inside the transaction that decides.

Everything here runs on the driver, on a SQLAlchemy connection whose transaction someone else began and will commit:
nothing here commits or rolls back more than its own savepoint. Rows arrive as COPY bytes that tasks encoded
(`CopyEncoder`). No session state is used, so all of it works behind PgBouncer in transaction mode.

Errors that say something about rows become `ConstraintError` or `DuplicateKeyError`; deadlocks, serialization
failures and lost connections pass as psycopg2 raised them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from spark_2pc_sink.errors import BatchRetryError, ConfigurationError, ConstraintError
from spark_2pc_sink.sink.table.catalog import changed_column, driver_connection
from spark_2pc_sink.sink.table.column_plan import ColumnPlan
from spark_2pc_sink.sink.table.copy_stream import Rows, copy_rows
from spark_2pc_sink.sink.table.identifiers import TableName, identifiers
from spark_2pc_sink.sink.table.row_errors import refused_rows
from spark_2pc_sink.sink.table.table_tree import TableTree, read_tree, refuse_unfit
from spark_2pc_sink.sink.written_rows import WrittenRows

if TYPE_CHECKING:
    from sqlalchemy import Connection


class TableRows(Protocol):
    """The rows of a batch on their way into the target; begun by making it, which locks the target as COPY does."""

    def copy(self, pieces: Iterable[Rows]) -> int:
        """Take rows, and return how many there were.

        Args:
            pieces: COPY bytes of whole rows; one is asked for when the one before has been sent.

        Raises:
            ConstraintError: the table refused a row.
            Exception: what the iterable of pieces raises.
        """

    def delete(self) -> None:
        """Delete rows, where the plan says so; all rows have been copied, and none of them is written yet.

        Raises:
            ConstraintError: the table refused it.
            DuplicateKeyError: see `finish`.
        """

    def write(self) -> None:
        """Write what has gathered.

        Raises:
            ConstraintError: the table refused a row.
            DuplicateKeyError: see `finish`.
        """

    def finish(self, rows: int) -> WrittenRows:
        """Check that all rows have arrived, and say what the table has made of them.

        Deferred constraints are checked now: of several tables, each is written before the first is finished.

        Args:
            rows: how many its sources have encoded.

        Raises:
            ConstraintError: the table refused a row, or a trigger swallowed one; also what its deferred constraints
                refuse.
            DuplicateKeyError: of rows with keys: one occurs twice and there is no order, or twice with the greatest.
                Raised as soon as it is noticed.
        """

    def forget(self) -> None:
        """Remove what is beside the table: other rows may follow in the same transaction."""


class BatchRows:
    """What all ways of writing share.

    Args:
        connection: inside the deciding transaction.
        plan: the plan with which the rows are encoded.

    Raises:
        BatchRetryError: the table was altered since it was planned.
        ConfigurationError: it is no table any more to which rows may go, see `refuse_unfit`.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        self._connection = driver_connection(connection)
        self._plan = plan
        self._copied = 0
        with self._connection.cursor() as cursor, refused_rows(plan.table):
            try:
                self._tree = self._look(cursor, lock=True)
            except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName) as error:
                # Not planned again: create_table would make another one, and half of the rows would be elsewhere.
                raise ConfigurationError(
                    option="table",
                    value=str(plan.table),
                    rule="it was there before, and is gone: renamed, dropped, or moved to another schema",
                    remedy="put it back, or name the table that it has become; then start the job again",
                ) from error
            _refuse_changed_columns(cursor, plan)
            if plan.casts:
                cursor.execute(_texts_ddl(plan))

    def forget(self) -> None:
        """See `TableRows.forget`."""
        if self._plan.casts:
            with self._connection.cursor() as cursor:
                cursor.execute(sql.SQL("DROP TABLE {}").format(_texts(self._plan).identifier))

    def _copy(self, pieces: Iterable[Rows], table: TableName) -> int:
        plan = self._plan
        into = _texts(plan) if plan.casts else table
        with self._connection.cursor() as cursor, refused_rows(plan.table, casts=plan.casts):
            copied = copy_rows(cursor, into, plan.copied_names, pieces)
            if plan.casts:
                cursor.execute(_cast_statement(plan, table))
                copied = cursor.rowcount
                cursor.execute(sql.SQL("TRUNCATE {}").format(into.identifier))
        self._copied += copied
        return copied

    def _look(self, cursor: psycopg2.extensions.cursor, *, lock: bool) -> TableTree:
        tree = read_tree(cursor, self._plan.table, lock=lock)
        refuse_unfit(tree, self._plan.table, upsert=bool(self._plan.upsert_keys), deletes=self._plan.delete is not None)
        return tree

    def _look_again(self, cursor: psycopg2.extensions.cursor) -> TableTree:
        """The table after its last row, and after what triggers do at the end of a transaction."""
        self._check_deferred(cursor)
        # The lock keeps nobody from attaching a partition. One that has our rows is locked by now.
        return self._look(cursor, lock=False) if self._tree.partitioned or self._tree.triggers else self._tree

    def _check_deferred(self, cursor: psycopg2.extensions.cursor) -> None:
        """Check deferred constraints now, while the rows that break one can still be named.

        Once, after all rows of the batch: a row may refer to another that came by another way.
        """
        with refused_rows(self._plan.table):
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _refuse_missing(self, given: int, arrived: int) -> None:
        """The rule of every way of writing: as many rows have arrived as were given."""
        if arrived != given:
            raise self._refused(
                f"{given} rows were given to it and {arrived} arrived: a trigger of the table leaves rows out, or "
                "deletes them"
            )

    def _refused(self, detail: str) -> ConstraintError:
        """The table has not done what the server said; no constraint of it did that."""
        return ConstraintError(table=str(self._plan.table), constraint="", column="", sqlstate="", detail=detail)


class AppendedRows(BatchRows):
    """Rows that go into the target as they are."""

    def copy(self, pieces: Iterable[Rows]) -> int:
        """See `TableRows.copy`."""
        return self._copy(pieces, self._plan.table)

    def delete(self) -> None:
        """See `TableRows.delete`: there are no keys."""

    def write(self) -> None:
        """See `TableRows.write`: they are copied into the target itself."""

    def finish(self, rows: int) -> WrittenRows:
        """See `TableRows.finish`."""
        with self._connection.cursor() as cursor:
            tree = self._look_again(cursor)
            self._refuse_missing(rows, self._copied)
            if tree.may_have_lost(self._tree):
                # Perhaps others: a trigger may delete what is old. Nothing tells but a look at all rows, for which the
                # role needs SELECT.
                with refused_rows(self._plan.table):
                    arrived = self._count_arrived(cursor)
                self._refuse_missing(rows, arrived)
        return WrittenRows(given=rows, written=rows)

    def _count_arrived(self, cursor: psycopg2.extensions.cursor) -> int:
        """The rows that this transaction has written; not more than there were, if a trigger has added some."""
        query = sql.SQL("SELECT count(*) FROM {}{} WHERE xmin = pg_catalog.pg_current_xact_id()::xid").format(
            sql.SQL("" if self._tree.partitioned else "ONLY "), self._plan.table.identifier
        )
        return min(self._copied, count(cursor, query))


def _texts(plan: ColumnPlan) -> TableName:
    """The table through which rows go where some columns are copied as text."""
    return TableName(name=f"_2pc_texts_{plan.lane}", schema="pg_temp")


def _texts_ddl(plan: ColumnPlan) -> sql.Composable:
    columns = [sql.SQL("{} {}").format(sql.Identifier(it.name), sql.SQL(it.copied_type)) for it in plan.copied]
    return sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(
        _texts(plan).identifier, sql.SQL(", ").join(columns)
    )


def _cast_statement(plan: ColumnPlan, table: TableName) -> sql.Composable:
    """Move rows on. The assignment to a column judges what is beyond its length, where a cast would cut it off."""
    values = [
        sql.SQL("{}::{}").format(sql.Identifier(column.name), sql.SQL(column.target.stored_type))
        if column.storage.cast
        else sql.Identifier(column.name)
        for column in plan.copied
    ]
    return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
        table.identifier, identifiers(plan.copied_names), sql.SQL(", ").join(values), _texts(plan).identifier
    )


def count(cursor: psycopg2.extensions.cursor, query: sql.Composable) -> int:
    """The one number that a query answers."""
    cursor.execute(query)
    [(found,)] = cursor.fetchall()
    return int(found)


def altered_error(what: str) -> BatchRetryError:
    """The table was altered: planned again, the batch may fit the table as it is now, or the error says what is wrong.

    Args:
        what: has changed.
    """
    return BatchRetryError(reason=f"the table was altered after the batch was planned: {what}")


def _refuse_changed_columns(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> None:
    changed = changed_column(cursor, plan.table, (column.target for column in plan.columns))
    if changed is not None:
        raise altered_error(f"column {changed}")
