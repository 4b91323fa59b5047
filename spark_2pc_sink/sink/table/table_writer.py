"""The table writer: rows of a batch into the target table, inside the transaction that decides.

Everything here runs on the driver, on a SQLAlchemy connection whose transaction someone else began and will commit:
nothing here commits or rolls back more than its own savepoint. Rows arrive as COPY BINARY streams that tasks encoded
(`CopyEncoder`). No session state is used, so all of it works behind PgBouncer in transaction mode.

Errors that say something about rows become `ConstraintError` or `DuplicateKeyError`; deadlocks, serialization
failures and lost connections pass as psycopg2 raised them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from spark_2pc_sink.errors import BatchRetryError, ConstraintError, DuplicateKeyError
from spark_2pc_sink.sink.table.catalog import changed_column, driver_connection
from spark_2pc_sink.sink.table.column_plan import ColumnPlan
from spark_2pc_sink.sink.table.copy_stream import Stream, copy_streams
from spark_2pc_sink.sink.table.identifiers import TableName, identifiers
from spark_2pc_sink.sink.table.row_errors import refused_rows
from spark_2pc_sink.sink.table.table_tree import TableTree, read_tree, refuse_unfit
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: Of the keys that occur more than once, how many a message names.
SHOWN_KEYS_MAX = 5

#: Memory for sorting the rows of an upsert, unless the server allows more: with PostgreSQL's default of 4 MB they go
#: through files (measured for 500 000 rows: 2.7 s of CPU instead of 3.6 s). Only as much is taken as there are rows.
UPSERT_WORK_MEM_KB = 64 * 1024

# Lives until the transaction ends, in the session's own schema: two sinks cannot meet in it.
_UPSERT_TABLE = TableName(name="_2pc_upsert", schema="pg_temp")
_SAVEPOINT = sql.Identifier("_2pc_upsert")
# The rows of the target in a statement that compares them with those of the batch.
_THERE = "there"


class TableRows(Protocol):
    """The rows of a batch on their way into the target; begun by making it, which locks the target as COPY does."""

    def copy(self, stream: Stream) -> int:
        """Take the rows of one complete COPY BINARY stream, and say how many there were.

        Raises:
            ConstraintError: the table refused a row.
            LocalProtocolError: the stream is not complete.
        """

    def finish(self, rows: int) -> None:
        """End with the last of them.

        Args:
            rows: how many its sources have encoded.

        Raises:
            ConstraintError: the table refused a row, or a trigger swallowed one; also what its deferred constraints
                refuse.
            DuplicateKeyError: of an upsert: a key occurs twice and there is no order, or twice with the greatest.
        """

    def forget(self) -> None:
        """Remove what is beside the table, after `finish`: other rows may follow in the same transaction."""


class _Rows:
    """What both ways share.

    Args:
        connection: inside the deciding transaction.
        plan: the plan with which the streams are encoded.

    Raises:
        BatchRetryError: the table was altered since it was planned.
        ConfigurationError: it is no table any more to which rows may go, see `refuse_unfit`.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        self._connection = driver_connection(connection)
        self._plan = plan
        self._copied = 0
        with self._connection.cursor() as cursor, refused_rows(plan.table):
            self._tree = self._look(cursor, lock=True)
            _refuse_changed_columns(cursor, plan)

    def _copy(self, stream: Stream, table: TableName, columns: Sequence[str]) -> int:
        with self._connection.cursor() as cursor, refused_rows(self._plan.table):
            copied = copy_streams(cursor, table, columns, [stream])
        self._copied += copied
        return copied

    def _look(self, cursor: psycopg2.extensions.cursor, *, lock: bool) -> TableTree:
        tree = read_tree(cursor, self._plan.table, lock=lock)
        refuse_unfit(tree, self._plan.table, upsert=bool(self._plan.upsert_keys))
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
            raise ConstraintError(
                table=str(self._plan.table),
                constraint="",
                column="",
                sqlstate="",
                detail=f"{given} rows were given to it and {arrived} arrived: a trigger of the table leaves rows out, "
                "or deletes them",
            )


class AppendedRows(_Rows):
    """Rows that go into the target as they are."""

    def copy(self, stream: Stream) -> int:
        """See `TableRows.copy`."""
        return self._copy(stream, self._plan.table, self._plan.names)

    def finish(self, rows: int) -> None:
        """See `TableRows.finish`."""
        with self._connection.cursor() as cursor:
            tree = self._look_again(cursor)
            self._refuse_missing(rows, self._copied)
            if tree.deleted != self._tree.deleted:
                # Perhaps others: a trigger may delete what is old. Nothing tells but a look at all rows.
                self._refuse_missing(rows, self._count_arrived(cursor))

    def forget(self) -> None:
        """See `TableRows.forget`: rows are nowhere else."""

    def _count_arrived(self, cursor: psycopg2.extensions.cursor) -> int:
        """The rows that this transaction has written; not more than there were, if a trigger has added some."""
        query = sql.SQL("SELECT count(*) FROM {}{} WHERE xmin = pg_catalog.pg_current_xact_id()::xid").format(
            sql.SQL("" if self._tree.partitioned else "ONLY "), self._plan.table.identifier
        )
        return min(self._copied, _count(cursor, query))


class UpsertedRows(_Rows):
    """Rows with new keys are inserted and the others updated, each key once.

    They gather in a temporary table, for which the role needs the TEMPORARY privilege. They are written in the order
    of their keys, so that two sinks on one table lock rows in the same order and cannot deadlock each other. A key
    that the batch has twice is found by PostgreSQL itself, as ON CONFLICT DO UPDATE affects no row twice in one
    statement; only then are the keys looked for.

    Args:
        connection: inside the deciding transaction.
        plan: with upsert keys.

    Attributes:
        written: rows inserted or updated: fewer than the batch has where upsert_order_by chose among rows with one key,
            or where the table has newer ones.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        super().__init__(connection, plan)
        self.written = 0
        with self._connection.cursor() as cursor, refused_rows(plan.table):
            cursor.execute(_upsert_ddl(plan))

    def copy(self, stream: Stream) -> int:
        """See `TableRows.copy`."""
        return self._copy(stream, _UPSERT_TABLE, self._plan.copied_names)

    def finish(self, rows: int) -> None:
        """See `TableRows.finish`."""
        plan = self._plan
        keys_only = set(plan.names) == set(plan.upsert_keys)
        with self._connection.cursor() as cursor:
            _allow_sorting(cursor)
            if keys_only:
                _refuse_duplicates(cursor, plan)  # DO NOTHING would be silent about them
            self.written = _write(cursor, plan)
            tree = self._look_again(cursor)
            if plan.order is None and not keys_only:
                self._refuse_missing(rows, self.written)
            elif tree.skipping_triggers:
                # Counted only where a trigger could have left one out: without, the table writes what it is given, or
                # fails; and with a million rows, counting takes a third of the time that the upsert itself takes.
                # DO NOTHING counts no key that is there already, so there every key is looked for.
                given = self._count_given(cursor) - self._count_kept_newer(cursor)
                self._refuse_missing(given, self._count_arrived(cursor) if keys_only else self.written)
            if tree.deleted != self._tree.deleted:
                # Perhaps others, or what a row in the way of an insertion took back: looking for the keys tells.
                self._refuse_missing(self._count_given(cursor), self._count_arrived(cursor))

    def forget(self) -> None:
        """See `TableRows.forget`."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql.SQL("DROP TABLE {}").format(_UPSERT_TABLE.identifier))

    def _count_given(self, cursor: psycopg2.extensions.cursor) -> int:
        """Of the rows with one key one, where there is an order.

        A statement of its own: counted within the INSERT, by a WITH, it took longer, and every batch would pay for it.
        """
        return _count(cursor, sql.SQL("SELECT count(*) FROM {}").format(_winners(self._plan)))

    def _count_kept_newer(self, cursor: psycopg2.extensions.cursor) -> int:
        """Rows that did not take the place of a newer one in the table; asked after those that did."""
        plan = self._plan
        if plan.late_rows is None:
            return 0
        query = sql.SQL(
            "SELECT count(*) FROM {winners} JOIN {target} AS {there} USING ({keys}) WHERE {not_older} IS NOT TRUE"
        ).format(
            winners=_winners(plan),
            target=plan.table.identifier,
            there=sql.Identifier(_THERE),
            keys=identifiers(plan.upsert_keys),
            not_older=plan.late_rows.not_older(given="winners", there=_THERE),
        )
        return _count(cursor, query)

    def _count_arrived(self, cursor: psycopg2.extensions.cursor) -> int:
        """The keys of the batch that are in the table; one that a trigger has changed is missing."""
        plan = self._plan
        query = sql.SQL(
            "SELECT count(*) FROM (SELECT {keys} FROM {winners}) AS given "
            "WHERE EXISTS (SELECT FROM {target} AS there WHERE ROW({there}) = ROW({given}))"
        ).format(
            keys=identifiers(plan.upsert_keys),
            winners=_winners(plan),
            target=plan.table.identifier,
            there=sql.SQL(", ").join(sql.Identifier("there", key) for key in plan.upsert_keys),
            given=sql.SQL(", ").join(sql.Identifier("given", key) for key in plan.upsert_keys),
        )
        return _count(cursor, query)


def _allow_sorting(cursor: psycopg2.extensions.cursor) -> None:
    cursor.execute(
        "SELECT pg_catalog.set_config('work_mem', %s, true) FROM pg_catalog.pg_settings "
        "WHERE name = 'work_mem' AND setting::bigint < %s",
        (f"{UPSERT_WORK_MEM_KB}kB", UPSERT_WORK_MEM_KB),
    )


def _refuse_changed_columns(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> None:
    changed = changed_column(cursor, plan.table, (column.target for column in plan.columns))
    if changed is not None:
        # Planned again, the batch may fit the table as it is now.
        raise BatchRetryError(reason=f"the table was altered after the batch was planned: column {changed}")


def _upsert_ddl(plan: ColumnPlan) -> sql.Composable:
    """A table with the columns that tasks encode, of the target's own types and collations."""
    order: sql.Composable = sql.SQL("")
    if plan.order is not None:
        order = sql.SQL(", NULL::{} AS {}").format(
            sql.SQL(plan.order.target.type_name), sql.Identifier(plan.order.name)
        )
    return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {}{} FROM {} WITH NO DATA").format(
        _UPSERT_TABLE.identifier, identifiers(plan.names), order, plan.table.identifier
    )


def _write(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> int:
    cursor.execute(sql.SQL("SAVEPOINT {}").format(_SAVEPOINT))
    try:
        with refused_rows(plan.table):
            cursor.execute(_upsert_statement(plan))
    except psycopg2.errors.CardinalityViolation:
        cursor.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(_SAVEPOINT))
        _refuse_duplicates(cursor, plan)
        raise  # not by a key of ours: a trigger's own statement
    written = cursor.rowcount
    cursor.execute(sql.SQL("RELEASE SAVEPOINT {}").format(_SAVEPOINT))
    return written


def _upsert_statement(plan: ColumnPlan) -> sql.Composable:
    others = [name for name in plan.names if name not in plan.upsert_keys]
    update = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
    guard: sql.Composable = sql.SQL("")
    if plan.late_rows is not None:
        guard = sql.SQL(" WHERE {}").format(plan.late_rows.not_older(given="excluded", there=_THERE))
    return sql.SQL(
        "INSERT INTO {target} AS {there} ({columns}) SELECT {columns} FROM {winners} ORDER BY {keys} "
        "ON CONFLICT ({keys}) {action}"
    ).format(
        target=plan.table.identifier,
        there=sql.Identifier(_THERE),
        columns=identifiers(plan.names),
        winners=_winners(plan),
        keys=identifiers(plan.upsert_keys),
        action=sql.SQL("DO UPDATE SET {}{}").format(update, guard) if others else sql.SQL("DO NOTHING"),
    )


def _winners(plan: ColumnPlan) -> sql.Composable:
    """The rows that may be written: all, or of each key those with the greatest order. Ties stay, to be refused.

    They are compared by order keys (`upsert_order`), which have one order everywhere.
    """
    if plan.order is None:
        return _UPSERT_TABLE.identifier
    return sql.SQL(
        "(SELECT * FROM (SELECT {columns}, rank() OVER (PARTITION BY {keys} ORDER BY {order} DESC NULLS LAST) "
        "AS _2pc_rank FROM {source}) AS ranked WHERE _2pc_rank = 1) AS winners"
    ).format(
        columns=identifiers(plan.names),
        keys=identifiers(plan.upsert_keys),
        order=sql.Identifier(ORDER_COLUMN),
        source=_UPSERT_TABLE.identifier,
    )


def _refuse_duplicates(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> None:
    """Name keys that would be written more than once, if there are any."""
    cursor.execute(
        sql.SQL(
            "SELECT {texts} FROM {winners} GROUP BY {keys} HAVING count(*) > 1 ORDER BY {keys} LIMIT {most}"
        ).format(
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(key)) for key in plan.upsert_keys),
            winners=_winners(plan),
            keys=identifiers(plan.upsert_keys),
            most=sql.Literal(SHOWN_KEYS_MAX),
        )
    )
    found = cursor.fetchall()
    if found:
        raise DuplicateKeyError(
            table=str(plan.table),
            key_columns=plan.upsert_keys,
            keys=tuple(
                ", ".join(f"{key}={value}" for key, value in zip(plan.upsert_keys, row, strict=True)) for row in found
            ),
            tied=plan.order is not None,
        )


def _count(cursor: psycopg2.extensions.cursor, query: sql.Composable) -> int:
    cursor.execute(query)
    [(found,)] = cursor.fetchall()
    return int(found)
