"""The records of the open transaction against one table: how many of them have their rows there."""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.verification.comparison import Comparison
from spark_2pc_sink.verification.differences import THE_TABLE, Differences
from spark_2pc_sink.verification.evidence import Evidence
from spark_2pc_sink.verification.lone import Lone
from spark_2pc_sink.verification.places import Places
from spark_2pc_sink.verification.reading import Bounds, RecordStage, sample, stage_uncommitted
from spark_2pc_sink.verification.request import Request
from spark_2pc_sink.verification.schema_values import formats_of, no_registry, value_reader
from spark_2pc_sink.verification.side_sql import SideSql
from spark_2pc_sink.verification.staging import RecordTexts, Staging
from spark_2pc_sink.verification.table_pairs import TablePair
from spark_2pc_sink.verification.table_plan import TablePlan
from spark_2pc_sink.verification.table_shape import TableShape, read_shape
from spark_2pc_sink.verification.tally import Tally


@dataclass(frozen=True)
class OpenRows:
    """What a comparison has found.

    Attributes:
        records: that were compared; with upserts, the last of each key.
        in_table: how many of them have a row.
    """

    records: int
    in_table: int

    @property
    def share(self) -> float:
        """The part of the records that has a row."""
        return self.in_table / self.records if self.records else 1.0


class OpenComparison:
    """Compares records of the open transaction with one table.

    Args:
        request: of the caller.
        evidence: all but records and rows.
        differences: takes what is found.
        pair: the table and the topic that tells its rows; None where the sink has one table.
    """

    def __init__(
        self, request: Request, evidence: Evidence, differences: Differences, *, pair: TablePair | None = None
    ) -> None:
        self._request = request
        self._evidence = evidence
        self._differences = differences
        self._named = pair is not None
        self._layout = evidence.layout if pair is None else pair.layout
        self._target = request.target.completed(self._layout, unordered=pair is not None and pair.unordered)
        self._read = value_reader(self._layout, request.registry)

    def run(self, bounds: Bounds) -> OpenRows | None:
        """Compare, and say what differs; None where that cannot be done, which is said.

        Args:
            bounds: of the records, which are all of this table.
        """
        plan = self._plan(bounds)
        return None if plan is None else plan.carry_out(lambda: self._staged(bounds, plan), self._differences)

    def _plan(self, bounds: Bounds) -> TablePlan | None:
        """How the table is compared; None where it cannot be, which is said."""
        shape = self._shape()
        if shape is None:
            return None
        formats = formats_of(self._layout)
        if formats and self._request.registry is None:
            self._differences.skip(THE_TABLE, *no_registry(formats))
            return None
        facts = sample(self._evidence.reader, self._read, bounds, committed=False)
        plan = TablePlan(self._target, shape, facts, Places(bounds), whole=False)
        if refusal := plan.refusal():
            self._differences.skip(THE_TABLE, *refusal)
            return None
        return plan

    def _shape(self) -> TableShape | None:
        if self._target.table is None:
            self._differences.skip(THE_TABLE, "the sink has noted none", "pass --table TABLE (table)")
            return None
        try:
            with self._evidence.snapshot.cursor() as cursor:
                return read_shape(cursor, self._target.table)
        except ConfigurationError as error:
            if not self._named or self._request.target.table is not None:
                raise
            self._differences.skip(THE_TABLE, error.rule, error.remedy)
            return None

    def _staged(self, bounds: Bounds, plan: TablePlan) -> OpenRows:
        evidence, sql = self._evidence, plan.sql()
        timeout_ms = self._request.options.statement_timeout_ms
        with Staging(evidence.database, sql, statement_timeout_ms=timeout_ms) as staging:
            stage = RecordStage(staging, plan.places, RecordTexts.of(sql, self._read), lambda *_: True)
            records = stage_uncommitted(evidence.reader, bounds, stage, Tally((), {}))
            staging.finish()
            with evidence.snapshot.undone():
                Comparison(evidence.snapshot, staging).part()
                return self._judged(plan, staging.sessions[0].sql, records)

    def _judged(self, plan: TablePlan, sql: SideSql, records: int) -> OpenRows:
        snapshot, reader = self._evidence.snapshot, self._evidence.reader
        lone = Lone(snapshot, sql, reader, plan.places, batch_at=lambda *_: None, read=self._read)
        lone.report(self._differences, rows_too=False)
        without = sum(lone.count_records(reason) for reason in ("missing", "twice", "differing"))
        if sql.upsert:
            ((records,),) = snapshot.run("SELECT count(*) FROM pg_temp.verify_records")
        return OpenRows(records, records - without)
