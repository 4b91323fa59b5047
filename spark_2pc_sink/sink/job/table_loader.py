"""The tables of a sink: how the rows of each lane get into its table, and the order of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import psycopg2
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from sqlalchemy import Connection, text

from jdbc_state.connections import Database
from jdbc_state.sqlstate import describe
from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.options import Lane, SinkOptions
from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.options.sql_text import bare_statements
from spark_2pc_sink.sink.job.lane_columns import LaneWork, rows_of
from spark_2pc_sink.sink.records import record_columns
from spark_2pc_sink.sink.records.record_expressions import RecordExpressions, check_taken, true_sql
from spark_2pc_sink.sink.rows.catalog import read_target, table_oid, table_transaction, utf8_connection
from spark_2pc_sink.sink.rows.column_plan import (
    ColumnPlan,
    add_columns,
    create_table_ddl,
    missing_columns,
    plan_columns,
)
from spark_2pc_sink.sink.rows.copy_encoder import DELETE_COLUMN, ORDER_COLUMN, UNCHANGED_COLUMN, CopyPlan
from spark_2pc_sink.sink.rows.keyed_rows import KeyedRows, explain_statement, target_alias
from spark_2pc_sink.sink.rows.row_sql import guarded_sql
from spark_2pc_sink.sink.rows.table_copy import AppendedRows, CopyTarget, TableRows
from spark_2pc_sink.sink.rows.type_mapping import in_arrow
from spark_2pc_sink.sink.spark_sql import quoted

# INSERT on single columns is not enough: LOCK TABLE requires it on the table. An upsert reads the columns that it
# stages and compares, and writes those that are not its keys; for both, rights on these columns would suffice.
_PRIVILEGES = """
SELECT current_user, current_database(),
  has_table_privilege(%(table)s, 'INSERT'),
  (SELECT coalesce(bool_and(has_column_privilege(%(table)s, name, 'SELECT')), true) FROM unnest(%(read)s::text[]) name),
  (SELECT coalesce(bool_and(has_column_privilege(%(table)s, name, 'UPDATE')), true)
   FROM unnest(%(updated)s::text[]) name),
  NOT %(deletes)s OR has_table_privilege(%(table)s, 'DELETE'),
  has_database_privilege(current_database(), 'TEMPORARY'),
  row_security_active(%(table)s)
"""


def check_privileges(connection: Connection, plan: ColumnPlan) -> None:
    """Refuse a role that lacks a privilege, or is subject to row-level security, which COPY does not support."""
    upsert = bool(plan.upsert_keys)
    table = str(plan.table)
    asked = {
        "table": table,
        "read": list(plan.names) if upsert else [],
        "updated": list(plan.updated) if upsert else [],
        "deletes": plan.deletes,
    }
    with utf8_connection(connection).cursor() as cursor:
        cursor.execute(_PRIVILEGES, asked)
        [(role, database, insert, select, update, delete, temporary, row_security)] = cursor.fetchall()
    has = {"INSERT": insert, "SELECT": select, "UPDATE": update, "DELETE": delete}
    missing = [name for name, granted in has.items() if not granted]
    grants = [f"GRANT {', '.join(missing)} ON {table} TO {quote_identifier(role)}"] if missing else []
    if (upsert or plan.casts) and not temporary:
        missing.append("TEMPORARY on the database")
        grants.append(f"GRANT TEMPORARY ON DATABASE {quote_identifier(database)} TO {quote_identifier(role)}")
    if missing:
        rule = f"role {role!r} lacks {' and '.join(missing)}, which mode={plan.rows.mode!r} needs"
        raise refused("table", table, rule, f"have the owner run: {'; '.join(grants)}")
    if row_security and not upsert:
        rule = f"its row-level security applies to role {role!r}, and PostgreSQL does not support COPY with it"
        remedy = (
            f"have an administrator run: ALTER ROLE {quote_identifier(role)} BYPASSRLS; or pass mode='upsert', "
            "which uses INSERT, checked by the policies"
        )
        raise refused("table", table, rule, remedy)


def check_condition(connection: Connection, plan: ColumnPlan) -> None:
    """Refuse a condition that PostgreSQL rejects. Must be the last statement of its transaction, which it may abort."""
    where = plan.rows.upsert_where
    if where is None:
        return
    name = quote_identifier(target_alias(plan))
    remedy = (
        f"write it over EXCLUDED (the row of the batch) and {name} (the row in the table), as in "
        f"{name}.version < EXCLUDED.version"
    )
    if len(bare_statements(where)) > 1:
        raise refused("upsert_where", where, "must be a single condition, without ';'", remedy)
    with utf8_connection(connection).cursor() as cursor:
        try:
            cursor.execute(explain_statement(plan))
        except (psycopg2.ProgrammingError, psycopg2.DataError, psycopg2.NotSupportedError) as error:
            rule = f"PostgreSQL rejects it as a condition of ON CONFLICT: {describe(error)}"
            raise refused("upsert_where", where, rule, remedy) from error


def table_columns(rows: DataFrame, expressions: RecordExpressions, order_by: str | None) -> dict[str, str]:
    """SQL over a lane's rows, by column.

    The table's columns are followed by those by which rows are ordered or deleted, or are known to carry no value.
    """
    columns = {name: guarded_sql(sql, rows) for name, sql in expressions.columns.items()}
    if order_by is not None:
        columns[ORDER_COLUMN] = order_by
    if expressions.delete is not None:
        columns[DELETE_COLUMN] = true_sql(expressions.delete)
    if expressions.unchanged:
        # A text with a '1' for each condition that is true, and a '0' for each other.
        flags = (f"if({true_sql(condition)}, '1', '0')" for condition in expressions.unchanged.values())
        columns[UNCHANGED_COLUMN] = f"concat({', '.join(flags)})"
    return columns


class TableLoader:
    """Matches rows and table, tells tasks how to encode, and opens the table for COPY in the deciding transaction."""

    def __init__(self, options: SinkOptions, lane: Lane, database: Database) -> None:
        assert lane.rows is not None, "only lanes with a table have a loader"
        self._options = options
        self._rows = lane.rows
        self.lane: Lane = lane
        self._database = database
        self._schema: StructType | None = None
        #: What is written where; None before the table exists.
        self.plan: ColumnPlan | None = None
        self._columns: list[str] = []
        self._row_keys: tuple[str, ...] = ()

    def prepare(self, batch: DataFrame, expressions: RecordExpressions, *, create: bool) -> None:
        """Match the schema of the lane's rows with the table; repeated only if the schema has changed.

        Unless ``create``, a table or column that the sink has to create is left to a later call.
        """
        if self.plan is not None and batch.schema == self._schema:
            return
        order_by, rows = self._rows.order_by, rows_of(batch, self.lane.source)
        made_of = table_columns(rows, expressions, order_by)
        fields = rows.selectExpr(*(f"{sql} AS {quoted(name)}" for name, sql in made_of.items())).schema.fields
        columns = fields[: len(expressions.columns)]
        order = None if order_by is None else fields[len(columns)].dataType
        with table_transaction(self._database, self._options, "reading the target table") as connection:
            if self._rows.create_table and table_oid(connection, self._rows.table) is None:
                if not create:
                    return
                ddl = create_table_ddl(
                    columns, self._rows.table, upsert_keys=self._rows.keys, primary_key=self._rows.primary_key
                )
                # Bypasses SQLAlchemy, with which psycopg2 would look for parameters after each percent sign of a name.
                with utf8_connection(connection).cursor() as cursor:
                    cursor.execute(ddl)
            target = read_target(connection, self._rows)
            check_taken(expressions, target)
            if self._rows.schema_evolution == "add_columns" and (missing := missing_columns(columns, target)):
                if not create:
                    return
                add_columns(connection, missing, target)
                target = read_target(connection, self._rows)
            kinds = [(field.name, field.dataType) for field in columns]
            plan = plan_columns(kinds, target, self._rows, order=order, expressions=expressions.columns)
            check_privileges(connection, plan)
            check_condition(connection, plan)
        self.plan = replace(plan, lane=self.lane.index)
        self._schema = batch.schema
        # For one select: to analyze a second would take milliseconds of a small batch. What is repeated in one is
        # evaluated once (spark.sql.subexpressionElimination.enabled).
        self._columns = [
            f"{in_arrow(sql if sql == name else f'({sql})', field.dataType, column.target)[0]} AS {name}"
            for column, sql, field in zip(plan.copied, made_of.values(), fields, strict=True)
            for name in [quoted(column.name)]
        ]
        self._row_keys = plan.upsert_keys or ((record_columns.KEY,) if expressions.key else ())

    @property
    def planned(self) -> tuple[ColumnPlan, list[str]]:
        """What is written where, and the SQL over the lane's rows for what tasks encode."""
        assert self.plan is not None, "call prepare() first"
        return self.plan, self._columns

    def encoder_plan(self) -> CopyPlan:
        return replace(self.planned[0].copy_plan, row_keys=self._row_keys)

    def table(self, connection: Connection) -> TableRows:
        """The writer of rows into the table, through ``connection``, in the deciding transaction."""
        plan, _ = self.planned
        return (KeyedRows if plan.upsert_keys else AppendedRows)(connection, plan)

    def forget(self) -> None:
        """Match batch and table again at the next call of `prepare`."""
        self._schema = None


#: References between some tables, by a constraint that is checked with each row.
_REFERENCES: Final = text(
    "SELECT DISTINCT conrelid, confrelid FROM pg_catalog.pg_constraint WHERE contype = 'f' AND NOT condeferred "
    "AND conrelid = ANY(:tables) AND confrelid = ANY(:tables) AND conrelid <> confrelid"
)
_OIDS: Final = text("SELECT CAST(CAST(name AS pg_catalog.regclass) AS pg_catalog.oid) FROM unnest(:names) AS name")


class LaneTables:
    def __init__(self, options: SinkOptions, database: Database) -> None:
        self._options = options
        self._database = database
        self.loaders: dict[int, TableLoader] = {
            lane.index: TableLoader(options, lane, database) for lane in options.lanes if lane.rows is not None
        }
        self._ordered: tuple[ColumnPlan, ...] = ()
        self._waiting: frozenset[int] = frozenset()

    def prepare(self, batch: DataFrame, lanes: Iterable[LaneWork], *, create: bool) -> None:
        for lane in lanes:
            if lane.loader is not None:
                with lane.lane.naming():
                    lane.loader.prepare(batch, lane.expressions, create=create)
        plans = tuple(loader.plan for loader in self.loaders.values() if loader.plan is not None)
        if len(plans) > 1 and plans != self._ordered:
            with table_transaction(self._database, self._options, "reading references between tables") as connection:
                self._waiting = waiting_lanes(connection, plans)
            self._ordered = plans

    def targets(self) -> list[CopyTarget]:
        return [CopyTarget(index, loader.table, waits=index in self._waiting) for index, loader in self.loaders.items()]

    @contextmanager
    def replanning(self) -> Iterator[None]:
        """Match rows and tables again after an attempt that fails in the block: a table may have been altered."""
        try:
            yield
        except BatchRetryError:
            for loader in self.loaders.values():
                loader.forget()
            raise


def waiting_lanes(connection: Connection, plans: Sequence[ColumnPlan]) -> frozenset[int]:
    """The lanes whose rows may be written only after those of the tables before theirs."""
    for place, plan in enumerate(plans):
        if plan.table in [other.table for other in plans[:place]]:
            rule = f"each table is written by one output, and {plan.table} by several"
            raise refused("writes", None, rule, "put them into one")
    oids = list(connection.execute(_OIDS, {"names": [str(plan.table) for plan in plans]}).scalars())
    found = connection.execute(_REFERENCES, {"tables": oids})
    # (1, 0) if the second table refers to the first.
    references = {(oids.index(row.conrelid), oids.index(row.confrelid)) for row in found}
    for place, referred in references:
        if place < referred:
            table, other = plans[place].table, plans[referred].table
            rule = f"{table} refers to {other} by a foreign key, and is listed before it"
            remedy = f"put {other} before it, or make the key DEFERRABLE INITIALLY DEFERRED"
            raise refused("writes", None, rule, remedy)
    # Rows of an upsert are first collected in a staging table.
    return frozenset(plans[place].lane for place, _ in references if not plans[place].upsert_keys)
