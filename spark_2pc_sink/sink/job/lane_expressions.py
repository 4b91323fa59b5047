"""Dependencies of a lane's expressions other than its rows: session settings, the registry, upsert keys.

The last record of a key is the row that the table keeps only if all rows of one upsert key have one record key, one
topic and one partition: a record is superseded by a later one with its key, in its partition. This holds if these are
computed from the upsert keys alone (`check_places`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.job.lane_columns import LaneWork, rows_of
from spark_2pc_sink.sink.records.record_columns import PARTS
from spark_2pc_sink.sink.records.record_expressions import (
    analyze,
    choose_expressions,
    expressions_frame,
    same_semantics,
    type_of,
    with_guards,
    with_json,
    with_key_column,
)
from spark_2pc_sink.sink.records.record_json import SETTINGS
from spark_2pc_sink.sink.spark_sql import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_2pc_sink.options import Lane, Rows, SinkOptions
    from spark_2pc_sink.options.outputs import Format
    from spark_2pc_sink.serialisation.binding import Registry
    from spark_2pc_sink.sink.job.session_facts import SessionFacts
    from spark_2pc_sink.sink.job.table_loader import TableLoader
    from spark_2pc_sink.sink.records.record_expressions import RecordExpressions


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
    leave_out = records.superseded == "leave_out"
    if expressions.key is None:
        if leave_out:
            raise _refused(rows, "the records have no key, by which a later one would supersede them")
        return
    others = _made_of_others(frame, expressions, rows.keys)
    if not others:
        return
    made = f"their {' and '.join(others)} {'are' if len(others) > 1 else 'is'} not made of upsert_keys alone"
    if leave_out:
        raise _refused(rows, f"{made}, so rows with one upsert key may have several")
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


def _refused(rows: Rows, rule: str) -> ConfigurationError:
    remedy = f"derive the key from the upsert keys, as with key={rows.keys[0]!r}; or send them, with "
    return refused("upsert_superseded", "leave_out", rule, f"{remedy}upsert_superseded='send_first'")


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
        for column, part in PARTS.items():
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
