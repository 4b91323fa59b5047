"""The expressions of a record: Spark SQL over the batch, a column per value that a task needs. Runs no plan."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import DataType, StructType

from spark_2pc_sink.options import Lane
from spark_2pc_sink.options.outputs import Format, Part
from spark_2pc_sink.options.settings import nearest, refused
from spark_2pc_sink.serialisation.serialiser import Serialiser
from spark_2pc_sink.sink.records.record_columns import ARROW_TEXT_TYPES, BYTES_TYPES, KEY, PARTS, VALUE, key_expressions
from spark_2pc_sink.sink.records.record_json import NESTED, WHOLE_ROW, JsonField, json_fields, made_sql
from spark_2pc_sink.sink.rows.catalog import TargetTable
from spark_2pc_sink.sink.rows.copy_encoder import OWN_PREFIX
from spark_2pc_sink.sink.rows.row_sql import TEXTS, guarded, guarded_sql, json_sql, parts_of
from spark_2pc_sink.sink.rows.type_mapping import INTEGERS
from spark_2pc_sink.sink.spark_sql import literal, quoted

#: Types that `json_sql` converts as Spark's to_json does: all but timestamps, and types of later versions.
_SAME_IN_TABLES: Final = {
    *INTEGERS,
    *TEXTS,
    "BooleanType",
    "FloatType",
    "DoubleType",
    "DecimalType",
    "BinaryType",
    "DateType",
    "ArrayType",
    "MapType",
    "StructType",
}


@dataclass(frozen=True)
class MadeColumn:
    """One column computed by Spark."""

    name: str
    #: The table column from which it is computed.
    source: str
    sql: str
    #: The same if tasks also receive the JSON of ``source``; None if that suffices.
    sql_beside_json: str | None
    #: Tasks refuse values that are not valid text.
    guarded: bool = False

    def select(self, json_columns: Collection[str]) -> str | None:
        """Named SQL of what tasks need in addition to the table's columns, some of them as JSON; None for nothing."""
        sql = self.sql_beside_json if self.source in json_columns else self.sql
        return None if sql is None else f"{sql} AS {self.name}"


def _made_column(field: JsonField, name: str, kind: DataType) -> MadeColumn:
    source, sql = quoted(field.column), made_sql(field)
    if field.kind != NESTED:
        return MadeColumn(name, field.column, sql, sql)
    marked = guarded(sql, [(source, kind)])
    beside_json: str | None = marked
    parts = {type(part).__name__ for part in parts_of(kind)}
    if parts <= _SAME_IN_TABLES and (field.keeps_null or "StructType" not in parts):
        beside_json = None
    elif parts <= _SAME_IN_TABLES:
        # The record leaves null fields out, and is the same where there is none. Spark evaluates an expression shared
        # with the table once (spark.sql.subexpressionElimination.enabled).
        beside_json = f"CASE WHEN contains({json_sql(source, kind)}, 'null') THEN {marked} END"
    return MadeColumn(name, field.column, marked, beside_json, guarded=marked != sql)


#: The default value expression of a record with a format.
WHOLE_STRUCT: Final = "struct(*)"

#: Prefixes of type names whose cast to text Spark renders in a form that cannot be parsed back.
_COMPLEX_KINDS = ("struct<", "array<", "map<", "variant")
_RECORD_TYPES = {
    "topic": frozenset({"string"}),
    # Types with unambiguous text may be written as text.
    "key": BYTES_TYPES | ARROW_TEXT_TYPES | {"date"},
    "value": BYTES_TYPES,
    "headers": frozenset({"array<struct<key:string,value:binary>>"}),
    "partition": frozenset({"tinyint", "smallint", "int", "bigint"}),
    **dict.fromkeys(("tombstone_when", "delete_when", "unchanged_when"), frozenset({"boolean"})),
}
#: With these options set, the batch column of that name is not part of the record, which then has none.
_NOT_TAKEN = {
    "key": "key='CAST(NULL AS STRING)'",
    "value": "value='to_json(struct(*))'",
    "headers": "headers='CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)'",
    "partition": "partition='CAST(NULL AS INT)'",
}


@dataclass(frozen=True)
class RecordExpressions:
    """SQL over a lane's rows for each part of a record (None if absent), and for the table's columns."""

    columns: Mapping[str, str]
    #: None if all rows go to the lane's topic.
    topic: str | None = None
    key: str | None = None
    #: String or binary, or a struct that has a format; None if no records are made.
    value: str | None = None
    headers: str | None = None
    #: Overrides the partitioner where it is not null.
    partition: str | None = None
    #: Batch columns that are parts of the record because of their names and, as the user did not choose the table's
    #: columns, are not written elsewhere.
    taken: tuple[str, ...] = ()
    #: Columns from which tasks build the value themselves; None if Spark builds it.
    json: tuple[JsonField, ...] | None = None
    json_made: tuple[MadeColumn, ...] = ()
    #: The table column that is the key, or whose text is, if tasks take it from there.
    key_column: str | None = None
    #: Which of `KEY`, `VALUE` and `json_made` tasks refuse if they are not valid text (`row_sql`).
    guarded: tuple[str, ...] = ()
    #: True if the record has no value; None if all have one.
    tombstone: str | None = None
    #: True if the row deletes the table row with its key; None if no row deletes.
    delete: str | None = None
    #: Condition by table column, true if the row carries no value for it.
    unchanged: Mapping[str, str] = field(default_factory=dict)
    #: For key and value, if encoded with a schema.
    formats: Mapping[Part, Format] = field(default_factory=dict)
    #: For `KEY` and `VALUE`, if encoded with a schema.
    serialisers: Mapping[str, Serialiser] = field(default_factory=dict)


def choose_expressions(lane: Lane, schema: StructType) -> RecordExpressions:
    """Derive omitted expressions from the columns of the rows, following the conventions of Spark's Kafka sink."""
    names = schema.fieldNames()
    written = () if lane.rows is None else lane.rows.columns or ()
    # They could be mistaken for the sink's own columns; Spark ignores case.
    own = next((name for name in (*names, *written) if name.casefold().startswith(OWN_PREFIX)), None)
    if own is not None:
        rule = f"names that begin with {OWN_PREFIX!r} are reserved for the sink's own columns"
        remedy = f"rename the column: batch.withColumnRenamed({own!r}, 'another_name'), and in the table too"
        raise refused("columns", own, rule, remedy)
    delete = None if lane.rows is None else lane.rows.delete_when
    unchanged = {} if lane.rows is None else dict(lane.rows.unchanged_when or {})
    if lane.records is None:
        return RecordExpressions(_columns(lane, names, frozenset()), delete=delete, unchanged=unchanged)
    options = lane.records
    given = {name: getattr(options, name) for name in ("key", "value", "headers", "partition")}
    taken = {name for name in ("topic", *given) if given.get(name) is None and name in names}
    chosen = {**given, **{name: quoted(name) for name in taken}}
    topic = chosen.get("topic")
    if topic is None and options.topic is None:
        rule = "the sink has no topic, and the batch has no column named topic"
        raise refused("topic", None, rule, "pass topic='…', or add the column")
    return RecordExpressions(
        topic=topic if None in (topic, options.topic) else f"coalesce({topic}, {literal(str(options.topic))})",
        key=chosen["key"],
        value=chosen["value"] or (WHOLE_ROW if options.value_format == "json" else WHOLE_STRUCT),
        headers=chosen["headers"],
        partition=chosen["partition"],
        columns=_columns(lane, names, taken),
        taken=() if lane.rows is None or lane.rows.columns else tuple(name for name in names if name in taken),
        tombstone=options.tombstone_when,
        delete=delete,
        unchanged=unchanged,
        formats=options.formats,
    )


def _columns(lane: Lane, names: Sequence[str], taken: Collection[str]) -> dict[str, str]:
    """The table's columns: the user's choice, or every column that is not part of the record."""
    if lane.rows is None:
        return {}
    columns = lane.rows.columns or {name: quoted(name) for name in names if name not in taken}
    if not columns:
        rule = "every column of the batch is part of the Kafka record, so no column is left for the table"
        raise refused("columns", names, rule, "pass for example columns={'payload': 'value'}")
    # A placeholder for a value need not have a type that the column accepts.
    unchanged = lane.rows.unchanged_when or {}
    return {
        name: f"CASE WHEN {true_sql(unchanged[name])} THEN NULL ELSE {sql} END" if name in unchanged else sql
        for name, sql in columns.items()
    }


def check_taken(expressions: RecordExpressions, target: TargetTable) -> None:
    """Refuse to leave a table column empty because the batch column of that name is part of the record.

    This was not chosen: the name is a convention of Spark's Kafka sink, and a table may well have a column ``value``.
    """
    meant = {column.name for column in target.columns if not column.unwritable}
    doubtful = [name for name in expressions.taken if name in meant]
    if not doubtful:
        return
    record_only = {name: quoted(name) for name in expressions.columns}
    both = record_only | {name: quoted(name) for name in doubtful}
    listed = f"column{'s' * (len(doubtful) > 1)} {' and '.join(map(repr, doubtful))}"
    raise refused(
        "columns",
        None,
        f"the batch's {listed} would go to the Kafka record only, by the conventions of Spark's Kafka sink, and table "
        f"{target.table} has {listed} too",
        f"for record and table, pass columns={both}; for the record only, columns={record_only}; for the table only, "
        f"{_table_only(doubtful, both)}",
    )


def _table_only(doubtful: Sequence[str], both: Mapping[str, str]) -> str:
    options = [_NOT_TAKEN[name] for name in doubtful if name in _NOT_TAKEN]
    ways = [f"{' and '.join(options)} (or expressions of your own)"] if options else []
    if "topic" in doubtful:
        # There is no expression for a row's topic: only another name keeps the column out of the record.
        renamed = {**both, "topic": quoted("its_topic")}
        ways.append(f"rename it in the batch, withColumnRenamed('topic', 'its_topic'), with columns={renamed}")
    return " and ".join(ways)


def analyze(frame: DataFrame, expressions: RecordExpressions, order_by: str | None) -> RecordExpressions:
    """Check every expression against the batch's columns, and its type; numeric and date keys are converted to text."""
    named = _named(expressions, order_by)
    kinds = _types_of(frame, named)
    for option, kind in kinds.items():
        if option not in expressions.formats:
            _check_type(option, named[option], kind)
    if expressions.key is not None and "key" not in expressions.formats and kinds["key"] not in BYTES_TYPES:
        return replace(expressions, key=f"CAST({expressions.key} AS STRING)")
    return expressions


def with_json(expressions: RecordExpressions, schema: StructType, settings: Mapping[str, str]) -> RecordExpressions:
    """Let tasks build the value if it is the JSON of table columns; ``settings``: values of `record_json.SETTINGS`."""
    # Only when quoted: the bare name of a column may be SQL for something else, such as `1` or `null`.
    unchanged = all(expressions.columns.get(name) == quoted(name) for name in schema.fieldNames())
    if expressions.value != WHOLE_ROW or not unchanged:
        return expressions
    fields = json_fields(schema, settings)
    made = (_made_column(each, each.made, schema[each.column].dataType) for each in fields or () if each.made)
    return replace(expressions, json=fields, json_made=tuple(made))


def with_key_column(expressions: RecordExpressions, frame: DataFrame) -> RecordExpressions:
    """Let tasks take the key from a column, or its text, that they receive for the table anyway.

    If no other column is computed, Spark then passes its rows unchanged instead of copying every row.
    """
    for column in frame.schema.fields if "key" not in expressions.formats else ():
        name = quoted(column.name)
        if expressions.columns.get(column.name) != name:
            continue
        forms = key_expressions(column.dataType.simpleString())
        meant = {form.format(spelling): form.format(name) for form in forms for spelling in (column.name, name)}
        # The spelling is not sufficient: `null`, for instance, is a column only between backticks.
        if expressions.key in meant and same_semantics(frame, expressions.key, meant[expressions.key]):
            return replace(expressions, key_column=column.name)
    return expressions


def with_guards(expressions: RecordExpressions, frame: DataFrame) -> RecordExpressions:
    """Mark the record's JSON that Spark builds and in which it would replace invalid text. The last of these steps."""
    texts = {KEY: expressions.key, VALUE: expressions.value if expressions.json is None else None}
    texts = {name: sql for name, sql in texts.items() if PARTS[name] not in expressions.formats}
    marked = {name: guarded_sql(sql, frame) for name, sql in texts.items() if sql is not None}
    made = tuple(each.name for each in expressions.json_made if each.guarded)
    return replace(
        expressions,
        key=marked.get(KEY, expressions.key),
        value=marked.get(VALUE, expressions.value),
        guarded=tuple(name for name, sql in marked.items() if sql != texts[name]) + made,
    )


def same_semantics(frame: DataFrame, sql: str, other: str) -> bool:
    """True if two expressions over a batch are semantically equal, however they are spelled."""
    return frame.selectExpr(f"{sql} AS it").sameSemantics(frame.selectExpr(f"{other} AS it"))


def expressions_frame(frame: DataFrame, expressions: RecordExpressions, order_by: str | None) -> DataFrame:
    """Every expression of the sink over the batch: a plan to inspect, never run."""
    return frame.selectExpr(*(f"{sql} AS {quoted(option)}" for option, sql in _named(expressions, order_by).items()))


def _named(expressions: RecordExpressions, order_by: str | None) -> dict[str, str]:
    named: dict[str, str | None] = {
        **{part: getattr(expressions, part) for part in ("topic", "key", "value", "headers", "partition")},
        # First: column expressions contain it, and errors name the first invalid expression.
        **{f"unchanged_when[{name!r}]": sql for name, sql in expressions.unchanged.items()},
        **{f"columns[{name!r}]": sql for name, sql in expressions.columns.items()},
        "upsert_order_by": order_by,
        "delete_when": expressions.delete,
        "tombstone_when": expressions.tombstone,
    }
    return {option: sql for option, sql in named.items() if sql is not None}


#: Functions that turn one row into several.
_GENERATOR: Final = re.compile(r"\b(explode|posexplode|inline|json_tuple|stack)(_outer)?\s*\(", re.IGNORECASE)
#: A lambda function that is not an argument of a function. Spark's analysis fails on it with an internal error.
_LAMBDA: Final = re.compile(r"\s*(\w+|\([\w\s,]*\))\s*->")


def _types_of(frame: DataFrame, named: Mapping[str, str]) -> dict[str, str]:
    """The type of each expression, by one analysis: one each took half a minute at start with 600 columns."""
    for option, sql in named.items():
        if _GENERATOR.search(sql) or _LAMBDA.match(sql):
            type_of(frame, option, sql)
    # Reserved names, so that an expression cannot resolve another one as a batch column.
    selected = [f"{sql} AS _2pc_{number}" for number, sql in enumerate(named.values())]
    try:
        # Next to the batch's columns an aggregate is refused: an expression has a value for each row.
        fields = frame.selectExpr("*", *selected).schema.fields[len(frame.columns) :]
    except (AnalysisException, ParseException):
        # Analyzed separately, each shows whether it is the invalid one.
        return {option: type_of(frame, option, sql).simpleString() for option, sql in named.items()}
    return {option: field.dataType.simpleString() for option, field in zip(named, fields, strict=True)}


def true_sql(condition: str) -> str:
    """SQL that is true if a condition is, else false: null becomes false."""
    return f"coalesce(({condition}), false)"


def type_of(frame: DataFrame, option: str, sql: str) -> DataType:
    """The type of an expression, refused under the name of its ``option`` if it is not one over the columns."""
    if _LAMBDA.match(sql):
        rule = "it is a lambda function, and must have a value for each row"
        raise refused(option, sql, rule, "pass it to a function: transform(names, x -> upper(x))")
    kind: DataType | None = None
    try:
        # First without an alias: after an incomplete expression Spark would parse AS as its continuation.
        kind = frame.select("*", F.expr(sql).alias("it")).schema[-1].dataType
        frame.selectExpr(f"{sql} AS it").schema  # noqa: B018 - asking for it has the expression analyzed
        frame.select(F.array(F.expr(sql))).schema  # noqa: B018 - as above; a generator must not be nested
    except (AnalysisException, ParseException) as error:
        said, _, _ = str(error).strip().partition("\n")  # a ParseException begins with an empty line
        rule = f"it is not an expression over the batch's columns {frame.columns}: {said}"
        if kind is not None:
            rule = "it must not end with a name or an operator: the sink names its columns itself"
        complete = "write one complete SQL expression, without AS or a name at its end"
        remedy = nearest(sql, frame.columns) if kind is None and "UNRESOLVED_COLUMN" in said else complete
        if "UNSUPPORTED_GENERATOR" in said:
            rule, remedy = "it turns one row into several", "explode before the sink, or with rows= of Records and Rows"
        if "AMBIGUOUS_REFERENCE" in said:
            remedy = "rename one of the columns before the sink; or, if their names differ in case only, set "
            remedy += "spark.sql.caseSensitive=true before the query starts"
        if "GROUP_BY" in said:
            rule, remedy = "it aggregates rows, and must have a value for each row", "aggregate before the sink"
        raise refused(option, sql, rule, remedy) from None
    return kind


def _check_type(option: str, sql: str, kind: str) -> None:
    """Refuse a type that cannot become the bytes of a record."""
    part = option.partition("[")[0]
    allowed = _RECORD_TYPES.get(part)
    is_text = kind.startswith(("varchar(", "char("))
    if allowed is None or kind in allowed or (is_text and "string" in allowed):
        return
    rule = f"its type is {kind}, and the type of a {part} must be {' or '.join(sorted(allowed))}"
    if part == "topic":
        remedy = "convert the batch's column topic to text; if it does not name topics, rename it before the sink"
    else:
        remedy = f"convert it, with {part}={_converted(part, kind).format(sql)!r}"
        if part in _NOT_TAKEN and sql == quoted(part):
            # Possibly unintended: the column is part of the record only because of its name.
            remedy += f"; if the batch's column {part} is not meant for the record, pass {_NOT_TAKEN[part]}"
    raise refused(option, sql, rule, remedy)


def _converted(option: str, kind: str) -> str:
    """SQL with {} for an expression of type ``kind``, converted to a type that the option accepts."""
    if option == "partition":
        return "CAST({} AS INT)"
    if option in ("delete_when", "tombstone_when", "unchanged_when"):
        return "{} = 'd'" if kind == "string" else "CAST({} AS BOOLEAN)"
    as_text = "to_json({})" if kind.startswith(_COMPLEX_KINDS) else "CAST({} AS STRING)"
    if option != "headers":
        return as_text
    if kind in {"map<string,string>", "map<string,binary>"}:
        return "transform(map_entries({}), h -> named_struct('key', h.key, 'value', CAST(h.value AS BINARY)))"
    if kind == "array<struct<key:string,value:string>>":
        return "transform({}, h -> named_struct('key', h.key, 'value', CAST(h.value AS BINARY)))"
    return f"array(named_struct('key', 'name', 'value', CAST({as_text} AS BINARY)))"
