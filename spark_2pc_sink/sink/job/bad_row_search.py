"""The jobs that find the bad rows of a batch, after an attempt has failed with one of them.

The attempt's error determines where to search. Refusals by a task are located by tasks. Refusals by the database are
located by the database: tasks resend the rows, and a thread tries them meanwhile. Each lane has its own job; only a
failed batch incurs this cost.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psycopg2
from pyspark.sql import Window, functions as F

from jdbc_state.connections import driver_connection
from jdbc_state.watchdog import cut
from spark_2pc_sink.errors import ConstraintError, RecordRefusedError, RecordTooLargeError, UnstorableValueError
from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY, NUMBER, WINS, SiftedPart, TableSift, unpack_rows
from spark_2pc_sink.sink.job.lane_columns import packed_name
from spark_2pc_sink.sink.job.search_task import SearchPlan, run_search_task
from spark_2pc_sink.sink.rows.copy_encoder import DELETE_COLUMN, ORDER_COLUMN, UNCHANGED_COLUMN
from spark_2pc_sink.sink.rows.row_sql import fingerprint_sql, identity_sql
from spark_2pc_sink.sink.spark_sql import quoted
from spark_2pc_sink.sink.stream.attempt_input import Ended
from spark_2pc_sink.sink.stream.background_task import BackgroundTask, attempt_threads
from spark_2pc_sink.sink.stream.task_stream import FrameKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from spark_2pc_sink.errors import DataError
    from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow
    from spark_2pc_sink.sink.job.filtered_batch import FilteredBatch
    from spark_2pc_sink.sink.job.lane_columns import LaneWork
    from spark_2pc_sink.sink.job.spark_batch import TaskJobs
    from spark_2pc_sink.sink.job.task_plan import TaskPlan, TaskResults
    from spark_2pc_sink.sink.records.record_side import RecordForwarder
    from spark_2pc_sink.sink.stream.attempt_input import AttemptInput
    from spark_2pc_sink.sink.stream.listener import StreamAttempt


#: Seconds without rows after which the server is sent a query, to avoid its timeout for idle transactions.
_IDLE_S: Final = 1.0


def _trying(source: AttemptInput, rows: TableSift, connection: Connection) -> BackgroundTask:
    """A thread that tries the rows of one lane, on the connection of a transaction that will be rolled back."""

    def work() -> None:
        with source.failing():
            while not isinstance(taken := source.take(FrameKind.ROWS, _IDLE_S), Ended):
                if taken is None:
                    with driver_connection(connection).cursor() as cursor:
                        cursor.execute("SELECT 1")
                    continue
                for names, encoded in unpack_rows(taken.frame.payload):
                    if not rows.too_many:
                        rows.take(SiftedPart(names, encoded))
                source.done(taken)

    def interrupt() -> None:
        # A connection that has just broken cannot be cut any more, and need not be.
        with suppress(psycopg2.Error, OSError):
            cut(driver_connection(connection))

    return BackgroundTask(work, "spark_2pc_sink bad row search", interrupt)


#: Row errors that tasks find.
_OF_TASKS: Final = (RecordRefusedError, RecordTooLargeError, UnstorableValueError)


def is_about_rows(error: Exception) -> bool:
    """True for an error about individual rows, which can be left out of the batch.

    A key that an upsert has twice does not count: neither of those rows is the bad one.
    """
    return isinstance(error, (*_OF_TASKS, ConstraintError))


class BadRowSearch:
    """Looks for bad rows in one batch.

    Args:
        lanes: the sink's lanes, each with its tasks' work as if it were the only one.
        most: stop once more rows than this are refused.
    """

    def __init__(
        self,
        batch: FilteredBatch,
        lanes: Sequence[tuple[LaneWork, TaskPlan]],
        jobs: TaskJobs,
        forwarder: Callable[[AttemptInput], RecordForwarder],
        *,
        most: int,
    ) -> None:
        self._batch = batch.frame
        self._lanes = lanes
        self._jobs = jobs
        self._forwarder = forwarder
        self._most = most
        self._name_sql = identity_sql if batch.exact else fingerprint_sql

    def run(self, error: DataError, open_decision: Callable[[], Connection]) -> list[list[RefusedRow]]:
        """Find the rows for which an attempt failed; returns the refused rows of each lane."""
        if isinstance(error, ConstraintError):
            return self._by_database(open_decision)
        refusal = error if isinstance(error, RecordRefusedError) and not error.lacks_key else None
        found: list[list[RefusedRow]] = []
        for lane, plan in self._lanes:
            with self._jobs.listener.open_attempt() as source, attempt_threads(source, self._forwarder(source).task):
                results = self._search(lane, plan, source, staged=False, refusal=refusal)
            found.append([row for receipt in results.receipts for row in receipt.refused])
        return found

    def _by_database(self, open_decision: Callable[[], Connection]) -> list[list[RefusedRow]]:
        """Try all tables in one transaction, since rows of one may refer to another's."""
        connection = open_decision()
        tables: list[TableSift] = []
        for lane, plan in self._lanes:
            if lane.loader is None or lane.lane.rows is None:
                continue
            table = f"table {lane.lane.rows.table}"
            tables.append(TableSift(connection, lane.loader.table, output=table, most=self._most))
            with self._jobs.listener.open_attempt() as source:
                trying = _trying(source, tables[-1], connection)
                with attempt_threads(source, trying, self._forwarder(source).task):
                    self._search(lane, plan, source, staged=True)
            if tables[-1].too_many:
                break
        else:
            for each in tables:
                each.finish()
        return [each.refused for each in tables]

    def _search(
        self,
        lane: LaneWork,
        plan: TaskPlan,
        source: StreamAttempt,
        *,
        staged: bool,
        refusal: RecordRefusedError | None = None,
    ) -> TaskResults:
        table = "" if lane.lane.rows is None else lane.lane.rows.table
        search = SearchPlan(replace(plan, stream=source.address), staged, table, self._most, refusal)
        results = self._jobs.run(self._rows_of(lane, staged=staged), run_search_task, search)
        source.close_input()
        results.check_arrived(source.finished)
        return results

    def _rows_of(self, lane: LaneWork, *, staged: bool) -> DataFrame:
        """The input of tasks for a lane, with the columns of `bad_row`, which are not among the lane's expressions."""
        batch, name = self._batch, packed_name(lane.lane.index)
        identity = f"{self._name_sql(batch.schema)} AS {IDENTITY}"
        packed = batch.coalesce(self._jobs.facts.tasks_at_once()).selectExpr(
            lane.packed(batch, kafka_only=False), identity, f"monotonically_increasing_id() AS {NUMBER}"
        )
        if lane.lane.source.explosion is None:
            rows = packed.where(f"{name} IS NOT NULL")
        else:
            rows = packed.selectExpr(f"explode({name}) AS {name}", IDENTITY, NUMBER)
        rows = rows.selectExpr(f"{name}.*", IDENTITY, NUMBER)
        if not staged or lane.lane.rows is None or lane.lane.order_by is None:
            return rows.withColumn(WINS, F.lit(col=True))
        window = Window.partitionBy(*(quoted(key) for key in lane.lane.rows.keys))
        rank = F.rank().over(window.orderBy(F.col(ORDER_COLUMN).desc_nulls_last()))
        rows = rows.withColumn(WINS, rank == F.lit(1))
        earlier = window.orderBy(F.col(ORDER_COLUMN).asc_nulls_first()).rowsBetween(Window.unboundedPreceding, 0)
        # The database tries only winners, so here they get the values that `KeyedRows` would take from other rows.
        for place, name in enumerate(lane.lane.rows.unchanged_when or (), start=1):
            flags, value = F.col(UNCHANGED_COLUMN), F.struct(F.col(quoted(name)).alias("of"))
            carries = F.substring(flags, place, 1) == F.lit("0")
            if lane.lane.rows.delete_when is not None:
                carries &= ~F.col(DELETE_COLUMN)
            known = F.last(F.when(carries, value), ignorenulls=True).over(earlier)
            rows = rows.withColumns(
                {
                    name: known["of"],
                    UNCHANGED_COLUMN: F.overlay(flags, F.when(known.isNull(), "1").otherwise("0"), F.lit(place)),
                }
            )
        return rows.coalesce(self._jobs.facts.tasks_at_once())
