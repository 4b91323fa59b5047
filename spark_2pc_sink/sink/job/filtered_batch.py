"""A batch without its bad rows, which go to the dead letters; and the jobs that find them after an attempt has failed.

Bad rows are removed from the batch itself before any other processing, so they reach no output, and tasks need no
knowledge of them. A batch without bad rows is the frame passed by Spark.

The attempt's error determines where to search. Refusals by a task are located by tasks. Refusals by the database are
located by the database: tasks resend the rows, and a thread tries them meanwhile. Each lane has its own job; only a
failed batch incurs this cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Window, functions as F
from sqlalchemy import Connection

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import (
    ConfigurationError,
    ConstraintError,
    DataError,
    RecordRefusedError,
    RecordTooLargeError,
    TooManyBadRowsError,
    UnstorableValueError,
)
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY, NUMBER, WINS, BadRows, LookedUpRow, RefusedRow, TableSift
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.job.lane_columns import LaneWork, packed_name
from spark_2pc_sink.sink.job.search_task import SearchPlan, run_search_task
from spark_2pc_sink.sink.job.task_plan import TaskPlan, TaskResults
from spark_2pc_sink.sink.records.record_side import RecordForwarder
from spark_2pc_sink.sink.rows.copy_encoder import DELETE_COLUMN, ORDER_COLUMN, UNCHANGED_COLUMN
from spark_2pc_sink.sink.rows.row_sql import dead_letter_json, fingerprint_sql, identity_sql
from spark_2pc_sink.sink.rows.table_copy import CopyTarget, TableCopy
from spark_2pc_sink.sink.spark_sql import literal, quoted
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, BackgroundTask, attempt_threads
from spark_2pc_sink.sink.stream.listener import StreamAttempt

if TYPE_CHECKING:
    from spark_2pc_sink.sink.job.spark_batch import TaskJobs

#: If there are too many bad rows: how many an error describes, and in how many characters.
_SHOWN_MAX: Final = 3
_SHOWN_CHARACTERS_MAX: Final = 1_000
_FINGERPRINT: Final = "_2pc_fingerprint"
_JSON: Final = "_2pc_row"
_OCCURRENCES: Final = "_2pc_occurrences"


class FilteredBatch:
    """One batch and the rows left out of it; if ``exact``, searches use identities, not fingerprints."""

    def __init__(self, batch: DataFrame, batch_id: int, options: SinkOptions, dead_letters: DeadLetters) -> None:
        self._batch = batch
        self.frame: DataFrame = batch
        self.batch_id: int = batch_id
        self._options = options
        self._dead_letters = dead_letters
        self._log = sink_log(__name__, options.transactional_id)
        self.bad_rows: BadRows = BadRows()
        self.exact: bool = False

    def recall(self) -> None:
        """Leave out the rows that were left out when the batch was decided."""
        self._leave_out(self._dead_letters.read(self.batch_id))

    def leave_out(self, lanes: Sequence[Sequence[RefusedRow]]) -> bool:
        """Leave out rows that a search has found in `frame`; False if it found none.

        If another row of the batch has the fingerprint of a bad one, none is left out: the next attempt fails as the
        last one did, and the following search identifies rows by their `exact` identity.
        """
        found = BadRows().with_refused(lanes)
        if not found:
            self._log.warning("batch %d: no row was refused when the batch was read again", self.batch_id)
            return False
        self._refuse_too_many(found)
        looked_up = self._looked_up(found)
        identities = {self._name(row): row.identity for row in looked_up}
        if found.keys() - identities.keys():
            lost = next(iter(found.values()))
            raise ConfigurationError(
                option="bad_rows",
                value="dead_letter",
                rule=f"the batch has different rows each time Spark reads it, so the row that {lost.output} refused "
                f"({lost.reason}) cannot be found again",
                remedy="make every column depend on the source data only: a UDF must return the same result for the "
                "same arguments, without random numbers, the time, or a service whose answers vary. Or write "
                "the results of such a UDF to a table or topic first, and read that in this stream",
            )
        if len(identities) < len(looked_up):
            self.exact = True
            return True
        lanes = [[replace(row, identity=identities[row.identity]) for row in lane] for lane in lanes]
        self._leave_out(self.bad_rows.with_refused(lanes).described(looked_up))
        count = found.occurrences
        rows, them = ("row", "it") if count == 1 else ("rows", "them")
        self._log.info("batch %d: %d bad %s, retrying without %s", self.batch_id, count, rows, them)
        return True

    def write_dead_letters(self, connection: Connection) -> None:
        """Write the bad rows in the transaction that decides the rest; no-op if there are none."""
        if self.bad_rows:
            self._dead_letters.write(connection, self.batch_id, self.bad_rows)

    def _leave_out(self, bad_rows: BadRows) -> None:
        self.bad_rows = bad_rows
        self.frame = without(self._batch, bad_rows) if bad_rows else self._batch

    def _refuse_too_many(self, found: BadRows) -> None:
        limit, bad = self._options.max_bad_rows, self.bad_rows.occurrences + found.occurrences
        # A share needs the batch's row count, not known so far: a table may get none of its rows, or several of each.
        if bad <= limit.rows and not (limit.share and bad > limit.of(self._batch.count())):
            return
        first = BadRows(list(found.values())[:_SHOWN_MAX])
        texts = {self._name(row): row.row for row in self._looked_up(first)}
        described = (replace(row, row=texts.get(row.identity, row.row)) for row in first.values())
        shown = [*self.bad_rows.values(), *described][:_SHOWN_MAX]
        raise TooManyBadRowsError(
            found=bad,
            rows=self._batch.count(),
            limit=str(limit),
            first=tuple(str(row)[:_SHOWN_CHARACTERS_MAX] for row in shown),
        )

    def _looked_up(self, found: BadRows) -> list[LookedUpRow]:
        """Look up rows named by a search in the batch. A separate evaluation: only now are they known."""
        schema = self._batch.schema
        meant = _is_among(found, identity_sql(schema) if self.exact else fingerprint_sql(schema))
        named = (f"{fingerprint_sql(schema)} AS {_FINGERPRINT}", f"{identity_sql(schema)} AS {IDENTITY}")
        # Few rows, in one partition: no shuffle into the session's default number of partitions.
        rows = self._batch.filter(meant).selectExpr(*named, f"{dead_letter_json(schema)} AS {_JSON}").repartition(1)
        grouped = rows.groupBy(_FINGERPRINT, IDENTITY).agg(F.count("*"), F.first(_JSON)).collect()
        return [LookedUpRow(*row) for row in grouped]

    def _name(self, row: LookedUpRow) -> str:
        return row.identity if self.exact else row.fingerprint


def without(batch: DataFrame, bad_rows: BadRows) -> DataFrame:
    """The batch without its bad rows.

    If only some of several equal rows are bad, all equal ones are sent to one task, which counts them.
    """
    if all(row.all_of_them for row in bad_rows.values()):
        # Spark turns more than a few values into a set, unlike with a join.
        bad = _is_among(bad_rows, identity_sql(batch.schema))
        fingerprints = [row.fingerprint for row in bad_rows.values() if row.fingerprint is not None]
        if len(fingerprints) == len(bad_rows):
            # The identity is computed only for rows with the fingerprint of a bad one.
            bad = f"{_is_among(fingerprints, fingerprint_sql(batch.schema))} AND {bad}"
        return batch.filter(f"NOT ({bad})")
    identified = batch.withColumn(IDENTITY, F.expr(identity_sql(batch.schema)))
    lines = [(row.identity, row.occurrences) for row in bad_rows.values()]
    # A small table, which is sent to each task.
    listed = F.broadcast(batch.sparkSession.createDataFrame(lines, f"{IDENTITY} string, {_OCCURRENCES} bigint"))
    # Equal rows have no order among them, and need none.
    ranked = identified.withColumn(NUMBER, F.row_number().over(Window.partitionBy(IDENTITY).orderBy(IDENTITY)))
    kept = ranked.join(listed, IDENTITY, "left").filter(f"{_OCCURRENCES} IS NULL OR {NUMBER} > {_OCCURRENCES}")
    return kept.select(*(F.col(quoted(name)) for name in batch.columns))


def _is_among(names: Iterable[str], sql: str) -> str:
    """SQL that is true for a row with one of some names.

    These are texts: Spark embeds a number in the code that it compiles, and would recompile it for each batch.
    """
    return f"{sql} IN ({', '.join(map(literal, names))})"


#: Seconds without rows after which the server is sent a query, to avoid its timeout for idle transactions.
_IDLE_S: Final = 1.0


def _trying(source: AttemptInput, lane: int, sift: TableSift, connection: Connection) -> BackgroundTask:
    """A thread that tries the rows of one lane, on the connection of a transaction that will be rolled back."""
    table: Any = sift  # in this transaction, only `copy` is called
    targets = [CopyTarget(lane, lambda _: table)]
    return TableCopy(source, lambda: connection, targets, idle_s=_IDLE_S, early=True).task


#: Errors about individual rows, which can be left out of the batch; tasks or the database find these. A key that an
#: upsert has twice does not count: neither of those rows is the bad one.
ABOUT_ROWS: Final = (RecordRefusedError, RecordTooLargeError, UnstorableValueError, ConstraintError)


@dataclass(frozen=True)
class BadRowSearch:
    """Looks for bad rows in one batch, until more than ``most`` are refused; each lane has the plan of a lane alone."""

    batch: FilteredBatch
    lanes: Sequence[tuple[LaneWork, TaskPlan]]
    jobs: TaskJobs
    forwarder: Callable[[AttemptInput], RecordForwarder]
    most: int

    def run(self, error: DataError, open_decision: Callable[[], Connection]) -> list[list[RefusedRow]]:
        """Find the rows for which an attempt failed; returns the refused rows of each lane."""
        if isinstance(error, ConstraintError):
            return self._by_database(open_decision)
        refusal = error if isinstance(error, RecordRefusedError) and not error.lacks_key else None
        found: list[list[RefusedRow]] = []
        for lane, plan in self.lanes:
            with self.jobs.listener.open_attempt() as source, attempt_threads(source, self.forwarder(source).task):
                results = self._search(lane, plan, source, refusal, staged=False)
            found.append([row for receipt in results.receipts for row in receipt.refused])
        return found

    def _by_database(self, open_decision: Callable[[], Connection]) -> list[list[RefusedRow]]:
        """Try all tables in one transaction, since rows of one may refer to another's."""
        connection = open_decision()
        tables: list[TableSift] = []
        for lane, plan in self.lanes:
            if lane.loader is None or lane.lane.rows is None:
                continue
            table = f"table {lane.lane.rows.table}"
            tables.append(TableSift(connection, lane.loader.table, output=table, most=self.most))
            with self.jobs.listener.open_attempt() as source:
                trying = _trying(source, lane.lane.index, tables[-1], connection)
                with attempt_threads(source, trying, self.forwarder(source).task):
                    self._search(lane, plan, source, None, staged=True)
            if tables[-1].too_many:
                break
        else:
            for each in tables:
                each.finish()
        return [each.refused for each in tables]

    def _search(
        self, lane: LaneWork, plan: TaskPlan, source: StreamAttempt, refusal: RecordRefusedError | None, *, staged: bool
    ) -> TaskResults:
        table = "" if lane.lane.rows is None else lane.lane.rows.table
        search = SearchPlan(replace(plan, stream=source.address), staged, table, self.most, refusal)
        results = self.jobs.run(self._rows_of(lane, staged=staged), run_search_task, search)
        source.close_input()
        results.check_arrived(source.finished)
        return results

    def _rows_of(self, lane: LaneWork, *, staged: bool) -> DataFrame:
        """The input of tasks for a lane, with the columns of `bad_row`, which are not among the lane's expressions."""
        batch, name = self.batch.frame, packed_name(lane.lane.index)
        name_sql = identity_sql if self.batch.exact else fingerprint_sql
        identity = f"{name_sql(batch.schema)} AS {IDENTITY}"
        packed = batch.coalesce(self.jobs.facts.tasks_at_once()).selectExpr(
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
            flag = F.when(known.isNull(), "1").otherwise("0")
            rows = rows.withColumns({name: known["of"], UNCHANGED_COLUMN: F.overlay(flags, flag, F.lit(place))})
        return rows.coalesce(self.jobs.facts.tasks_at_once())
