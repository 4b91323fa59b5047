"""Columns: remedies that are carried out, types that Spark does not have, odd names; and keys."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job.lane_columns import check_places, record_sql, shared_columns
from spark_2pc_sink.sink.records.record_columns import key_values
from spark_2pc_sink.sink.records.record_expressions import (
    RecordExpressions,
    analyze,
    choose_expressions,
    with_key_column,
)
from spark_2pc_sink.sink.spark_sql import quoted
from tests.harness.column_names import column_kinds, row_of
from tests.harness.remedies import columns_in, sql_in
from tests.harness.sql import run_sql
from tests.harness.streams import FileStream, session_settings
from tests.integration.sink.targets import Target

#: A refusal may lead to another one, such as that of a column that was added and is not a key yet.
STEPS_MAX: Final = 4
#: One in so many cases, with every kind of column, is enough for a change; the others are thorough.
OF: Final = 9
#: The table "the Orders" with the column "the X", in each way in which a table has one. {type} is its type.
KINDS: Final = {
    "plain": 'CREATE TABLE "the Orders" (id bigint, "the X" {type})',
    "not null": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} NOT NULL)',
    "default": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} DEFAULT {value})',
    "unique": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} UNIQUE)',
    "domain": 'CREATE DOMAIN "the D" AS {type} DEFAULT {value}; CREATE TABLE "the Orders" (id bigint, "the X" "the D")',
    "partitioned": 'CREATE TABLE "the Orders" (id bigint, "the X" {type}) PARTITION BY RANGE (id);'
    'CREATE TABLE part PARTITION OF "the Orders" DEFAULT',
    "partition key": 'CREATE TABLE "the Orders" (id bigint, "the X" {type}) PARTITION BY LIST ("the X");'
    'CREATE TABLE part PARTITION OF "the Orders" DEFAULT',
    "partition expression": 'CREATE TABLE "the Orders" (id bigint, "the X" {type}) '
    'PARTITION BY RANGE ((id + 1)); CREATE TABLE part PARTITION OF "the Orders" DEFAULT',
    "generated from": 'CREATE TABLE "the Orders" (id bigint, "the X" {type}, '
    'no boolean GENERATED ALWAYS AS ("the X" IS NULL) STORED)',
    "viewed": 'CREATE TABLE "the Orders" (id bigint, "the X" {type});CREATE VIEW v AS SELECT "the X" FROM "the Orders"',
    "checked": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} CHECK ("the X" > {value} OR id IS NOT NULL))',
    "indexed expression": 'CREATE TABLE "the Orders" (id bigint, "the X" {type});'
    'CREATE INDEX ON "the Orders" (coalesce("the X", {value}))',
    "referring": "CREATE TABLE other (k {type} PRIMARY KEY); INSERT INTO other VALUES ({value});"
    'CREATE TABLE "the Orders" (id bigint, "the X" {type} REFERENCES other)',
    "triggering": 'CREATE TABLE "the Orders" (id bigint, "the X" {type});'
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;"
    'CREATE TRIGGER t BEFORE UPDATE ON "the Orders" FOR EACH ROW WHEN (NEW."the X" IS NULL) EXECUTE FUNCTION f()',
}
IDENTITIES: Final = {
    "identity": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} GENERATED ALWAYS AS IDENTITY)',
    "serial": 'CREATE TABLE "the Orders" (id bigint, "the X" serial)',
    "identity of a partition": 'CREATE TABLE whole (id bigint, "the X" {type} GENERATED ALWAYS AS IDENTITY) '
    'PARTITION BY RANGE (id); CREATE TABLE "the Orders" PARTITION OF whole DEFAULT',
    "generated": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} GENERATED ALWAYS AS (id::int) STORED)',
}
COLLATED: Final = {
    "collated": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} COLLATE "C")',
    "collated index": 'CREATE TABLE "the Orders" (id bigint, "the X" {type});'
    'CREATE UNIQUE INDEX ON "the Orders" ("the X" COLLATE "POSIX")',
    "collated partition key": 'CREATE TABLE "the Orders" (id bigint, "the X" {type} COLLATE "C") '
    'PARTITION BY LIST ("the X"); CREATE TABLE part PARTITION OF "the Orders" DEFAULT',
}
UPSERT_BY_ID: Final = {"mode": "upsert", "upsert_keys": ["id"]}
#: What a batch has for "the X", its type in the table, a value of this type, and options.
VALUES: Final[dict[str, tuple[str, str, str, dict[str, Any]]]] = {
    "double": ("7.0D", "integer", "7", {}),
    "interval": ("interval '0 01:02:00' day to second", "interval hour to minute", "'1:02'", {}),
    "no column": ("7", "integer", "7", {"columns": {"id": "id", "the other X": "`the X`"}}),
    "order": (
        "'a'", "char(5)", "'a'", {**UPSERT_BY_ID, "upsert_order_by": "`the X`", "upsert_late_rows": "keep_newer"}
    ),
    "map": ("named_struct('the M', array(map(date'2024-01-01', 1)))", "jsonb", "'{}'", {}),
    "key": ("7", "integer", "7", {"mode": "upsert", "upsert_keys": ["the X"]}),
    "struct for text": ("named_struct('a', 1)", "varchar(60)", "'{\"a\":1}'", {}),
    "key of json": ("'[1]'", "json", "'[2]'", {"mode": "upsert", "upsert_keys": ["the X"]}),
    "updated": ("7", "integer", "7", UPSERT_BY_ID),
}  # fmt: skip
#: PostgreSQL does not make these tables: their types cannot be compared, or "the X" is no whole number.
_COMPARED: Final = ("unique", "partition key", "checked", "indexed expression", "referring")
#: What ends with a sentence, which names no statement.
_CHOOSE: Final = "choose other upsert_keys"
ENDS: Final = {
    "key": {"partition expression": "pass mode='append'", "generated": "and of upsert_keys"},
    "key of json": dict.fromkeys(("generated from", "viewed", "triggering"), _CHOOSE),
}
ENDS["key of json"] |= ENDS["key"]


def cases() -> list[Any]:
    """Each value with each kind of column that can have it."""
    found = []
    every = [*KINDS, *IDENTITIES, *COLLATED]
    for number, (value, (_, kind, _, options)) in enumerate(VALUES.items()):
        kinds = [*KINDS, *(IDENTITIES if kind == "integer" else ())]
        kinds += COLLATED if kind.partition("(")[0] in ("text", "varchar", "char") else ()
        if kind == "json":
            kinds = [name for name in kinds if name not in _COMPARED]
        if kind == "jsonb":
            kinds.remove("referring")
        if options.get("upsert_keys") == ["id"]:
            kinds = [name for name in kinds if "partition key" not in name and name != "partition expression"]
        for name in kinds:
            marks = pytest.mark.thorough if (number + every.index(name)) % OF else ()
            found.append(pytest.param(value, name, id=f"{value}-{name}", marks=marks))
    return found


_KEYS: Final = re.compile(r"upsert_keys=(\[[^\]]*\])")


def carry_out(refused: ConfigurationError, options: dict[str, Any], target: Target) -> None:
    statements, columns, keys = sql_in(refused.remedy), columns_in(refused.remedy), _KEYS.search(refused.remedy)
    leave_out = "leave it out" in refused.remedy or (
        refused.option == "columns" and columns and refused.value not in columns
    )
    assert statements or columns or keys or leave_out, refused
    target.execute(*statements)
    if leave_out:
        del options["columns"][refused.value]
    options["columns"] |= columns
    if keys is not None:
        options["upsert_keys"] = ast.literal_eval(keys[1])


def refusal(target: Target, batch: DataFrame, **options: Any) -> ConfigurationError | None:
    try:
        target.write(batch, **options, value="'v'")
    except ConfigurationError as error:
        return error
    return None


@pytest.mark.parametrize(("value", "kind"), cases())
def test_what_an_error_about_a_column_prints_mends_it(
    value: str, kind: str, target: Target, spark: SparkSession
) -> None:
    """C8."""
    expression, sql_type, of_type, given = VALUES[value]
    target.execute({**KINDS, **IDENTITIES, **COLLATED}[kind].format(type=sql_type, value=of_type))
    if given.get("upsert_keys") == ["id"]:
        target.execute('CREATE UNIQUE INDEX ON "the Orders" (id)')
    batch = spark.sql(f"SELECT 1L AS id, {expression} AS `the X`")
    columns = {"id": "id", "the X": "`the X`"}
    options = {"table": '"the Orders"', "create_table": False, **copy.deepcopy({"columns": columns, **given})}
    end = ENDS.get(value, {}).get(kind)
    refused = refusal(target, batch, **options)
    for _ in range(STEPS_MAX):
        if refused is None or (end is not None and end in refused.remedy):
            break
        carry_out(refused, options, target)
        refused = refusal(target, batch, **options)
    if end is not None:
        assert refused is not None, "a batch is written after all"
        return
    assert refused is None
    column = [name for name in options["columns"] if name != "id"][-1:] or ["id"]
    assert target.rows(f'count("{column[0]}")', '"the Orders"') == [(1,)]


TYPES = """
CREATE SCHEMA "the Types";
CREATE TYPE "the Types"."Mood" AS ENUM ('sad', 'so "so"', 'ok');
CREATE TYPE "the Types"."Pair" AS (n int, "Odd name" "the Types"."Mood");
CREATE DOMAIN "the Types".address AS inet CHECK (family(VALUE) = 4);
CREATE TABLE target (id bigint, mood "the Types"."Mood", moods "the Types"."Mood"[],
    address "the Types".address, addresses inet[], pair "the Types"."Pair", span int8range, bits bit(3), cost money,
    at timetz, doc tsvector, "Of type" regtype, gap interval, months interval, term interval, terms interval[],
    PRIMARY KEY (mood, address))
"""
TYPED = {
    "id": "id",
    "mood": "name",
    "moods": "array(name, NULL)",
    "address": "concat('10.0.0.', id)",
    "addresses": "array('::1', concat('10.0.0.', id))",
    "pair": """concat('(', id, ',"', replace(name, '"', '""'), '")')""",
    "span": "concat('[', id, ',)')",
    "bits": "'011'",
    "cost": "concat('$', id, '.50')",
    "at": "'12:00:00.5+02'",
    "doc": "'''a'' ''b'':1'",
    "`Of type`": "'bigint'",
    "gap": "make_dt_interval(-1, id, 3, 4.500001)",
    "months": "make_ym_interval(-1, id)",
    "term": "make_interval(1, 2, 0, id, 4, 5, -6.000007)",
    "terms": "array(make_interval(0, 0, 0, id), NULL)",
}


def test_types_that_spark_does_not_have(spark: SparkSession, stream: FileStream, target: Target) -> None:
    """Text and intervals go into a table that is there; a text that a type refuses is a dead letter."""
    target.execute(TYPES)
    good = range(3, 6)
    stream.add([(1, "ok", 0), (2, 'so "so"', 0), (300, "ok", 0), (99, "happy", 0), *((n, "ok", 0) for n in good)])
    frame = stream.frame().select(*(F.expr(made).alias(name.strip("`")) for name, made in TYPED.items()))
    keys: dict[str, Any] = {"upsert_keys": ["mood", "address"], "mode": "upsert"}
    stream.run(target.sink(key="id", bad_rows="dead_letter", create_table=False, **keys), frame)
    found = target.rows(
        "id, mood, addresses::text, pair::text, term::text, terms::text, gap::text, months::text",
        "target WHERE id < 3 ORDER BY 1",
    )
    assert found == [
        (1, "ok", "{::1,10.0.0.1}", "(1,ok)",
         "1 year 2 mons 1 day 04:04:53.999993", '{"1 day",NULL}', "-22:56:55.499999", "-11 mons"),
        (2, 'so "so"', "{::1,10.0.0.2}", '(2,"so ""so""")',
         "1 year 2 mons 2 days 04:04:53.999993", '{"2 days",NULL}', "-21:56:55.499999", "-10 mons"),
    ]  # fmt: skip
    assert sorted(value["id"] for value in target.values()) == [1, 2, *good]
    assert target.letters("row->>'id', sqlstate") == [("300", "22P02"), ("99", "22P02")]
    assert [part.what for part in target.assert_same().not_checked] == ["column terms"]


#: What means something to psycopg2, to SQLAlchemy, to LIKE, to format strings, to Spark, or to SQL.
ODD = "%s %(n)s 5%% :n {0} \\ \" ' ` . é"
KEY, NAME, AMOUNT = (f"{number} {ODD}" for number in range(3))
SCHEMA = StructType([StructField(KEY, LongType()), StructField(NAME, StringType()), StructField(AMOUNT, IntegerType())])


def sql(*names: str) -> str:
    """A name as the options and PostgreSQL take it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def test_every_name_is_odd(spark: SparkSession, tmp_path: Path, target: Target) -> None:
    """C16: what is read as something else than a name would be another table's."""
    options: dict[str, Any] = {
        "key": "`" + KEY.replace("`", "``") + "`",
        "table": sql(f"target {ODD}", f"t {ODD}"),
        "create_table": True,
        "state_schema": sql(f"state {ODD}"),
        "state_table": sql(f"s {ODD}"),
        "bad_rows": "dead_letter",
        "mode": "upsert",
        "upsert_keys": [KEY],
    }
    run_sql(target.database, f"CREATE SCHEMA {sql(f'target {ODD}')}")
    stream = FileStream(spark, tmp_path, SCHEMA)
    stream.add([(1, "one", 1), (2, "two", 2)])
    stream.run(target.sink(**options))
    run_sql(target.database, f"ALTER TABLE {options['table']} ADD CHECK ({sql(AMOUNT)} < 100)")
    stream.add([(3, "three", 3), (4, "bad", 400)], partitions=2)
    stream.run(target.sink(**options))
    found = run_sql(target.database, f"SELECT * FROM {options['table']} ORDER BY 1")
    assert found == [(1, "one", 1), (2, "two", 2), (3, "three", 3)]
    letters = run_sql(target.database, f"SELECT row FROM {sql(f'state {ODD}', f's {ODD}_dead_letters')}")
    assert [letter[KEY] for (letter,) in letters] == [4]
    assert sorted(target.values(), key=lambda one: one[KEY]) == [
        {KEY: n, NAME: text, AMOUNT: n} for n, text in enumerate(["one", "two", "three"], 1)
    ]


def test_columns_that_differ_in_case_only(target: Target, spark: SparkSession) -> None:
    """C16: Spark does not know which one is meant, and the refusal's remedy works."""
    batch = spark.sql("SELECT 1L AS id, 2L AS ID")
    with pytest.raises(ConfigurationError, match="AMBIGUOUS_REFERENCE") as refused:
        target.write(batch)
    assert "rename one of the columns" in refused.value.remedy
    [(name, value)] = re.findall(r"set (\S+)=(\w+)", refused.value.remedy)
    with session_settings(spark, {name: value}):
        target.write(batch)
    assert target.rows('id, "ID"') == [(1, 2)]
    assert target.values() == [{"id": 1, "ID": 2}]


COLUMN_TYPES = {
    "text": StringType(),
    "jsonb": StructType([StructField("at", StringType()), StructField("n", LongType())]),
    "bigint": LongType(),
    "timestamptz": TimestampType(),
    "double precision": DoubleType(),
}
#: Spark does not tell upper from lower case.
NAMED = dict(reversed({name.casefold(): (name, kind) for name, kind in column_kinds("jsonb").items()}.values()))
EVERY_COLUMN = StructType([StructField("id", LongType())] + [StructField(n, COLUMN_TYPES[k]) for n, k in NAMED.items()])
MODES: dict[str, dict[str, Any]] = {
    "newest": {"upsert_order_by": "`k`", "delete_when": "t.n = 3", "tombstones": True},
    "lacking": {"upsert_order_by": "k", "unchanged_when": {"j": "t.n = 3", "there": "t.n = 3"}},
}


@pytest.mark.parametrize("mode", ["newest", pytest.param("lacking", marks=pytest.mark.thorough)])
def test_columns_with_the_names_of_our_own(mode: str, spark: SparkSession, tmp_path: Path, target: Target) -> None:
    """In a table that has the name of PostgreSQL's other row, of whose rows one is bad."""
    options = {**UPSERT_BY_ID, "table": "excluded", "key": "id", "bad_rows": "dead_letter", **MODES[mode]}
    columns = ", ".join(f"{sql(name)} {kind}" for name, kind in NAMED.items())
    run_sql(target.database, f"CREATE TABLE excluded (id bigint PRIMARY KEY CHECK (id <> 4), {columns})")

    def row(number: int, value: int) -> tuple[Any, ...]:
        told = row_of(NAMED, number, value=value)
        told |= {name: tuple(told[name].values()) for name, kind in NAMED.items() if kind == "jsonb"}
        times = {name: datetime.fromisoformat(told[name]) for name, kind in NAMED.items() if kind == "timestamptz"}
        return tuple((told | times).values())

    stream = FileStream(spark, tmp_path, EVERY_COLUMN)
    stream.add([row(1, 1), row(2, 2), row(3, 2), row(4, 4)])
    stream.add([row(2, 1), row(3, 3), row(5, 5)])
    stream.run(target.sink(**options))
    kept = {"newest": [1, 1, 5], "lacking": [1, 1, 3, 5]}
    assert [k for (k,) in run_sql(target.database, "SELECT excluded.k FROM excluded ORDER BY id")] == kept[mode]
    target.assert_same()


#: Each type that can be taken, with its extremes; a null is added.
KEY_VALUES = {
    "boolean": ("true", "false"),
    "tinyint": ("-128Y", "0Y", "127Y"),
    "smallint": ("-32768S", "32767S"),
    "int": ("-2147483648", "-1", "2147483647"),
    "bigint": ("-9223372036854775807L - 1", "0L", "9223372036854775807L"),
    "string": ("''", "'é\\u0000\"'", "'7'"),
    "binary": ("X''", "X'ff00'"),
}


def taken_from(frame: DataFrame, key: str, columns: dict[str, str] | None = None) -> RecordExpressions:
    """The sink's expressions over the batch, of which all columns go to the table unless told otherwise."""
    everything = {name: quoted(name) for name in frame.columns} if columns is None else columns
    given = RecordExpressions(topic=None, key=key, value="'v'", headers=None, partition=None, columns=everything)
    return with_key_column(analyze(frame, given, None), frame)


@pytest.mark.parametrize(("kind", "large_types"), [*((kind, "false") for kind in KEY_VALUES), ("string", "true")])
def test_the_same_bytes_as_sparks(spark: SparkSession, kind: str, large_types: str) -> None:
    rows = ", ".join(f"(CAST({value} AS {kind}))" for value in (*KEY_VALUES[kind], "null"))
    frame = spark.sql(f"SELECT * FROM VALUES {rows} AS t(`the key`)")
    expressions = taken_from(frame, "`the key`")
    assert expressions.key_column == "the key"
    assert shared_columns(expressions) == ["`the key`"]
    assert record_sql(expressions) == ["'v' AS _2pc_value"]

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pairs = [key_values(batch.column("the key")).cast(pa.binary()), batch.column("sparks").cast(pa.binary())]
            yield pa.record_batch(pairs, names=["ours", "sparks"])

    with session_settings(spark, {"spark.sql.execution.arrow.useLargeVarTypes": large_types}):
        both = frame.selectExpr("*", f"{expressions.key} AS sparks").mapInArrow(compare, "ours binary, sparks binary")
        found = both.collect()
    assert len(found) == len(KEY_VALUES[kind]) + 1
    assert [row.ours for row in found] == [row.sparks for row in found]


@pytest.mark.parametrize(
    ("select", "key", "columns"),
    [
        ("id", "id + 1", None),
        ("id", "id", {"id": "id + 1"}),
        ("id", "id", {"other": "`id`"}),
        ("id AS `true`", "true", None),  # the literal, not the column
        ("CAST('2020-02-02' AS DATE) AS day", "day", None),
        ("X'ff' AS bytes", "CAST(bytes AS STRING)", None),
        ("id", "upper('x')", None),
    ],
)
def test_other_keys_stay_with_spark(spark: SparkSession, select: str, key: str, columns: dict[str, str] | None) -> None:
    expressions = taken_from(spark.range(1).selectExpr(select), key, columns)
    assert expressions.key_column is None
    assert [sql for sql in record_sql(expressions) if sql.endswith("_2pc_key")]
    assert shared_columns(expressions) == []


OPTIONS: dict[str, Any] = {
    "transactional_id": "orders",
    "kafka": {"bootstrap.servers": "nowhere:9092"},
    "database": "postgresql://nowhere/shop",
    "table": "orders",
    "topic": "orders",
    "mode": "upsert",
    "upsert_keys": ["id", "null"],
    "upsert_order_by": "at",
    "upsert_superseded": "leave_out",
}
COLUMNS = {"id": "id", "null": "`null`", "at": "at"}


def check(spark: SparkSession, **given: Any) -> None:
    frame = spark.createDataFrame([], "id bigint, `null` string, at timestamp, other int")
    options = SinkOptions.parse(**OPTIONS, **given)
    [lane] = options.lanes
    expressions = analyze(frame, choose_expressions(lane, frame.schema), lane.order_by)
    check_places(frame, expressions, lane, options.transactional_id)


@pytest.mark.parametrize(
    "given",
    [
        {"key": "id", "columns": COLUMNS},
        {"key": "concat(`null`, '-', id)", "partition": "pmod(hash(id), 4)"},
        # Made of another column, as the upsert key is.
        {"key": "upper(other)", "columns": {**COLUMNS, "id": "upper(other)"}},
        {"key": "'one for all'"},
    ],
    ids=str,
)
def test_made_of_the_upsert_keys(spark: SparkSession, given: dict[str, Any]) -> None:
    check(spark, **given)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"key": "other"}, "key is"),
        ({"key": "CAST(NULL AS STRING)", "partition": "other"}, "partition is"),
        ({"key": "other", "partition": "other"}, "key and partition are"),
        # The upsert key is less than the column that the key is made of.
        ({"key": "other", "columns": {**COLUMNS, "id": "abs(other)"}}, "key is"),
        # Null, not the column of that name.
        ({"key": "`null`", "columns": {**COLUMNS, "null": "null"}}, "key is"),
    ],
    ids=str,
)
def test_made_of_other_columns(spark: SparkSession, given: dict[str, Any], parts: str) -> None:
    with pytest.raises(ConfigurationError, match=f"their {parts} not made of upsert_keys alone"):
        check(spark, **given)


def test_without_a_key_no_later_record_supersedes_one(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"upsert_superseded.*the records have no key"):
        check(spark, key=None)
