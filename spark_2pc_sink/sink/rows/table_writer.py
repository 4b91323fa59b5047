"""The table writer: rows of a batch into the target table, inside the deciding transaction.

All code here runs on the driver, on a SQLAlchemy connection whose transaction is begun and committed by the caller:
only own savepoints are committed or rolled back here. Rows arrive as COPY bytes encoded by tasks (`CopyEncoder`). No
session state is used, so this works through PgBouncer in transaction mode.

Errors about rows become `ConstraintError` or `DuplicateKeyError`; deadlocks, serialization failures and lost
connections are propagated as raised by psycopg2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from jdbc_state.sqlstate import AGAINST_POLICY, INSUFFICIENT_PRIVILEGE, is_retriable
from spark_2pc_sink.errors import BatchRetryError, ConfigurationError, ConstraintError
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.sink.rows.catalog import (
    TableName,
    TableTree,
    changed_column,
    driver_connection,
    identifiers,
    read_tree,
    refuse_unfit,
)
from spark_2pc_sink.sink.rows.copy_encoder import COPY_TRAILER

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_2pc_sink.sink.rows.column_plan import ColumnPlan


# SQLSTATE classes of errors in a row, or in a trigger that it fires. Deterministic: the same rows would be refused
# again. 22: data exception (invalid JSON, a character missing in the database's encoding). 23: integrity constraint
# violation. 27: triggered data change violation. 38, 39: a function in another language. 44: WITH CHECK OPTION.
# P0: PL/pgSQL, such as RAISE without an explicit code.
_ROW_CLASSES: Final = frozenset({"22", "23", "27", "38", "39", "44", "P0"})
# All classes of PostgreSQL (its manual, appendix A). Any other was invented by the function that raises it.
_SERVER_CLASS: Final = re.compile(
    "0[0-3]|0[89ABFLPZ]|10|2[0-8]|2[BDF]|34|38|39|3[BDF]|40|42|44|5[3-578]|72|F0|HV|P0|XX", re.ASCII
)
# The server's functions that report an error raised by a trigger, in PL/pgSQL and PL/Python: with any code.
_RAISED_BY_TRIGGER: Final = frozenset({"exec_stmt_raise", "PLy_elog_impl"})
# A row beyond a limit: 54000 (too long for an index entry, a page or a tsvector), 54001 (JSON nested too deep), 42622
# (name too long).
_TOO_MUCH: Final = frozenset({"54000", "54001", "42622"})
# … and functions that report an exhausted limit of a transaction or the whole server, with the same code.
_NOT_OF_ROW: Final = frozenset({"GetNewTransactionId", "GetNewMultiXactId", "CommandCounterIncrement"})

# Errors of the table or the role, for every row: 0A000 (row-level security was enabled, which COPY does not support),
# 55000 (no replica identity in a publication of updates).
_TABLE_CODES: Final = {
    INSUFFICIENT_PRIVILEGE: "have its owner grant the role what is missing. docs/permissions.md lists what the "
    "sink needs; a trigger, or a table that it writes to, may need more",
    "0A000": "change the table so that the role may write to it again, or the sink's mode",
    "55000": "change the table as the message says",
}
# A statement that PostgreSQL cannot run (42: a missing column or table, syntax), inside a function in PL/pgSQL or a
# similar language, which the error context names in every server language.
_STATEMENT_CLASS: Final = "42"
_IN_FUNCTION: Final = "PL/"
# … and errors of input functions about a text: 42 (an invalid tsvector or path, a missing regclass), 3F (no such
# schema), XX000 (an invalid hstore, before PostgreSQL 16).
_NO_VALUE: Final = re.compile("42...|3F000|XX000", re.ASCII)
_CORRECT_FUNCTION: Final = "correct the function that the message names, which a trigger runs, or drop the trigger"


@contextmanager
def refused_rows(table: TableName, *, casts: bool = False) -> Iterator[None]:
    """Turn PostgreSQL's refusal of a row, or of the role, into a sentence. Other errors are propagated unchanged.

    Deadlocks, serialization failures, timeouts and lost connections are not about the rows: the owner of the
    transaction decides how to proceed. A trigger that raises one of their codes requests the same.

    Args:
        table: destination of the rows.
        casts: the statement converts texts to values.

    Raises:
        ConstraintError: a constraint, a type's input check, a policy or a trigger refused a row.
        ConfigurationError: the table accepts no rows of this role, or a function of its triggers cannot run.
    """
    try:
        yield
    except psycopg2.Error as error:
        code = error.pgcode or ""
        said = error.diag
        in_function = _IN_FUNCTION in (said.context or "")
        no_value = casts and not in_function and code != INSUFFICIENT_PRIVILEGE and _NO_VALUE.fullmatch(code)
        if no_value or _refuses_row(code, said.source_function or ""):
            raise ConstraintError(
                table=str(table),
                constraint=said.constraint_name or "",
                column=said.column_name or "",
                sqlstate=code,
                detail=_detail(error),
            ) from error
        remedy = _TABLE_CODES.get(code)
        if remedy is None and code.startswith(_STATEMENT_CLASS) and in_function:
            remedy = _CORRECT_FUNCTION
        if remedy is not None:
            raise ConfigurationError(
                option="table",
                value=str(table),
                rule=f"PostgreSQL takes no rows for it: {_detail(error)} [{code}]",
                remedy=remedy,
            ) from error
        raise


def _refuses_row(code: str, source_function: str) -> bool:
    """True for an error that would recur with the same rows.

    Args:
        code: the SQLSTATE; '' for a connection that broke.
        source_function: server function, whose name does not depend on the message language.
    """
    if not code or is_retriable(code):
        return False
    if code in _TOO_MUCH:
        return source_function not in _NOT_OF_ROW
    if code[:2] in _ROW_CLASSES or not _SERVER_CLASS.fullmatch(code[:2]):
        return True
    return source_function in _RAISED_BY_TRIGGER or source_function == AGAINST_POLICY


def _detail(error: psycopg2.Error) -> str:
    """PostgreSQL's message in one line: text, detail with the key, hint, and the row of the COPY."""
    said = error.diag
    parts = (said.message_primary, said.message_detail, said.message_hint, said.context)
    return "; ".join(" ".join(part.split()) for part in parts if part)


#: Signature, flags 0, header extension of 0 bytes.
HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)

#: Bytes passed to psycopg2 at a time: bounds the copies made by it and libpq. Measured with 93 MB, sizes from 8 KiB to
#: 8 MiB are equally fast, so a size was chosen that has no noticeable memory cost.
READ_BYTES = 256 * 1024


#: COPY bytes of whole rows: any object with the buffer protocol, such as bytes or a memoryview.
Rows = Any


class CopyReader:
    """The file read by ``copy_expert``: all rows after one header, and then the trailer.

    Args:
        pieces: COPY bytes of whole rows. Each is taken after the previous one has been read.
    """

    def __init__(self, pieces: Iterable[Rows]) -> None:
        self._slices = _slices(pieces)
        self._failure: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        """The exception raised by :meth:`read`: psycopg2 passes on only its text, as a canceled query."""
        return self._failure

    def read(self, size: int = READ_BYTES) -> bytes:
        """The next bytes, at most `READ_BYTES` of them; empty at the end. ``size`` is psycopg2's preferred size.

        Raises:
            Exception: an exception of the iterable of pieces.
        """
        del size  # psycopg2 accepts any size
        try:
            return next(self._slices, b"")
        except Exception as error:
            self._failure = error
            raise


def copy_rows(
    cursor: psycopg2.extensions.cursor, table: TableName, columns: Sequence[str], pieces: Iterable[Rows]
) -> int:
    """Copy rows into a table by one command, and return their number.

    Args:
        cursor: cursor inside a transaction.
        table: the destination.
        columns: columns of each row.
        pieces: COPY bytes of whole rows.

    Raises:
        psycopg2.Error: PostgreSQL refused a row, or the connection failed.
        Exception: an exception of the iterable of pieces.
    """
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(table.identifier, identifiers(columns))
    reader = CopyReader(pieces)
    source: Any = reader  # COPY FROM calls only read() of a file's methods
    try:
        cursor.copy_expert(statement, source, READ_BYTES)
    except psycopg2.Error:
        if reader.failure is not None:
            raise reader.failure from None
        raise
    return cursor.rowcount


def _slices(pieces: Iterable[Rows]) -> Iterator[bytes]:
    yield HEADER
    for piece in pieces:
        rows = memoryview(piece).cast("B")
        for start in range(0, len(rows), READ_BYTES):
            yield bytes(rows[start : start + READ_BYTES])
    yield COPY_TRAILER


class TableRows(Protocol):
    """The rows of a batch to be written to the target; creating it locks the target as COPY does."""

    def copy(self, pieces: Iterable[Rows]) -> int:
        """Copy rows, and return their number.

        Args:
            pieces: COPY bytes of whole rows; each is requested after the previous one has been sent.

        Raises:
            ConstraintError: the table refused a row.
            Exception: an exception of the iterable of pieces.
        """

    def delete(self) -> None:
        """Delete rows, if planned; all rows have been copied, and none of them is written yet.

        Raises:
            ConstraintError: the table refused it.
            DuplicateKeyError: see `finish`.
        """

    def write(self) -> None:
        """Write the collected rows.

        Raises:
            ConstraintError: the table refused a row.
            DuplicateKeyError: see `finish`.
        """

    def finish(self, rows: int) -> WrittenRows:
        """Check that all rows have arrived, and return the table's counts.

        Deferred constraints are checked now: with several tables, each is written before the first is finished.

        Args:
            rows: number of rows encoded by its sources.

        Raises:
            ConstraintError: the table refused a row, or a trigger dropped one; also violations of its deferred
                constraints.
            DuplicateKeyError: with keys: one occurs twice and there is no order, or twice with the greatest.
                Raised as soon as it is detected.
        """

    def forget(self) -> None:
        """Remove auxiliary tables: other rows may follow in the same transaction."""


class BatchRows:
    """The common part of all ways of writing.

    Args:
        connection: connection inside the deciding transaction.
        plan: plan with which the rows are encoded.

    Raises:
        BatchRetryError: the table was altered since it was planned.
        ConfigurationError: it is no longer a table that may get rows, see `refuse_unfit`.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        self._connection = driver_connection(connection)
        self._plan = plan
        self._copied = 0
        with self._connection.cursor() as cursor, refused_rows(plan.table):
            try:
                self._tree = self._look(cursor, lock=True)
            except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName) as error:
                # Not planned again: create_table would create another one, with half of the rows in the old one.
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
        """The table after its last row, and after triggers at the end of a transaction."""
        self._check_deferred(cursor)
        # The lock does not prevent attaching a partition. One that has our rows is locked at this point.
        return self._look(cursor, lock=False) if self._tree.partitioned or self._tree.triggers else self._tree

    def _check_deferred(self, cursor: psycopg2.extensions.cursor) -> None:
        """Check deferred constraints now, while the rows that break one can still be named.

        Once, after all rows of the batch: a row may refer to another that was written in another way.
        """
        with refused_rows(self._plan.table):
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _refuse_missing(self, given: int, arrived: int) -> None:
        """Every way of writing must have as many rows arrive as were given."""
        if arrived != given:
            raise self._refused(
                f"{given} rows were given to it and {arrived} arrived: a trigger of the table leaves rows out, or "
                "deletes them"
            )

    def _refused(self, detail: str) -> ConstraintError:
        """The table does not match the server's answer; no constraint caused that."""
        return ConstraintError(table=str(self._plan.table), constraint="", column="", sqlstate="", detail=detail)


class AppendedRows(BatchRows):
    """Rows that are copied directly into the target."""

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
                # Possibly other rows: a trigger may delete old ones. Only reading all rows can tell, for which the role
                # needs SELECT.
                with refused_rows(self._plan.table):
                    arrived = self._count_arrived(cursor)
                self._refuse_missing(rows, arrived)
        return WrittenRows(given=rows, written=rows)

    def _count_arrived(self, cursor: psycopg2.extensions.cursor) -> int:
        """The rows written by this transaction; capped at those given, if a trigger has added some."""
        query = sql.SQL("SELECT count(*) FROM {}{} WHERE xmin = pg_catalog.pg_current_xact_id()::xid").format(
            sql.SQL("" if self._tree.partitioned else "ONLY "), self._plan.table.identifier
        )
        return min(self._copied, count(cursor, query))


def _texts(plan: ColumnPlan) -> TableName:
    """The staging table for rows if some columns are copied as text."""
    return TableName(name=f"_2pc_texts_{plan.lane}", schema="pg_temp")


def _texts_ddl(plan: ColumnPlan) -> sql.Composable:
    columns = [sql.SQL("{} {}").format(sql.Identifier(it.name), sql.SQL(it.copied_type)) for it in plan.copied]
    return sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(
        _texts(plan).identifier, sql.SQL(", ").join(columns)
    )


def _cast_statement(plan: ColumnPlan, table: TableName) -> sql.Composable:
    """Move rows on. Assignment to a column rejects values beyond its length, where a cast would truncate them."""
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
    """The single number returned by a query."""
    cursor.execute(query)
    [(found,)] = cursor.fetchall()
    return int(found)


def altered_error(what: str) -> BatchRetryError:
    """The table was altered: planned again, the batch may fit the altered table, or the error says what is wrong.

    Args:
        what: the change.
    """
    return BatchRetryError(reason=f"the table was altered after the batch was planned: {what}")


def _refuse_changed_columns(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> None:
    changed = changed_column(cursor, plan.table, (column.target for column in plan.columns))
    if changed is not None:
        raise altered_error(f"column {changed}")
