"""The lanes of a batch: their expressions, analyzed, and the columns that are selected for them, in which row order.

With one lane its rows are selected directly. With several, one pass over the batch builds the rows of all, each lane's
in its own column; `encode_task.unpacked` is the inverse.

Expressions depend on more than a batch's rows: on session settings, the registry, and upsert keys. The last record of a
key is the row that the table keeps only if all rows of one upsert key have one record key, one topic and one partition:
a record is superseded by a later one with its key, in its partition. This holds if these are computed from the upsert
keys alone (`check_places`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.options import Lane, RowSource, SinkOptions
from spark_2pc_sink.options.outputs import Format
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.options.sql_text import Explosion, with_columns_for_star, with_fields_for_star
from spark_2pc_sink.sink.job.session_facts import SessionFacts
from spark_2pc_sink.sink.job.task_plan import LanePlan
from spark_2pc_sink.sink.records import record_columns
from spark_2pc_sink.sink.records.record_expressions import (
    RecordExpressions,
    analyze,
    choose_expressions,
    expressions_frame,
    same_semantics,
    true_sql,
    type_of,
    with_guards,
    with_json,
    with_key_column,
)
from spark_2pc_sink.sink.records.record_json import SETTINGS
from spark_2pc_sink.sink.rows.copy_encoder import ORDER_COLUMN
from spark_2pc_sink.sink.spark_sql import quoted

if TYPE_CHECKING:
    from spark_2pc_sink.serialisation.binding import Registry
    from spark_2pc_sink.sink.job.table_loader import TableLoader


def rows_of(batch: DataFrame, source: RowSource) -> DataFrame:
    """The rows of a source, with the columns of the batch and, in addition, the element of an array."""
    frame, explosion = batch, source.explosion
    if explosion is not None:
        array, kind = explosion.array, type_of(batch, "rows", explosion.array)
        if not isinstance(kind, ArrayType):
            remedy = "explode an array"
            if isinstance(kind, MapType):
                entries = f"explode(map_entries({array})) AS entry"
                remedy = f"explode its entries: rows='{entries}', with entry.key and entry.value"
            raise refused("rows", array, f"its type is {kind.simpleString()}; explode needs an array", remedy)
        if explosion.name.casefold() in (name.casefold() for name in batch.columns):
            rule = f"the batch has a column {explosion.name!r}, and the element would have the same name"
            raise refused("rows", source.rows, rule, "choose another name after AS")
        frame = batch.selectExpr("*", f"explode({array}) AS {quoted(explosion.name)}")
    if source.where is not None:
        condition = type_of(frame, "where", source.where).simpleString()
        if condition != "boolean":
            rule = f"its type is {condition}; a condition must be boolean"
            raise refused("where", source.where, rule, "compare it with something, for example where='amount > 0'")
        frame = frame.where(source.where)
    return frame


def packed_name(lane: int) -> str:
    return f"_2pc_lane_{lane}"


def _fields_of(batch: DataFrame, explosion: Explosion) -> str:
    """The fields of the element as a list; the element itself if it has none, which Spark refuses before a star."""
    kind, name = type_of(batch, "rows", explosion.array), quoted(explosion.name)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return f"{name}.*"
    return ", ".join(f"{name}.{quoted(field)}" for field in kind.elementType.names)


def record_sql(expressions: RecordExpressions, json_columns: Collection[str] = ()) -> list[str]:
    """What a task needs in addition to the table's columns, of which ``json_columns`` are selected as JSON."""
    parts = {
        record_columns.TOPIC: expressions.topic,
        # The widest allowed type: a narrower one would wrap a nonexistent partition number into an existing one
        # (spark.sql.ansi.enabled=false), or raise an error that names no row.
        record_columns.PARTITION: expressions.partition and f"CAST({expressions.partition} AS BIGINT)",
        record_columns.KEY: expressions.key if expressions.key_column is None else None,
        record_columns.VALUE: expressions.value if expressions.json is None else None,
        record_columns.HEADERS: expressions.headers,
        record_columns.TOMBSTONE: expressions.tombstone and true_sql(expressions.tombstone),
    }
    made = [each.select(json_columns) for each in expressions.json_made]
    return [*(f"{sql} AS {name}" for name, sql in parts.items() if sql is not None), *filter(None, made)]


def upsert_order_columns(expressions: RecordExpressions, upsert_keys: Sequence[str], order_by: str) -> list[str]:
    """The columns, in addition to `shared_columns`, by which tasks tell rows of one upsert key apart."""
    shared = shared_columns(expressions)
    keys = [name for name in upsert_keys if quoted(name) not in shared]
    return [*(f"{expressions.columns[name]} AS {quoted(name)}" for name in keys), f"{order_by} AS {ORDER_COLUMN}"]


def shared_columns(expressions: RecordExpressions) -> list[str]:
    """The table columns from which tasks build parts of the record."""
    names = [each.column for each in expressions.json or () if each.reads_column]
    if expressions.key_column is not None and expressions.key_column not in names:
        names.append(expressions.key_column)
    return [quoted(name) for name in names]


#: Determines which task gets a row; equal for rows of one upsert key.
_PLACE: Final = "_2pc_place"
#: Types that Spark cannot hash, or that contain one.
_NOT_HASHED: Final = ("map<", "variant")


@dataclass(frozen=True)
class LaneWork:
    """A lane over the rows of a batch."""

    lane: Lane
    expressions: RecordExpressions
    loader: TableLoader | None
    #: Its rows are in one column of the tasks' input, next to those of other lanes.
    packed_with_others: bool

    @property
    def topic(self) -> str | None:
        """None if rows name their topics, or if there are no records."""
        return None if self.lane.records is None else self.lane.records.topic

    @property
    def follows_order(self) -> bool:
        """True if records follow the table's order among rows of one key: and have keys to be compacted by."""
        return self.lane.order_by is not None and self.expressions.key is not None

    @property
    def leaves_out(self) -> bool:
        """True if superseded rows have no record; otherwise their records are sent before those that stay."""
        records = self.lane.records
        return self.follows_order and records is not None and records.superseded == "leave_out"

    @property
    def upsert_keys(self) -> tuple[str, ...]:
        return () if self.lane.rows is None else tuple(self.lane.rows.keys)

    def plan(self, *, kafka_only: bool) -> LanePlan:
        return LanePlan(
            index=self.lane.index,
            packed=packed_name(self.lane.index) if self.packed_with_others else None,
            sends=self.lane.records is not None,
            digest_label=self.lane.rows.table if self.lane.rows is not None and self.lane.records is None else None,
            topic=self.topic,
            row_encoder=None if self.loader is None or kafka_only else self.loader.encoder_plan(),
            json=self.expressions.json,
            key_column=self.expressions.key_column,
            leaves_out=self.leaves_out,
            guarded=self.expressions.guarded,
            serialisers=self.expressions.serialisers,
        )

    def alone(self, batch: DataFrame, *, kafka_only: bool) -> DataFrame:
        """The rows of the lane: one column for each value needed to encode a row; ``kafka_only`` omits the table's."""
        rows, columns = rows_of(batch, self.lane.source), self._columns(kafka_only=kafka_only)
        # Spark takes milliseconds of a small batch to analyze a select that would not change it.
        everything = columns == [f"{quoted(name)} AS {quoted(name)}" for name in rows.columns]
        return rows if everything else rows.selectExpr(*columns)

    def packed(self, batch: DataFrame, *, kafka_only: bool) -> str:
        """The same as SQL for one column of the batch, next to those of other lanes, with the column's name."""
        explosion, where = self.lane.source.explosion, self.lane.source.where
        columns = ", ".join(self._columns(kafka_only=kafka_only))
        if explosion is None:
            rows = f"struct({columns})"
            rows = rows if where is None else f"CASE WHEN ({where}) THEN {rows} END"
        else:
            # A lambda resolves its own names first, so the element's name means the same as in `rows_of`; not a star.
            name = quoted(explosion.name)
            everything = ", ".join([*map(quoted, batch.columns), name])
            elements = f"({explosion.array})"
            if where is not None:
                elements = f"filter({elements}, {name} -> ({with_columns_for_star(where, everything)}))"
            columns = with_columns_for_star(columns, everything)
            if "*" in columns:
                columns = with_fields_for_star(f"({columns})", explosion.name, _fields_of(batch, explosion))[1:-1]
            rows = f"transform({elements}, {name} -> struct({columns}))"
        return f"{rows} AS {packed_name(self.lane.index)}"

    def _columns(self, *, kafka_only: bool) -> list[str]:
        # A lane without records needs its table's columns for its digest even in a resend.
        if self.loader is not None and not (kafka_only and self.lane.records is not None):
            plan, table_columns = self.loader.planned
            converted = [each.name for each in plan.copied if each.expression != quoted(each.name)]
            return [*record_sql(self.expressions, converted), *table_columns]
        columns = [*record_sql(self.expressions), *shared_columns(self.expressions)]
        if self.follows_order:
            columns += upsert_order_columns(self.expressions, self.upsert_keys, str(self.lane.order_by))
        return columns

    def field(self, name: str) -> Column:
        return F.col(f"{packed_name(self.lane.index)}.{quoted(name)}" if self.packed_with_others else quoted(name))


def selected(batch: DataFrame, lanes: Sequence[LaneWork], *, kafka_only: bool) -> DataFrame:
    """The tasks' input from a batch: the rows of one lane, or a column for each of several."""
    if len(lanes) == 1:
        return lanes[0].alone(batch, kafka_only=kafka_only)
    return batch.selectExpr(*(lane.packed(batch, kafka_only=kafka_only) for lane in lanes))


def ordered(rows: DataFrame, lanes: Sequence[LaneWork], tasks: int) -> DataFrame:
    """Bring rows of one upsert key to one task if records follow an order; otherwise return the rows unchanged.

    Among rows with one upsert key the table keeps the one with the greatest upsert_order_by. So the records of the
    superseded others have to be sent before it or not at all.
    """
    following = [lane for lane in lanes if lane.follows_order]
    if not following:
        return rows
    if len(lanes) > 1:
        rows = _one_lane_each(rows, lanes)
    rows = rows.withColumn(_PLACE, _place(rows, lanes))
    if tasks > 1:
        rows = rows.repartition(tasks, F.col(_PLACE))
    for lane in following:
        if lane.leaves_out:
            rows = _with_superseded(rows, lane)
    orders = [lane.field(ORDER_COLUMN) for lane in following if not lane.leaves_out]
    if orders:
        rows = rows.sortWithinPartitions(*(order.asc_nulls_first() for order in orders))
    return rows.drop(_PLACE)


def _place(rows: DataFrame, lanes: Sequence[LaneWork]) -> Column:
    """A value equal for all rows of one lane with one upsert key, regardless of evaluation order."""
    parts: list[Column] = []
    for lane in lanes:
        names = list(lane.upsert_keys)
        if not lane.follows_order:
            kinds = rows.select(f"{packed_name(lane.lane.index)}.*").schema.fields
            names = [
                kind.name for kind in kinds if not any(mark in kind.dataType.simpleString() for mark in _NOT_HASHED)
            ]
        parts += [lane.field(name) for name in names]
    return F.xxhash64(*parts)


def _with_superseded(rows: DataFrame, lane: LaneWork) -> DataFrame:
    """Mark rows for which another row of their key has a greater order; a row without a record key is never marked."""
    keyless = lane.field(lane.expressions.key_column or record_columns.KEY).isNull()
    keys, order = map(lane.field, lane.upsert_keys), lane.field(ORDER_COLUMN)
    rank = F.rank().over(Window.partitionBy(F.col(_PLACE), *keys, keyless).orderBy(order.desc_nulls_last()))
    marked = rows.withColumn(record_columns.SUPERSEDED, (rank > F.lit(1)) & ~keyless)
    if not lane.packed_with_others:
        return marked
    name = packed_name(lane.lane.index)
    with_field = F.col(name).withField(record_columns.SUPERSEDED, F.col(record_columns.SUPERSEDED))
    return marked.withColumn(name, with_field).drop(record_columns.SUPERSEDED)


def _one_lane_each(rows: DataFrame, lanes: Sequence[LaneWork]) -> DataFrame:
    """The rows of all lanes, one lane's row per row: rows of one lane can then be partitioned by key."""
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


class JsonSettings:
    """Reads the settings of each batch's session in one run."""

    def __init__(self, transactional_id: str, facts: SessionFacts) -> None:
        self._facts = facts
        self._log = sink_log(__name__, transactional_id)
        self._everything: str | None = None
        self._values: dict[str, str] | None = None

    def now(self, spark: SparkSession) -> Mapping[str, str]:
        """The values of `SETTINGS`; each is read again only if any setting of the session has changed."""
        # All settings that were ever set, as one text: reading each of ours would cost a JVM call in every batch.
        everything = self._facts.settings_of(spark)
        if self._values is None or everything is None or everything != self._everything:
            # Without a default of ours: Spark has one, and rejects defaults that the setting does not allow.
            values = {name: str(spark.conf.get(name)) for name in SETTINGS}
            for name, before in (self._values or {}).items():
                if values[name] != before:
                    self._log.warning(
                        "%s was %s and is now %s: from this batch on to_json may write different text; a replay of an "
                        "earlier batch whose text differs is refused",
                        name,
                        before,
                        values[name],
                    )
            self._everything, self._values = everything, values
        return self._values


def check_places(frame: DataFrame, expressions: RecordExpressions, lane: Lane, transactional_id: str) -> None:
    """Refuse to leave records out, or warn, if records of one upsert key may have several keys or partitions."""
    records, rows = lane.records, lane.rows
    if records is not None and records.tombstone_when is not None and expressions.key is None:
        rule = "a tombstone needs a key, and the records have no key"
        raise refused("tombstone_when", records.tombstone_when, rule, "pass key=, derived from the upsert keys")
    if records is None or rows is None or (rows.order_by is None and records.tombstone_when is None):
        return
    made = ""
    if expressions.key is None:
        rule = "the records have no key, by which a later one would supersede them"
    elif others := _made_of_others(frame, expressions, rows.keys):
        made = f"their {' and '.join(others)} {'are' if len(others) > 1 else 'is'} not made of upsert_keys alone"
        rule = f"{made}, so rows with one upsert key may have several"
    else:
        return
    if records.superseded == "leave_out":
        remedy = f"derive the key from the upsert keys, as with key={rows.keys[0]!r}; or send them, with "
        raise refused("upsert_superseded", "leave_out", rule, f"{remedy}upsert_superseded='send_first'")
    if made:
        sink_log(__name__, transactional_id).warning(
            "records of one upsert key may go to several places: %s. The last record of a key may not be the row that "
            "the table keeps",
            made,
        )


def _made_of_others(frame: DataFrame, expressions: RecordExpressions, upsert_keys: Sequence[str]) -> list[str]:
    """The parts of a record's place that depend on more than the upsert keys."""
    made_of = [expressions.columns[key] for key in upsert_keys if key in expressions.columns]
    # A batch with only the upsert keys: expressions that can be evaluated there depend on nothing else.
    known = [
        quoted(name)
        for name in frame.columns
        if quoted(name) in made_of or (name in made_of and same_semantics(frame, name, quoted(name)))
    ]
    keys = frame.selectExpr(*known)
    forms = {form.format(sql) for sql in made_of for form in ("{}", "CAST({} AS STRING)")}
    parts = {"key": expressions.key, "topic": expressions.topic, "partition": expressions.partition}
    return [
        option for option, sql in parts.items() if sql is not None and sql not in forms and not _evaluates(keys, sql)
    ]


def _evaluates(frame: DataFrame, sql: str) -> bool:
    try:
        frame.selectExpr(f"{sql} AS it").schema  # noqa: B018 - asking for it has the expression analyzed
    except AnalysisException:
        return False
    return True


class LaneExpressions:
    """The lanes of a sink over the batches of one run; analyzed again only if schema or settings have changed."""

    def __init__(self, options: SinkOptions, facts: SessionFacts, loaders: Mapping[int, TableLoader]) -> None:
        self._options = options
        self._facts = facts
        self._loaders = loaders
        self._settings = JsonSettings(options.transactional_id, facts)
        self._registries: dict[Format, Registry] = {}
        self._analyzed: tuple[StructType, Mapping[str, str], tuple[LaneWork, ...]] | None = None

    def of(self, batch: DataFrame) -> tuple[LaneWork, ...]:
        schema, settings = batch.schema, self._settings.now(batch.sparkSession)
        if self._analyzed is None or self._analyzed[:2] != (schema, settings):
            several = len(self._options.lanes) > 1
            lanes = tuple(
                LaneWork(lane, self._expressions(batch, lane, settings), self._loaders.get(lane.index), several)
                for lane in self._options.lanes
            )
            self._analyzed = (schema, settings, lanes)
        return self._analyzed[2]

    def _expressions(self, batch: DataFrame, lane: Lane, settings: Mapping[str, str]) -> RecordExpressions:
        with lane.naming():
            rows = rows_of(batch, lane.source)
            analyzed = analyze(rows, choose_expressions(lane, rows.schema), lane.order_by)
            check_places(rows, analyzed, lane, self._options.transactional_id)
            self._facts.check_repeatable(expressions_frame(rows, analyzed, lane.order_by), "an expression of the sink")
            bound = self._bound(analyzed, rows, lane)
            in_tasks = with_json(bound, rows.schema, settings)
            return with_guards(with_key_column(in_tasks, rows), rows)

    def _bound(self, expressions: RecordExpressions, rows: DataFrame, lane: Lane) -> RecordExpressions:
        """Bind parts to schemas. Tasks never query the registry, so it may be down between batches."""
        records = lane.records
        if records is None or not expressions.formats:
            return expressions
        # Only jobs with formats need it.
        from spark_2pc_sink.serialisation.binding import Registry, SchemaRequest, bind  # noqa: PLC0415

        assert self._options.schema_registry is not None, "checked with the options"
        serialisers = {}
        for column, part in record_columns.PARTS.items():
            of_value = part == "value"
            sql = expressions.value if of_value else expressions.key
            if sql is None or part not in expressions.formats:
                continue
            schema_format = expressions.formats[part]
            if schema_format not in self._registries:
                self._registries[schema_format] = Registry(self._options.schema_registry, schema_format)
            request = SchemaRequest(
                part=part,
                format=schema_format,
                topic=records.topic if expressions.topic is None else None,
                strategy=records.value_subject_name_strategy if of_value else "topic",
                expression=sql,
                schema=records.value_schema if of_value else None,
                name=records.value_schema_name if of_value else None,
            )
            serialisers[column] = bind(request, type_of(rows, part, sql), self._registries[schema_format])
        return replace(expressions, serialisers=serialisers)
