"""The table loader: the driver's plan of how a batch's rows get into the table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import LocalProtocolError, StateStoreError
from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.row_transfer import RowEncoderPlan
from spark_2pc_sink.sink.table.catalog import driver_connection, read_target
from spark_2pc_sink.sink.table.column_plan import ColumnPlan, plan_columns
from spark_2pc_sink.sink.table.create_table import create_table_ddl
from spark_2pc_sink.sink.table.identifiers import TableName
from spark_2pc_sink.sink.table.late_rows import order_in_table
from spark_2pc_sink.sink.table.privileges import check_privileges
from spark_2pc_sink.sink.table.spark_sql import quoted
from spark_2pc_sink.sink.table.table_writer import AppendedRows, TableRows, UpsertedRows
from spark_2pc_sink.sink.table.text_guards import guarded_sql
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN
from spark_2pc_sink.sink.transfer.staging_files import FileStaging
from spark_2pc_sink.sink.transfer.staging_tables import (
    DROP_LOCK_TIMEOUT_MS,
    StagingSession,
    TableStaging,
    drop_ended_staging,
    owner_of,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection

    from jdbc_state.connections import Database
    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
    from spark_2pc_sink.sink.contract.record_expressions import RecordExpressions
    from spark_2pc_sink.sink.contract.row_transfer import Staging, TransferSender

#: COPY bytes that all tasks that run at one time may send through the driver's memory, unless the user says otherwise.
INLINE_BYTES_MAX: Final = 128 * 1024 * 1024

_log = sink_log(__name__)


class TableLoader:
    """Matches batch and table, tells tasks how to encode, and opens the table for COPY in the deciding transaction.

    Args:
        options: of the sink.
        database: opens connections for everything that is not part of a decision.
    """

    def __init__(self, options: SinkOptions, database: Database) -> None:
        self._options = options
        self._database = database
        self._owner = owner_of(
            options.transactional_id, state_schema=options.state_schema, state_table=options.state_table
        )
        self._schema: StructType | None = None
        self._plan: ColumnPlan | None = None
        self._selected: list[str] = []
        self._unchanged = False
        self._row_key: str | None = None
        self._cleared = 0

    def prepare(self, batch: DataFrame, expressions: RecordExpressions, *, create: bool) -> None:
        """Match the batch's schema with the table; done again only when the schema has changed.

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
        order_by = self._options.upsert_order_by
        selected = [f"{guarded_sql(sql, batch)} AS {quoted(name)}" for name, sql in expressions.columns.items()]
        ordered = [] if order_by is None else [f"{order_by} AS {ORDER_COLUMN}"]
        fields = batch.selectExpr(*selected, *ordered).schema.fields
        columns, order = (fields, None) if order_by is None else (fields[:-1], fields[-1].dataType)
        with self._transaction("reading the target table") as connection:
            if self._options.create_table and not _exists(connection, self._options.table):
                if not create:
                    return
                ddl = create_table_ddl(columns, self._options.table, upsert_keys=self._options.upsert_keys)
                # Past SQLAlchemy, which would have psycopg2 look for parameters behind each percent sign of a name.
                with driver_connection(connection).cursor() as cursor:
                    cursor.execute(ddl)
            target = read_target(connection, self._options.table, upsert=self._options.mode == "upsert")
            record_expressions.check_taken(expressions, target)
            plan = plan_columns(
                [(field.name, field.dataType) for field in columns],
                target,
                upsert_keys=self._options.upsert_keys,
                order=order,
                expressions=expressions.columns,
            )
            if order_by is not None and self._options.upsert_late_rows == "keep_newer":
                late_rows = order_in_table(order_by, expressions.columns, target, self._options.upsert_keys)
                plan = replace(plan, late_rows=late_rows)
            check_privileges(connection, plan)
        self._plan = plan
        self._schema = batch.schema
        self._selected = [*selected, *ordered]
        self._unchanged = not ordered and all(sql == quoted(name) for name, sql in expressions.columns.items())
        self._row_key = record_expressions.KEY if expressions.key and not self._options.upsert_keys else None

    def select_lists(self) -> tuple[list[str], list[str] | None]:
        """The columns to select of the batch, and of the result of that; None where one select does both.

        The first computes the table's columns, the second brings them into the form in which they are encoded. Spark
        analyzes each select anew, which counts in a batch of a few rows.
        """
        plan = self._planned()
        if all(column.expression == quoted(column.name) for column in plan.copied):
            return self._selected, None
        if self._unchanged:
            return list(plan.expressions), None
        return self._selected, list(plan.expressions)

    def encoder_plan(self, tasks: int, sender: TransferSender, staging: Staging) -> RowEncoderPlan:
        """How a task encodes rows.

        Args:
            tasks: how many run at a time: they share the inline limit.
            sender: brings transfers to the driver.
            staging: where a task puts rows that are too many for a transfer.
        """
        given = self._options.inline_copy_bytes_max
        return RowEncoderPlan(
            columns=self._planned(),
            staging=staging,
            sender=sender,
            # Not more than a part unless it is wished: rows that wait for a task's end are written later.
            inline_bytes_max=min(staging.part_bytes, INLINE_BYTES_MAX // tasks) if given is None else given // tasks,
            row_key=self._row_key,
        )

    def table(self, connection: Connection) -> TableRows:
        """The writer of rows into the table, through ``connection``, in the transaction that decides.

        Raises:
            BatchRetryError: the table was altered since it was planned.
        """
        kind = UpsertedRows if self._options.mode == "upsert" else AppendedRows
        return kind(connection, self._planned())

    def staging(self, ticket: TransactionTicket, folder: Path | None) -> Staging:
        """Where the tasks of an attempt stage rows: in files where they can.

        Args:
            ticket: of the attempt.
            folder: one that the driver and all tasks see; None where there is none.
        """
        if folder is not None:
            return FileStaging(folder / "rows")
        options = self._options
        session = StagingSession(
            database=options.database,
            application_name=ticket.application_name,
            connect_timeout_s=options.connect_timeout_s,
            lock_timeout_ms=options.lock_timeout_ms,
            statement_timeout_ms=options.statement_timeout_ms,
            password=options.password_source,
        )
        return TableStaging(session, self._staging_schema(), self._owner, ticket)

    def forget(self) -> None:
        """Match batch and table anew before the next attempt: the table may have been altered."""
        self._schema = None

    def drop_leftover_staging(self, generation: int) -> None:
        """Drop the staging tables of older claims of this sink, once for each claim; see `drop_staging`."""
        if self._plan is None or generation == self._cleared:
            return
        self._cleared = generation
        self._drop_staging((generation, 0))

    def drop_staging(self, ticket: TransactionTicket) -> None:
        """Drop the staging tables of an attempt that is over, and what earlier ones have left.

        Nothing depends on it, as no name is used twice, and anyone who reads the whole database (pg_dump) may hold a
        lock on one for hours. So what cannot be dropped at once is left: to the next attempt that stages, and to the
        next claim.
        """
        self._drop_staging((ticket.generation, ticket.transaction))

    def _drop_staging(self, ended: tuple[int, int]) -> None:
        try:
            with self._database.requests(
                "dropping staging tables", lock_timeout_ms=DROP_LOCK_TIMEOUT_MS, patient=False
            ) as connection:
                result = drop_ended_staging(
                    connection,
                    schema=self._staging_schema(),
                    owner=self._owner,
                    ended=ended,
                )
        except StateStoreError as error:
            _log.warning("staging tables may be left, to be dropped later: %s", error)
            return
        if result.dropped:
            _log.info("dropped %d staging tables", len(result.dropped))
        if result.left:
            _log.warning("%d staging tables are left, to be dropped later: %s", result.left, "; ".join(result.reasons))

    def _transaction(self, operation: str) -> AbstractContextManager[Connection]:
        return self._database.transaction(
            operation,
            lock_timeout_ms=self._options.lock_timeout_ms,
            statement_timeout_ms=self._options.statement_timeout_ms,
        )

    def _staging_schema(self) -> str:
        return self._options.staging_schema or self._planned().table.schema or "public"

    def _planned(self) -> ColumnPlan:
        if self._plan is None:
            raise LocalProtocolError(operation="write rows", state="not planned", rule="prepare() comes first")
        return self._plan


def _exists(connection: Connection, table: str) -> bool:
    name = str(TableName.parse(table))
    return connection.execute(text("SELECT to_regclass(:name)"), {"name": name}).scalar() is not None
