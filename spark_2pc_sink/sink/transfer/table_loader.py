"""The table loader: the driver's plan of how the rows of one lane get into their table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import text

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.sink.contract import record_columns, record_expressions
from spark_2pc_sink.sink.contract.lane_frames import rows_of
from spark_2pc_sink.sink.contract.task_plan import RowEncoderPlan
from spark_2pc_sink.sink.table.added_columns import add_columns, missing_columns
from spark_2pc_sink.sink.table.catalog import driver_connection, read_target
from spark_2pc_sink.sink.table.column_plan import (
    DELETE_COLUMN,
    UNCHANGED_COLUMN,
    ColumnPlan,
    encoded_sql,
    plan_columns,
)
from spark_2pc_sink.sink.table.condition_check import check_condition
from spark_2pc_sink.sink.table.conflict_rule import ConflictRule
from spark_2pc_sink.sink.table.create_table import create_table_ddl
from spark_2pc_sink.sink.table.identifiers import TableName
from spark_2pc_sink.sink.table.keyed_rows import KeyedRows
from spark_2pc_sink.sink.table.late_rows import order_in_table
from spark_2pc_sink.sink.table.privileges import check_privileges
from spark_2pc_sink.sink.table.spark_sql import quoted
from spark_2pc_sink.sink.table.table_writer import AppendedRows, TableRows
from spark_2pc_sink.sink.table.text_guards import guarded_sql
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType
    from sqlalchemy import Connection

    from jdbc_state.connections import Database
    from spark_2pc_sink.options import Lane, SinkOptions
    from spark_2pc_sink.sink.contract.record_expressions import RecordExpressions


class TableLoader:
    """Matches rows and table, tells tasks how to encode, and opens the table for COPY in the deciding transaction.

    Args:
        options: of the sink.
        lane: of the sink, with a table.
        database: opens connections for everything that is not part of a decision.
    """

    def __init__(self, options: SinkOptions, lane: Lane, database: Database) -> None:
        if lane.rows is None:
            raise LocalProtocolError(operation="load", state="a lane without a table", rule="it has no rows to load")
        self._options = options
        self._rows = lane.rows
        self._lane = lane
        self._database = database
        self._schema: StructType | None = None
        self._plan: ColumnPlan | None = None
        self._selected: list[str] = []
        self._sources: list[tuple[str, DataType]] = []
        self._unchanged = False
        self._row_key: str | None = None

    def prepare(self, batch: DataFrame, expressions: RecordExpressions, *, create: bool) -> None:
        """Match the schema of the lane's rows with the table; done again only when the schema has changed.

        Args:
            batch: for its schema.
            expressions: which columns are written.
            create: make the table when it is missing. Without it, and with ``create_table`` set, a missing table is
                left to a later call.

        Raises:
            ConfigurationError: the table is missing, batch and table do not go together, or the role may not write it.
        """
        if self._plan is not None and batch.schema == self._schema:
            return
        order_by = self._rows.order_by
        rows = rows_of(batch, self._lane.source)
        sources = {name: guarded_sql(sql, rows) for name, sql in expressions.columns.items()}
        selected = [f"{sql} AS {quoted(name)}" for name, sql in sources.items()]
        own = {} if order_by is None else {ORDER_COLUMN: order_by}
        if expressions.delete is not None:
            own[DELETE_COLUMN] = record_expressions.true_sql(expressions.delete)
        if expressions.unchanged:
            own[UNCHANGED_COLUMN] = record_expressions.flags_sql(expressions.unchanged.values())
        own_selected = [f"{sql} AS {name}" for name, sql in own.items()]
        fields = rows.selectExpr(*selected, *own_selected).schema.fields
        columns = fields[: len(selected)]
        order = None if order_by is None else fields[len(selected)].dataType
        conflict = self._conflict
        with self._transaction("reading the target table") as connection:
            if self._rows.create_table and not _exists(connection, self._rows.table):
                if not create:
                    return
                ddl = create_table_ddl(
                    columns, self._rows.table, upsert_keys=self._rows.keys, primary_key=self._rows.primary_key
                )
                # Past SQLAlchemy, which would have psycopg2 look for parameters behind each percent sign of a name.
                with driver_connection(connection).cursor() as cursor:
                    cursor.execute(ddl)
            keyed, deletes = bool(self._rows.keys), expressions.delete is not None
            target = read_target(connection, self._rows.table, upsert=keyed, deletes=deletes)
            record_expressions.check_taken(expressions, target)
            if self._rows.schema_evolution == "add_columns" and (missing := missing_columns(columns, target)):
                if not create:
                    return
                add_columns(connection, missing, target)
                target = read_target(connection, self._rows.table, upsert=keyed, deletes=deletes)
            plan = plan_columns(
                [(field.name, field.dataType) for field in columns],
                target,
                upsert_keys=self._rows.keys,
                order=order,
                deletes=deletes,
                conflict=conflict,
                expressions=expressions.columns,
            )
            if order_by is not None and self._rows.late_rows == "keep_newer":
                late_rows = order_in_table(order_by, expressions.columns, target, self._rows.keys)
                conflict.check(plan.names, plan.upsert_keys, order_column=late_rows.column)
                plan = replace(plan, late_rows=late_rows)
            check_privileges(connection, plan)
            check_condition(connection, plan)
        self._plan = replace(plan, lane=self._lane.index)
        self._schema = batch.schema
        self._selected = [*selected, *own_selected]
        made_of = [*sources.values(), *own.values()]
        self._sources = [(sql, field.dataType) for sql, field in zip(made_of, fields, strict=True)]
        self._unchanged = not own and all(sql == quoted(name) for name, sql in expressions.columns.items())
        self._row_key = record_columns.KEY if expressions.key and not self._rows.keys else None

    @property
    def _conflict(self) -> ConflictRule:
        return ConflictRule(
            ignore=self._rows.mode == "insert_ignore",
            update_columns=None if self._rows.update_columns is None else tuple(self._rows.update_columns),
            where=self._rows.upsert_where,
            unchanged=tuple(self._rows.unchanged_when or ()),
        )

    def select_lists(self) -> tuple[list[str], list[str] | None]:
        """The columns to select of the batch, and of the result of that; None where one select does both.

        The first computes the table's columns, the second brings them into the form in which they are encoded. Spark
        analyzes each select anew, which counts in a batch of a few rows.
        """
        plan = self._planned()
        if not self.json_columns:
            return self._selected, None
        if self._unchanged:
            return list(plan.expressions), None
        return self._selected, list(plan.expressions)

    def packed_columns(self) -> list[str]:
        """The columns in the form in which they are encoded, by one select: a lane among several has no second."""
        columns = zip(self._planned().copied, self._sources, strict=True)
        return [
            f"{encoded_sql(f'({sql})', kind, column.target)} AS {quoted(column.name)}"
            for column, (sql, kind) in columns
        ]

    @property
    def json_columns(self) -> frozenset[str]:
        """The columns that are encoded in another form than they have: as JSON, or as text."""
        return frozenset(each.name for each in self._planned().copied if each.expression != quoted(each.name))

    @property
    def lane(self) -> Lane:
        """Whose rows these are."""
        return self._lane

    @property
    def plan(self) -> ColumnPlan | None:
        """What is written where; None before the table is there."""
        return self._plan

    def encoder_plan(self) -> RowEncoderPlan:
        """How a task encodes rows."""
        return RowEncoderPlan(self._planned().copy_plan, self._row_key)

    def table(self, connection: Connection) -> TableRows:
        """The writer of rows into the table, through ``connection``, in the transaction that decides.

        Raises:
            BatchRetryError: the table was altered since it was planned.
        """
        kind = KeyedRows if self._planned().upsert_keys else AppendedRows
        return kind(connection, self._planned())

    def forget(self) -> None:
        """Match batch and table anew before the next attempt: the table may have been altered."""
        self._schema = None

    def _transaction(self, operation: str) -> AbstractContextManager[Connection]:
        return self._database.transaction(
            operation,
            lock_timeout_ms=self._options.lock_timeout_ms,
            statement_timeout_ms=self._options.statement_timeout_ms,
        )

    def _planned(self) -> ColumnPlan:
        if self._plan is None:
            raise LocalProtocolError(operation="write rows", state="not planned", rule="prepare() comes first")
        return self._plan


def _exists(connection: Connection, table: str) -> bool:
    name = str(TableName.parse(table))
    return connection.execute(text("SELECT to_regclass(:name)"), {"name": name}).scalar() is not None
