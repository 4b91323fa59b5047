"""The rows of a batch into the target table, inside the transaction that decides.

Everything here runs on the driver, on a SQLAlchemy connection whose transaction someone else began and will commit:
nothing here commits or rolls back more than its own savepoint. Rows arrive as COPY BINARY streams that tasks encoded
(`CopyEncoder`), or lie in staging tables that tasks filled (`staging`). No session state is used, so all of it works
behind PgBouncer in transaction mode.

Errors that say something about rows become `ConstraintError` or `DuplicateKeyError`; deadlocks, serialization
failures and lost connections pass as psycopg2 raised them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from spark_2pc_sink.errors import ConstraintError, DuplicateKeyError
from spark_2pc_sink.sink.columns import ORDER_COLUMN, ColumnPlan
from spark_2pc_sink.sink.copy_stream import Stream, copy_streams
from spark_2pc_sink.sink.database_errors import refused_rows
from spark_2pc_sink.sink.identifiers import TableName, identifiers
from spark_2pc_sink.sink.staging import (
    StagedRows,
    check_count,
    check_present,
    check_unchanged,
    drop_staging,
    staging_ddl,
)
from spark_2pc_sink.sink.target import driver_connection

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


@dataclass(frozen=True)
class UpsertResult:
    """What an upsert did.

    Attributes:
        rows_copied: rows of the batch.
        rows_written: rows inserted or updated: fewer where upsert_order_by chose among rows with one key.
    """

    rows_copied: int
    rows_written: int


def copy_inline(connection: Connection, plan: ColumnPlan, streams: Iterable[Stream]) -> int:
    """Append the rows of all streams by one COPY, and say how many there were.

    Args:
        connection: inside the deciding transaction.
        plan: the plan with which the streams were encoded.
        streams: complete COPY BINARY streams; taken one at a time, never put together.

    Raises:
        ConstraintError: the table refused a row.
        BatchRetryError: the table was altered since it was planned.
        LocalProtocolError: a stream is not complete.
    """
    with driver_connection(connection).cursor() as cursor:
        _lock_target(cursor, plan)
        with refused_rows(plan.table):
            return copy_streams(cursor, plan.table, plan.names, streams)


def insert_from_staging(connection: Connection, plan: ColumnPlan, staged: Sequence[StagedRows]) -> int:
    """Append the rows of staging tables, drop these, and say how many rows there were.

    Raises:
        BatchRetryError: a staging table is gone or lost its rows, or the target was altered since it was planned.
        ConstraintError: the table refused a row, or a trigger swallowed one.
    """
    with driver_connection(connection).cursor() as cursor:
        _lock_target(cursor, plan)
        check_present(cursor, staged)
        for stage in staged:
            with refused_rows(plan.table):
                cursor.execute(
                    sql.SQL("INSERT INTO {target} ({columns}) SELECT {columns} FROM {stage}").format(
                        target=plan.table.identifier, columns=identifiers(plan.names), stage=stage.table.identifier
                    )
                )
            written = cursor.rowcount
            if written != stage.rows:
                check_count(cursor, stage)
                raise _swallowed(plan, stage.rows, written)
        drop_staging(cursor, staged)
    return sum(stage.rows for stage in staged)


def upsert(
    connection: Connection,
    plan: ColumnPlan,
    streams: Iterable[Stream],
    staged: Sequence[StagedRows] = (),
) -> UpsertResult:
    """Insert rows with new keys and update the others, each key once.

    Rows are written in the order of their keys, so that two sinks on one table lock rows in the same order and
    cannot deadlock each other. A key that the batch has twice is found by PostgreSQL itself, as ON CONFLICT DO UPDATE
    affects no row twice in one statement; only then are the keys looked for.

    Args:
        connection: inside the deciding transaction; the role needs the TEMPORARY privilege.
        plan: with upsert keys.
        streams: complete COPY BINARY streams.
        staged: staging tables of the same batch; dropped.

    Raises:
        DuplicateKeyError: a key occurs twice and there is no order, or twice with the greatest order.
        BatchRetryError: a staging table is gone or lost its rows, or the target was altered since it was planned.
        ConstraintError: the table refused a row, or a trigger swallowed one.
    """
    keys_only = set(plan.names) == set(plan.upsert_keys)
    with driver_connection(connection).cursor() as cursor:
        _lock_target(cursor, plan)
        check_present(cursor, staged)
        for stage in staged:
            check_count(cursor, stage)
        with refused_rows(plan.table):
            cursor.execute(staging_ddl(plan, sql.SQL("TEMPORARY"), _UPSERT_TABLE, sql.SQL("ON COMMIT DROP")))
            copied = copy_streams(cursor, _UPSERT_TABLE, plan.copied_names, streams) + sum(
                stage.rows for stage in staged
            )
        _allow_sorting(cursor)
        source = _source(plan, [_UPSERT_TABLE, *(stage.table for stage in staged)])
        if keys_only:
            _refuse_duplicates(cursor, plan, source)  # DO NOTHING would be silent about them
        written = _write(cursor, plan, source)
        if written != copied and plan.order is None and not keys_only:
            raise _swallowed(plan, copied, written)
        drop_staging(cursor, staged)
    return UpsertResult(rows_copied=copied, rows_written=written)


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
    check_unchanged(cursor, plan)


def check_deferred(connection: Connection, plan: ColumnPlan) -> None:
    """Check deferred constraints now, while the rows that break one can still be named.

    Once, after all rows of the batch: a row may refer to another that came by another way.

    Raises:
        ConstraintError: a deferred constraint refuses a row.
    """
    with driver_connection(connection).cursor() as cursor, refused_rows(plan.table):
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def _write(cursor: psycopg2.extensions.cursor, plan: ColumnPlan, source: sql.Composable) -> int:
    cursor.execute(sql.SQL("SAVEPOINT {}").format(_SAVEPOINT))
    try:
        with refused_rows(plan.table):
            cursor.execute(_upsert_statement(plan, source))
    except psycopg2.errors.CardinalityViolation:
        cursor.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(_SAVEPOINT))
        _refuse_duplicates(cursor, plan, source)
        raise  # not by a key of ours: a trigger's own statement
    written = cursor.rowcount
    cursor.execute(sql.SQL("RELEASE SAVEPOINT {}").format(_SAVEPOINT))
    return written


def _upsert_statement(plan: ColumnPlan, source: sql.Composable) -> sql.Composable:
    others = [name for name in plan.names if name not in plan.upsert_keys]
    update = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
    return sql.SQL(
        "INSERT INTO {target} ({columns}) SELECT {columns} FROM {winners} ORDER BY {keys} ON CONFLICT ({keys}) {action}"
    ).format(
        target=plan.table.identifier,
        columns=identifiers(plan.names),
        winners=_winners(plan, source),
        keys=identifiers(plan.upsert_keys),
        action=sql.SQL("DO UPDATE SET {}").format(update) if others else sql.SQL("DO NOTHING"),
    )


def _winners(plan: ColumnPlan, source: sql.Composable) -> sql.Composable:
    """The rows that may be written: all, or of each key those with the greatest order. Ties stay, to be refused."""
    if plan.order is None:
        return source
    return sql.SQL(
        "(SELECT * FROM (SELECT {columns}, rank() OVER (PARTITION BY {keys} ORDER BY {order} DESC NULLS LAST) "
        "AS _2pc_rank FROM {source}) AS ranked WHERE _2pc_rank = 1) AS winners"
    ).format(
        columns=identifiers(plan.names),
        keys=identifiers(plan.upsert_keys),
        order=sql.Identifier(ORDER_COLUMN),
        source=source,
    )


def _source(plan: ColumnPlan, tables: Sequence[TableName]) -> sql.Composable:
    if len(tables) == 1:
        return tables[0].identifier
    columns = identifiers(plan.copied_names)
    selects = (sql.SQL("SELECT {} FROM {}").format(columns, table.identifier) for table in tables)
    return sql.SQL("({}) AS rows").format(sql.SQL(" UNION ALL ").join(selects))


def _refuse_duplicates(cursor: psycopg2.extensions.cursor, plan: ColumnPlan, source: sql.Composable) -> None:
    """Name keys that would be written more than once, if there are any."""
    cursor.execute(
        sql.SQL(
            "SELECT {texts} FROM {winners} GROUP BY {keys} HAVING count(*) > 1 ORDER BY {keys} LIMIT {most}"
        ).format(
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(key)) for key in plan.upsert_keys),
            winners=_winners(plan, source),
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


def _swallowed(plan: ColumnPlan, given: int, written: int) -> ConstraintError:
    return ConstraintError(
        table=str(plan.table),
        constraint="",
        column="",
        sqlstate="",
        detail=f"{given} rows were given to it and {written} arrived: a trigger of the table leaves rows out",
    )
