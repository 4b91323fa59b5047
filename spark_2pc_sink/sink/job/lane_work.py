"""The work of one lane on the driver: what Spark selects of a batch for it, and what tasks do with that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_2pc_sink.sink.contract import record_columns, record_expressions
from spark_2pc_sink.sink.contract.lane_frames import packed, packed_name, rows_of
from spark_2pc_sink.sink.contract.task_plan import LanePlan
from spark_2pc_sink.sink.table.spark_sql import quoted
from spark_2pc_sink.sink.table.upsert_order import ORDER_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame

    from spark_2pc_sink.options import Lane
    from spark_2pc_sink.sink.contract.record_expressions import RecordExpressions
    from spark_2pc_sink.sink.contract.task_plan import RowEncoderPlan
    from spark_2pc_sink.sink.transfer.table_loader import TableLoader


#: Decides which task gets a row; rows of one upsert key have the same.
_PLACE: Final = "_2pc_place"
#: Types that Spark has no hash of, or that contain one.
_NOT_HASHED: Final = ("map<", "variant")


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
    def follows_order(self) -> bool:
        """True where records follow the table's order among rows of one key: there are keys to keep records by."""
        records, rows = self.lane.records, self.lane.rows
        ordered_rows = records is not None and rows is not None and rows.order_by is not None
        return ordered_rows and self.expressions.key is not None

    @property
    def leaves_out(self) -> bool:
        """True where superseded rows have no record; else their records are sent before those that stay."""
        records = self.lane.records
        return self.follows_order and records is not None and records.superseded == "leave_out"

    @property
    def upsert_keys(self) -> tuple[str, ...]:
        """The columns of the upsert keys."""
        return () if self.lane.rows is None else tuple(self.lane.rows.keys)

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
            leaves_out=self.leaves_out,
            guarded=self.expressions.guarded,
            serialisers=self.expressions.serialisers,
        )

    def alone(self, batch: DataFrame, *, kafka_only: bool) -> DataFrame:
        """The rows of the lane: one column for each thing that is needed to encode one.

        Args:
            batch: the batch.
            kafka_only: without what only the table needs.
        """
        rows = rows_of(batch, self.lane.source)
        loader = self._loader(kafka_only=kafka_only)
        if loader is None:
            return rows.selectExpr(*self._record_columns())
        json_columns = loader.json_columns
        record = record_expressions.record_sql(self.expressions, json_columns)
        columns, encoded = loader.select_lists()
        if encoded is None:
            selected = [*record, *columns]
            return rows if record_expressions.is_everything(selected, rows) else rows.selectExpr(*selected)
        return rows.selectExpr(*record, *columns).selectExpr(
            *record_expressions.record_columns(self.expressions, json_columns), *encoded
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
        if self.follows_order:
            columns += record_expressions.upsert_order_columns(
                self.expressions, self.upsert_keys, str(self.lane.order_by)
            )
        return columns

    def field(self, name: str, *, packed_with_others: bool) -> Column:
        """A column of what was selected for the lane."""
        return F.col(f"{packed_name(self.lane.index)}.{quoted(name)}" if packed_with_others else quoted(name))


def selected(batch: DataFrame, lanes: Sequence[LaneWork], *, kafka_only: bool) -> DataFrame:
    """What tasks get of a batch: the rows of one lane, or a column for each of several."""
    if len(lanes) == 1:
        return lanes[0].alone(batch, kafka_only=kafka_only)
    return batch.selectExpr(*(lane.packed(batch, kafka_only=kafka_only) for lane in lanes))


def ordered(rows: DataFrame, lanes: Sequence[LaneWork], tasks: int) -> DataFrame:
    """Bring rows of one upsert key to one task, where records follow an order; else the rows as they are.

    Of several rows with one upsert key the table keeps the one with the greatest upsert_order_by. So the records of the
    others, which are superseded, have to be sent before it or not at all.

    Args:
        rows: from `selected`.
        lanes: of the sink.
        tasks: how many share the rows; 1 where they are in one partition already.
    """
    following = [lane for lane in lanes if lane.follows_order]
    if not following:
        return rows
    packed_rows = len(lanes) > 1
    if packed_rows:
        rows = _one_lane_each(rows, lanes)
    rows = rows.withColumn(_PLACE, _place(rows, lanes))
    if tasks > 1:
        rows = rows.repartition(tasks, F.col(_PLACE))
    for lane in following:
        if lane.leaves_out:
            rows = _with_superseded(rows, lane, packed_with_others=packed_rows)
    orders = [lane.field(ORDER_COLUMN, packed_with_others=packed_rows) for lane in following if not lane.leaves_out]
    if orders:
        rows = rows.sortWithinPartitions(*(order.asc_nulls_first() for order in orders))
    return rows.drop(_PLACE)


def _place(rows: DataFrame, lanes: Sequence[LaneWork]) -> Column:
    """The same for rows of one lane with one upsert key, whatever the order of their evaluation is."""
    if len(lanes) == 1:
        return F.xxhash64(*(lanes[0].field(key, packed_with_others=False) for key in lanes[0].upsert_keys))
    parts: list[Column] = []
    for lane in lanes:
        names = lane.upsert_keys if lane.follows_order else _hashed_names(rows, packed_name(lane.lane.index))
        parts += [lane.field(name, packed_with_others=True) for name in names]
    return F.xxhash64(*parts)


def _hashed_names(rows: DataFrame, column: str) -> list[str]:
    fields = rows.select(f"{column}.*").schema.fields
    described = ((field.name, field.dataType.simpleString()) for field in fields)
    return [name for name, kind in described if not any(mark in kind for mark in _NOT_HASHED)]


def _with_superseded(rows: DataFrame, lane: LaneWork, *, packed_with_others: bool) -> DataFrame:
    """Mark rows for which another one of their key has a greater order; a row without a record key has no other."""
    key_name = lane.expressions.key_column or record_columns.KEY
    keyless = lane.field(key_name, packed_with_others=packed_with_others).isNull()
    keys = [lane.field(key, packed_with_others=packed_with_others) for key in lane.upsert_keys]
    order = lane.field(ORDER_COLUMN, packed_with_others=packed_with_others)
    rank = F.rank().over(Window.partitionBy(F.col(_PLACE), *keys, keyless).orderBy(order.desc_nulls_last()))
    superseded = (rank > F.lit(1)) & ~keyless
    if not packed_with_others:
        return rows.withColumn(record_columns.SUPERSEDED, superseded)
    name = packed_name(lane.lane.index)
    marked = rows.withColumn(record_columns.SUPERSEDED, superseded)
    with_field = F.col(name).withField(record_columns.SUPERSEDED, F.col(record_columns.SUPERSEDED))
    return marked.withColumn(name, with_field).drop(record_columns.SUPERSEDED)


def _one_lane_each(rows: DataFrame, lanes: Sequence[LaneWork]) -> DataFrame:
    """The rows of all lanes, each in a row of its own: those of one lane can then go where its key says."""
    names = [packed_name(lane.lane.index) for lane in lanes]
    exploded = [lane.lane.source.explosion is not None for lane in lanes]
    absent = [
        f"CASE WHEN false THEN {f'get({name}, 0)' if several else name} END"
        for name, several in zip(names, exploded, strict=True)
    ]

    def alone(place: int, value: str) -> str:
        values = [value if number == place else null for number, null in enumerate(absent)]
        fields = (f"'{name}', {each}" for name, each in zip(names, values, strict=True))
        return f"named_struct({', '.join(fields)})"

    arrays = [
        f"coalesce(transform({name}, x -> {alone(place, 'x')}), array())"
        if exploded[place]
        else f"CASE WHEN {name} IS NULL THEN array() ELSE array({alone(place, name)}) END"
        for place, name in enumerate(names)
    ]
    return rows.selectExpr(f"inline(concat({', '.join(arrays)}))")


def expressions_by_lane(lanes: Iterable[LaneWork]) -> dict[int, RecordExpressions]:
    """What each lane of a batch is made of, by its place among the lanes of the sink."""
    return {work.lane.index: work.expressions for work in lanes}
