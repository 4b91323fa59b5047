"""The work of one lane on the driver: what Spark selects of a batch for it, and what tasks do with that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_2pc_sink.sink.contract import record_expressions
from spark_2pc_sink.sink.contract.lane_frames import packed, packed_name, rows_of
from spark_2pc_sink.sink.contract.task_plan import LanePlan, UpsertRecordsPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from spark_2pc_sink.options import Lane
    from spark_2pc_sink.sink.contract.record_expressions import RecordExpressions
    from spark_2pc_sink.sink.contract.row_transfer import RowEncoderPlan
    from spark_2pc_sink.sink.transfer.table_loader import TableLoader


@dataclass(frozen=True)
class LaneWork:
    """One lane of a batch.

    Attributes:
        lane: of the sink.
        expressions: checked against the lane's rows.
        loader: how rows get into the table; None without one.
    """

    lane: Lane
    expressions: RecordExpressions
    loader: TableLoader | None

    @property
    def topic(self) -> str | None:
        """Where all records of the lane go; None where rows say, or where there are none."""
        return None if self.lane.records is None else self.lane.records.topic

    @property
    def chooses_topics(self) -> bool:
        """True where rows say to which topic they go."""
        return self.expressions.topic is not None

    @property
    def upsert_records(self) -> UpsertRecordsPlan | None:
        """How records follow the table where its order chooses among rows; None without keys to keep them by."""
        records, rows = self.lane.records, self.lane.rows
        if records is None or rows is None or rows.order_by is None or self.expressions.key is None:
            return None
        return UpsertRecordsPlan(keys=tuple(rows.keys), leave_out=records.superseded == "leave_out")

    def plan(self, row_encoder: RowEncoderPlan | None, *, packed_with_others: bool) -> LanePlan:
        """What tasks do with the rows.

        Args:
            row_encoder: how they encode them for the table.
            packed_with_others: the rows come in a column of their own.
        """
        return LanePlan(
            index=self.lane.index,
            packed=packed_name(self.lane.index) if packed_with_others else None,
            sends=self.lane.records is not None,
            told_as=self.lane.rows.table if self.lane.rows is not None and self.lane.records is None else None,
            topic=self.topic,
            row_encoder=row_encoder,
            json=self.expressions.json,
            key_column=self.expressions.key_column,
            upsert_records=self.upsert_records,
            guarded=self.expressions.guarded,
            serialisers=self.expressions.serialisers,
        )

    def alone(self, batch: DataFrame, more: list[str], *, kafka_only: bool) -> DataFrame:
        """The rows of the lane: one column for each thing that is needed to encode one, and ``more``.

        Args:
            batch: the batch.
            more: SQL for further columns.
            kafka_only: without what only the table needs.
        """
        rows = rows_of(batch, self.lane.source)
        loader = self._loader(kafka_only=kafka_only)
        if loader is None:
            return rows.selectExpr(*self._record_columns(), *more)
        json_columns = loader.json_columns
        record = record_expressions.record_sql(self.expressions, json_columns)
        columns, encoded = loader.select_lists()
        if encoded is None:
            selected = [*record, *columns, *more]
            return rows if record_expressions.is_everything(selected, rows) else rows.selectExpr(*selected)
        return rows.selectExpr(*record, *columns).selectExpr(
            *record_expressions.record_columns(self.expressions, json_columns), *encoded, *more
        )

    def packed(self, batch: DataFrame, *, kafka_only: bool) -> str:
        """The same as SQL for one column of the batch, beside those of other lanes."""
        loader = self._loader(kafka_only=kafka_only)
        if loader is None:
            columns = self._record_columns()
        else:
            record = record_expressions.record_sql(self.expressions, loader.json_columns)
            columns = [*record, *loader.packed_columns()]
        return packed(batch, self.lane.source, columns, self.lane.index)

    def _loader(self, *, kafka_only: bool) -> TableLoader | None:
        """Whose columns are selected: rows without records are told by them also where the database has them."""
        return None if kafka_only and self.lane.records is not None else self.loader

    def _record_columns(self) -> list[str]:
        """What records are made of, and put into order by."""
        columns = record_expressions.record_sql(self.expressions)
        columns += record_expressions.shared_columns(self.expressions)
        if self.upsert_records is not None:
            columns += record_expressions.upsert_order_columns(
                self.expressions, self.upsert_records.keys, str(self.lane.order_by)
            )
        return columns


def expressions_by_lane(lanes: Iterable[LaneWork]) -> dict[int, RecordExpressions]:
    """What each lane of a batch is made of, by its place among the lanes of the sink."""
    return {work.lane.index: work.expressions for work in lanes}
