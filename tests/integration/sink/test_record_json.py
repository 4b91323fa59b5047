"""Values of records: the bytes of Spark's to_json, whoever writes them and whatever the rows and settings."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.job.lane_columns import JsonSettings, record_sql, shared_columns
from spark_2pc_sink.sink.job.session_facts import session_facts
from spark_2pc_sink.sink.records.record_expressions import RecordExpressions, with_guards, with_json
from spark_2pc_sink.sink.records.record_json import (
    IGNORE_NULLS,
    OFFSET_SECONDS,
    TIME_PARSER,
    TIME_ZONE,
    WHOLE_ROW,
    JsonField,
    json_values,
)
from spark_2pc_sink.sink.rows.row_sql import json_sql
from spark_2pc_sink.sink.rows.type_mapping import COMPLEX_TYPES
from spark_2pc_sink.sink.spark_sql import quoted
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.streams import FileStream, session_settings
from tests.integration.sink.targets import Row, Target

LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
PAGE = (Path(__file__).parents[3] / "docs" / "using.md").read_text()

ROWS = 4_000
NULLS = 0.2
COLUMNS = (
    "n1", "n8", '`odd " näme`', "cents", "micro", "whole", "tiny", "timestamp_micros(at) AS at",
    "local", "date_from_unix_date(day) AS day", "yes",
    "CAST(short AS VARCHAR(4)) AS short", "f4", "f8", "bytes", "list", "struct", "map",
    "map(date_from_unix_date(coalesce(day, 0)), struct(timestamp_micros(at) AS at, tiny, f8, n8 AS `a.b`)) AS dated",
    "array(local) AS locals",
)  # fmt: skip
CHARACTERS = 'abc"\\/\n\t\r\b\f\x00\x01\x1f\x7f\x80é\u2028\u07ff\U0001f600 '
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
MICROSECONDS = (0, -1, -999, -1_000, -1_001, _YEAR_1, _YEAR_1 - 1, _YEAR_10000, _YEAR_10000 - 1, -(2**63), 2**63 - 1)
DAYS = (0, -1, -719_162, -719_163, -719_528, -719_529, 2_932_896, 2_932_897, -(2**31), 2**31 - 1)
#: Where Java's text changes its form, and numbers of which Java before version 19 writes more digits than it must.
FLOATS = (
    0.0,
    -0.0,
    1.0,
    1e-3,
    0.000999,
    1e7,
    9_999_999.999999998,
    1.0e-5,
    123456789.0,
    2.0**63,
    2.0**53,
    1e23,
    2e23,
    5e-324,
    4.9e-322,
    2.2250738585072014e-308,
    1.7976931348623157e308,
    2.0e-3,
    1.1e-44,
    3.4028235e38,
    1.17549435e-38,
    float("nan"),
    float("inf"),
    float("-inf"),
    0.1,
    1 / 3,
    2.2e-322,
    8.41e21,
    5.0e-324,
    9.5e-3,
)


class Cells(random.Random):
    """Cells of rows, by chance; ``far``: also times that few formatters take."""

    far = False

    def or_null(self, cell: Any) -> Any:
        return None if self.random() < NULLS else cell

    def decimal(self, digits: int, scale: int) -> Decimal:
        most = 10 ** self.randint(1, digits) - 1
        number = self.choice([self.randint(-most, most), self.randint(-10, 10)])
        return Decimal(number).scaleb(-scale, Context(prec=60))

    def double(self) -> float:
        drawn: float = struct.unpack("<d", self.randbytes(8))[0]
        return self.choice([drawn, self.choice(FLOATS), self.randint(-(10**6), 10**6) / 100, self.random() * 1e10])

    def single(self) -> float:
        number = self.double()
        return number if abs(number) < 3e38 else float("inf")

    def text(self) -> str:
        return "".join(self.choices(CHARACTERS, k=self.randint(0, 12)))

    def moment(self) -> int:
        near = [self.randint(0, 2 * 10**15), self.randint(_YEAR_1, _YEAR_10000 - 1)]
        return self.choice([*near, *MICROSECONDS] if self.far else near)

    def day(self) -> int:
        near = [self.randint(0, 30_000), self.randint(-719_162, 2_932_896)]
        return self.choice([*near, *DAYS] if self.far else near)

    def some(self, most: int, make: Callable[[int], Any]) -> list[Any]:
        return [make(number) for number in range(self.randint(0, most))]


_INNER = pa.struct([("c", pa.float64()), ("d", pa.string())])
#: The columns of the file, and what makes their cells.
CELLS: dict[str, tuple[pa.DataType, Callable[[Cells], Any]]] = {
    "n1": (pa.int8(), lambda c: c.randint(-128, 127)),
    "n8": (pa.int64(), lambda c: c.choice([c.randint(-(2**63), 2**63 - 1), c.randint(-5, 5)])),
    'odd " näme': (pa.string(), Cells.text),
    "cents": (pa.decimal128(12, 2), lambda c: c.decimal(12, 2)),
    "micro": (pa.decimal128(38, 6), lambda c: c.decimal(38, 6)),
    "whole": (pa.decimal128(9, 0), lambda c: c.decimal(9, 0)),
    "tiny": (pa.decimal128(38, 20), lambda c: c.decimal(38, 20)),
    "at": (pa.int64(), Cells.moment),
    "local": (pa.timestamp("us"), Cells.moment),
    "day": (pa.int32(), Cells.day),
    "yes": (pa.bool_(), lambda c: c.random() < 0.5),
    "short": (pa.string(), lambda c: "".join(c.choices("ab", k=c.randint(0, 4)))),
    "f4": (pa.float32(), Cells.single),
    "f8": (pa.float64(), Cells.double),
    "bytes": (pa.binary(), lambda c: c.randbytes(c.randint(0, 9))),
    "list": (pa.list_(pa.string()), lambda c: c.some(3, lambda _: c.or_null(c.text()))),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", _INNER)]),
        lambda c: {
            "a": c.or_null(c.randint(-9, 9)),
            "b": c.or_null({"c": c.or_null(c.double()), "d": c.or_null(c.text())}),
        },
    ),
    "map": (
        pa.map_(pa.string(), pa.list_(pa.float32())),
        lambda c: c.some(2, lambda n: (f"{n}{c.text()}", c.or_null([c.single(), None]))),
    ),
}


def settings(spark: SparkSession) -> Mapping[str, str]:
    """As the sink asks for them."""
    return JsonSettings("t", session_facts(spark, "t")).now(spark)


def _expressions(frame: DataFrame) -> RecordExpressions:
    columns = {name: quoted(name) for name in frame.columns}
    given = RecordExpressions(topic=None, key=None, value=WHOLE_ROW, headers=None, partition=None, columns=columns)
    return with_guards(with_json(given, frame.schema, settings(frame.sparkSession)), frame)


def _differing(frame: DataFrame, fields: tuple[JsonField, ...] | None = None, *, in_table: bool = False) -> list[Any]:
    """Rows for which the two make different bytes.

    Args:
        frame: the batch.
        fields: of which tasks make theirs; by default as the sink has them.
        in_table: tasks get the JSON of what is nested for the table, too.
    """
    expressions = _expressions(frame)
    made = fields or expressions.json
    assert made is not None
    json = {field.name: field.dataType for field in frame.schema if type(field.dataType).__name__ in COMPLEX_TYPES}
    for_table = [f"{json_sql(quoted(name), kind)} AS {quoted(name)}" for name, kind in json.items()] if in_table else []
    record = record_sql(expressions, json if in_table else ())
    selected = frame.selectExpr(
        f"CAST({WHOLE_ROW} AS BINARY) AS spark", *record, *shared_columns(expressions), *for_table
    )
    names = selected.columns

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbered in batches:
            batch = numbered.rename_columns(names)
            ours, theirs = json_values(batch, made).to_pylist(), batch.column("spark").to_pylist()
            found = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
            columns = [pa.array([pair[side] for pair in found], pa.binary()) for side in (0, 1)]
            yield pa.record_batch([pa.array([len(ours)] * len(found), pa.int64()), *columns], names=["n", "a", "b"])

    # PySpark takes names of columns for SQL.
    numbered = selected.toDF(*(f"column_{number}" for number in range(len(names))))
    return numbered.mapInArrow(compare, "n bigint, a binary, b binary").take(5)


@pytest.mark.parametrize(
    ("changed", "far"),
    [
        pytest.param({}, True, marks=pytest.mark.thorough),
        ({IGNORE_NULLS: "false", TIME_ZONE: "America/New_York", LARGE_TYPES: "true"}, True),
        # Beyond four digits, this policy's own formatter fails.
        ({TIME_PARSER: "LEGACY", TIME_ZONE: "Asia/Kathmandu"}, False),
    ],
    ids=["defaults", "nulls are kept, large types", "legacy"],
)
def test_the_same_bytes(spark: SparkSession, tmp_path: Path, changed: dict[str, str], *, far: bool) -> None:
    cells = Cells(f"{changed}{far}")
    cells.far = far
    columns = {
        name: pa.array([cells.or_null(make(cells)) for _ in range(ROWS)], kind) for name, (kind, make) in CELLS.items()
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with session_settings(spark, {TIME_ZONE: "UTC", LARGE_TYPES: "false", **changed}):
        frame = spark.read.parquet(str(tmp_path)).selectExpr(*COLUMNS)
        assert _differing(frame) == []
        assert _differing(frame, in_table=True) == []


#: Where clocks are changed, or were: in Europe, America, Lord Howe (half an hour), Monrovia (44 minutes and a half).
CHANGES = (1_711_846_800, 1_729_990_800, 1_710_054_000, 1_730_613_600, 1_712_415_600, 1_728_142_200, 63_593_070)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Africa/Monrovia", "-18:00"])
def test_timestamps_in_a_time_zone(spark: SparkSession, zone: str) -> None:
    """Every offset that the zone ever had, by the rules that Spark's Java has."""
    chance = random.Random(zone)
    moments = [change * 1_000_000 + more for change in CHANGES for more in (-1, 0, 3_599_999_999, 3_600_000_000)]
    moments += [chance.randint(-5 * 10**15, 5 * 10**15) for _ in range(ROWS)]
    moments += [chance.choice([-1, 1]) * chance.randint(2**59, 2**63 - 1) for _ in range(200)]
    table = pa.table({"at": pa.array([*moments, *MICROSECONDS, None], pa.int64())})
    with session_settings(spark, {TIME_ZONE: zone}):
        assert _differing(spark.createDataFrame(table).selectExpr("timestamp_micros(at) AS at")) == []


def test_offsets_without_their_seconds(spark: SparkSession) -> None:
    with session_settings(spark, {TIME_ZONE: "Africa/Monrovia", OFFSET_SECONDS: "false"}):
        assert _differing(spark.range(3).selectExpr("timestamp_micros(id) AS at")) == []


@pytest.mark.parametrize("keeps_nulls", ["false", "true"])
def test_types_that_spark_makes_json_of(spark: SparkSession, keeps_nulls: str) -> None:
    """Each by itself and in a struct: of what is not nested, too."""
    columns = {
        "an interval": "make_dt_interval(id - 2, 3, id, 1.5)",
        "variant": "parse_json(concat('{\"a\": [1, null, ', id, ']}'))",
        "null in a variant": "parse_json('null')",
        "no field": "named_struct()",
        "no element": "array()",
        "null in an array": "array(id, NULL)",
        "null in a struct": "named_struct('a', CAST(NULL AS INT), 'b', array(named_struct('c', CAST(NULL AS INT))))",
        "a key of numbers": "map(id, named_struct('a', CAST(NULL AS INT)))",
        "arrays in arrays": "array(array(id), NULL, array())",
        "structs of a name": "named_struct('v', named_struct('v', id))",
        "a text": "named_struct('t', '}\"\\\\{')",
    }
    selected = [f"IF(id = 1, NULL, {sql}) AS `{name}`" for name, sql in columns.items()]
    selected += [f"IF(id = 1, NULL, struct({sql} AS a)) AS `{name}, in a struct`" for name, sql in columns.items()]
    with session_settings(spark, {IGNORE_NULLS: keeps_nulls}):
        frame = spark.range(4).selectExpr("id", *selected)
        assert _differing(frame) == []
        assert _differing(frame, in_table=True) == []


def test_names_that_json_or_spark_have_to_quote(spark: SparkSession) -> None:
    names = ["a.b", "a`b", 'say "x"', "back\\slash", "tab\t", "nul\x01", "v", "ä\u2028", "x AS y"]
    sql = [f"{source} AS {quoted(name + end)}" for end, source in SOURCES.items() for name in names]
    assert _differing(spark.range(3).selectExpr(*sql)) == []


SOURCES = {"": "id", " float": "CAST(id AS DOUBLE)", " nested": "struct(id)"}


def test_the_manuals_value_has_the_microseconds_and_the_nulls_of_the_table(spark: SparkSession) -> None:
    """The default, which is Spark's, has neither; and tasks leave this value to Spark."""
    [value] = re.findall(r'value = """(.*?)"""', PAGE, re.DOTALL)
    frame = spark.sql(
        "SELECT timestamp'2024-01-02 03:04:05.123456Z' AS at, timestamp_ntz'2024-01-02 03:04:05.000001' AS local, "
        "CAST(NULL AS INT) AS gone"
    )
    with session_settings(spark, {TIME_ZONE: "UTC"}):
        [[default]] = frame.selectExpr(WHOLE_ROW).collect()
        [[exact]] = frame.selectExpr(value).collect()
    assert json.loads(default) == {"at": "2024-01-02T03:04:05.123Z", "local": "2024-01-02T03:04:05.000"}
    assert json.loads(exact) == {
        "at": "2024-01-02T03:04:05.123456Z",
        "local": "2024-01-02T03:04:05.000001",
        "gone": None,
    }
    columns = {name: quoted(name) for name in frame.columns}
    given = RecordExpressions(topic=None, key=None, value=value, headers=None, partition=None, columns=columns)
    assert with_json(given, frame.schema, settings(spark)).json is None


JSON_ROWS: list[Row] = [(number, None if number % 4 == 0 else f'n"{number}', number) for number in range(40)]
JSON_COLUMNS = {
    "ratio": "CASE WHEN id % 5 = 0 THEN double('NaN') ELSE id / 7 END",
    "item": "named_struct('name', name, 'half', CAST(id / 2 AS FLOAT))",
    "tags": "array(name, 'x')",
    "labels": "map('k', name)",
    "at": "timestamp_micros(id * 100000000000000)",
    "raw": "CAST(name AS BINARY)",
}
DDL = (
    "CREATE TABLE target (id bigint PRIMARY KEY, name text, amount int CHECK (amount <> 7), ratio double precision)",
    "ALTER TABLE target ADD item jsonb, ADD tags text[], ADD labels jsonb, ADD at timestamptz, ADD raw bytea",
)


def widened(frame: DataFrame, columns: dict[str, str]) -> DataFrame:
    for name, sql in columns.items():
        frame = frame.withColumn(name, F.expr(sql))
    return frame


def json_of(frame: DataFrame) -> list[bytes]:
    """What Spark's own to_json makes of the rows."""
    return [row.v.encode() for row in frame.selectExpr("to_json(struct(*)) AS v").collect()]


def test_the_values_are_spark_s_also_when_they_are_sent_again(
    spark: SparkSession, stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A21, B7: Kafka loses the transaction; what is sent again, and the replay of the batch, have the same bytes.

    One row is bad for the table, which the sink finds out by its own selects.
    """
    monkeypatch.setattr(SmallBatches, "expected", True)
    target.execute(*DDL)
    options: dict[str, Any] = {"key": "id", "bad_rows": "dead_letter", "mode": "upsert", "upsert_keys": ["id"]}
    stream.add(JSON_ROWS)
    made = widened(spark.createDataFrame([row for row in JSON_ROWS if row[2] != 7], stream.schema), JSON_COLUMNS)
    with session_settings(spark, {TIME_ZONE: "Europe/Berlin"}):
        expected = json_of(made)
        steps = target.abort_once(monkeypatch)
        for again in (False, True):
            stream.run(target.sink(**options, upsert_order_by="amount"), widened(stream.frame(), JSON_COLUMNS))
            if not again:
                monkeypatch.undo()
                assert steps.count(Step.PRODUCE) >= 2
                shutil.rmtree(stream.checkpoint / "commits")
            assert_same_multiset([record.value for record in target.records()], expected, what=f"values, {again=}")
    assert target.rows("count(*)") == [(len(JSON_ROWS) - 1,)]


#: A text that is none in row 2, and the character that would stand for it in all others.
TEXT = "IF(id = 2, CAST(X'61ff' AS STRING), 'a\N{REPLACEMENT CHARACTER}')"
NESTED = {
    "a_struct": f"struct(id AS n, {TEXT} AS `a b`)",
    "an_array": f"array('fine', {TEXT})",
    "map_key": f"map({TEXT}, id)",
    "map_value": f"map('k', {TEXT})",
    "deep": f"array(struct(map('k', array({TEXT})) AS m))",
}


JSON = "CREATE TABLE target (id bigint, name text, amount int, nested jsonb)"
TEXTS = "CREATE TABLE target (id bigint, name text)"
WITH_NAME = {"id": "id", "name": "name"}
#: The table, the column nested, options, and the column that is named.
INVALID: dict[str, tuple[str, str, dict[str, Any], str]] = {
    # The record's value is left out of it; two keys of a map could have become one.
    "a column of json": (JSON, NESTED["map_key"], {"value": "'v'"}, "nested"),
    "a column of json, deep, by the driver": (JSON, NESTED["deep"], {"value": "'v'"}, "nested"),
    # Of what Spark makes of that column alone, or of the JSON that the table gets.
    "json that tasks build": (JSON, NESTED["an_array"], {}, "nested"),
    # The table has no such column, or takes its JSON as text.
    "the default value": (TEXTS, NESTED["map_key"], {"columns": WITH_NAME}, "value"),
    "a value of the job's": (
        TEXTS,
        NESTED["map_key"],
        {"columns": WITH_NAME, "value": "to_json(struct(*), map('ignoreNullFields', 'false')) -- all of it"},
        "value",
    ),
    "a column of the job's": (
        TEXTS, NESTED["map_key"], {"columns": {"id": "id", "name": "to_json(nested)"}, "value": "'v'"}, "name"
    ),
    # In JSON that Spark makes because of the session's time zone.
    "a text that only the record has": (TEXTS, TEXT, {"columns": {"id": "id"}}, "value"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_a_text_that_is_no_utf_8_is_refused(
    spark: SparkSession, stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """A24: it is named, and nothing is on either side."""
    ddl, column, options, named = INVALID[case]
    monkeypatch.setattr(SmallBatches, "expected", case.endswith("by the driver"))
    target.execute(ddl)
    stream.add([(number, "name", 0) for number in range(5)])
    zone = "Asia/Kathmandu" if column == TEXT else "UTC"
    with session_settings(spark, {TIME_ZONE: zone}), pytest.raises(UnstorableValueError, match="UTF-8") as refused:
        stream.run(target.sink(key="id", **options), stream.frame().withColumn("nested", F.expr(column)))
    assert (refused.value.column, refused.value.row_key) == (named, "key='2'")
    assert (target.records(), target.rows("count(*)")) == ([], [(0,)])


def test_the_character_itself_is_text(stream: FileStream, target: Target) -> None:
    """A24: U+FFFD in the data is taken, with the same bytes that Spark's own to_json has."""
    rows: list[Row] = [(number, "name", 0) for number in (0, 1)]
    stream.add(rows)
    sink = target.sink(table="nested_rows", columns={"id": "id", "deep": "deep"})
    stream.run(sink, widened(stream.frame(), NESTED))
    [(deep,)] = target.rows("DISTINCT deep::text", "nested_rows")
    assert deep == '[{"m": {"k": ["a\N{REPLACEMENT CHARACTER}"]}}]'
    expected = json_of(widened(stream.spark.createDataFrame(rows, stream.schema), NESTED))
    assert_same_multiset([record.value for record in target.records()], expected, what="values")
