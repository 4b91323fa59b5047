"""The rows of a batch into the target table, inside the transaction that decides.

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
from spark_2pc_sink.sink.columns import ColumnPlan
from spark_2pc_sink.sink.copy_stream import Stream, copy_streams
from spark_2pc_sink.sink.database_errors import refused_rows
from spark_2pc_sink.sink.identifiers import TableName, identifiers
from spark_2pc_sink.sink.target import changed_column, driver_connection
from spark_2pc_sink.sink.upsert_order import ORDER_COLUMN

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

# Of the table or one of its partitions, those that could leave a row out. tgtype: 1 is FOR EACH ROW, 2 is BEFORE;
# tgenabled: D is DISABLE.
_ROW_TRIGGERS = """
SELECT count(*) FROM pg_catalog.pg_trigger
WHERE NOT tgisinternal AND tgtype & 3 = 3 AND tgenabled <> 'D' AND (tgrelid = %(table)s::regclass
  OR tgrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree(%(table)s::regclass)))
"""


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


class _Rows:
    """What both ways share.

    Args:
        connection: inside the deciding transaction.
        plan: the plan with which the streams are encoded.

    Raises:
        BatchRetryError: the table was altered since it was planned.
    """

    def __init__(self, connection: Connection, plan: ColumnPlan) -> None:
        self._connection = driver_connection(connection)
        self._plan = plan
        self._copied = 0
        with self._connection.cursor() as cursor:
            _lock_target(cursor, plan)

    def _copy(self, stream: Stream, table: TableName, columns: Sequence[str]) -> int:
        with self._connection.cursor() as cursor, refused_rows(self._plan.table):
            copied = copy_streams(cursor, table, columns, [stream])
        self._copied += copied
        return copied

    def _check_deferred(self) -> None:
        """Check deferred constraints now, while the rows that break one can still be named.

        Once, after all rows of the batch: a row may refer to another that came by another way.
        """
        with self._connection.cursor() as cursor, refused_rows(self._plan.table):
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


class AppendedRows(_Rows):
    """Rows that go into the target as they are."""

    def copy(self, stream: Stream) -> int:
        """See `TableRows.copy`."""
        return self._copy(stream, self._plan.table, self._plan.names)

    def finish(self, rows: int) -> None:
        """See `TableRows.finish`."""
        if self._copied != rows:
            raise _swallowed(self._plan, rows, self._copied)
        self._check_deferred()


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
            if self.written != rows:
                _refuse_swallowed(cursor, plan, rows, self.written, keys_only=keys_only)
        self._check_deferred()


def _allow_sorting(cursor: psycopg2.extensions.cursor) -> None:
    cursor.execute(
        "SELECT pg_catalog.set_config('work_mem', %s, true) FROM pg_catalog.pg_settings "
        "WHERE name = 'work_mem' AND setting::bigint < %s",
        (f"{UPSERT_WORK_MEM_KB}kB", UPSERT_WORK_MEM_KB),
    )


def _lock_target(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> None:
    # The lock that COPY and INSERT take themselves, some statements earlier: between the look and the rows, nobody
    # alters the table. ONLY, since the partitions' own definitions follow the parent's.
    cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE").format(plan.table.identifier))
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


def _refuse_swallowed(
    cursor: psycopg2.extensions.cursor, plan: ColumnPlan, rows: int, written: int, *, keys_only: bool
) -> None:
    """Tell rows that a trigger swallowed from those that an order passed over, and from keys that were there already.

    Counted only where a trigger could have done it: with a million rows, counting the winners or looking for the keys
    takes a third of the time that the upsert itself takes.
    """
    if plan.order is None and not keys_only:
        raise _swallowed(plan, rows, written)
    if not _count(cursor, sql.SQL(_ROW_TRIGGERS), table=str(plan.table)):
        return
    # A statement of its own: counted within the INSERT, by a WITH, it took longer, and every batch would pay for it.
    given = _count(cursor, sql.SQL("SELECT count(*) FROM {}").format(_winners(plan)))
    if not keys_only:
        given -= _kept_newer(cursor, plan)
        if written != given:
            raise _swallowed(plan, given, written)
        return
    # DO NOTHING counts no key that is there already, so every key is looked for; one that a trigger changed is missing.
    missing = _count(
        cursor,
        sql.SQL(
            "SELECT count(*) FROM (SELECT {keys} FROM {winners}) AS given "
            "WHERE NOT EXISTS (SELECT FROM {target} AS there WHERE ROW({there}) = ROW({given}))"
        ).format(
            keys=identifiers(plan.upsert_keys),
            winners=_winners(plan),
            target=plan.table.identifier,
            there=sql.SQL(", ").join(sql.Identifier("there", key) for key in plan.upsert_keys),
            given=sql.SQL(", ").join(sql.Identifier("given", key) for key in plan.upsert_keys),
        ),
    )
    if missing:
        raise _swallowed(plan, given, given - missing)


def _kept_newer(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> int:
    """How many rows did not take the place of a newer one in the table, after those that did."""
    if plan.late_rows is None:
        return 0
    return _count(
        cursor,
        sql.SQL(
            "SELECT count(*) FROM {winners} JOIN {target} AS {there} USING ({keys}) WHERE {not_older} IS NOT TRUE"
        ).format(
            winners=_winners(plan),
            target=plan.table.identifier,
            there=sql.Identifier(_THERE),
            keys=identifiers(plan.upsert_keys),
            not_older=plan.late_rows.not_older(given="winners", there=_THERE),
        ),
    )


def _count(cursor: psycopg2.extensions.cursor, query: sql.Composable, **values: str) -> int:
    cursor.execute(query, values or None)  # without values, a percent sign is part of a name
    [(found,)] = cursor.fetchall()
    return int(found)


def _swallowed(plan: ColumnPlan, given: int, written: int) -> ConstraintError:
    return ConstraintError(
        table=str(plan.table),
        constraint="",
        column="",
        sqlstate="",
        detail=f"{given} rows were given to it and {written} arrived: a trigger of the table leaves rows out",
    )
