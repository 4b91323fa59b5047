"""Values that tasks build against those of Spark's to_json: the same bytes, whatever the rows and settings."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_2pc_sink.sink.contract.record_expressions import RecordExpressions, with_json
from spark_2pc_sink.sink.contract.record_json import SETTINGS, TIME_ZONE, WHOLE_ROW, JsonField, json_values
from spark_2pc_sink.sink.job.json_settings import JsonSettings
from spark_2pc_sink.sink.job.session_facts import session_facts
from spark_2pc_sink.sink.table.spark_sql import quoted
from tests.harness.streams import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "using.md").read_text()

ROWS = 4_000
NULLS = 0.2
COLUMNS = (
    "n1", "n8", '`odd " näme`', "cents", "micro", "whole", "timestamp_micros(at) AS at",
    "CAST(timestamp_micros(local) AS TIMESTAMP_NTZ) AS local", "date_from_unix_date(day) AS day", "yes",
    "CAST(short AS VARCHAR(4)) AS short",
)  # fmt: skip
SCHEMA = pa.schema(
    [
        ("n1", pa.int8()),
        ("n8", pa.int64()),
        ('odd " näme', pa.string()),
        ("cents", pa.decimal128(12, 2)),
        ("micro", pa.decimal128(38, 6)),
        ("whole", pa.decimal128(9, 0)),
        ("at", pa.int64()),
        ("local", pa.int64()),
        ("day", pa.int32()),
        ("yes", pa.bool_()),
        ("short", pa.string()),
    ]
)
CHARACTERS = 'abc"\\/\n\t\r\b\f\x00\x01\x1f\x7f\x80é\u2028\u07ff\U0001f600 '
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
MICROSECONDS = (0, -1, -999, -1_000, -1_001, _YEAR_1, _YEAR_1 - 1, _YEAR_10000, _YEAR_10000 - 1, -(2**63), 2**63 - 1)
DAYS = (0, -1, -719_162, -719_163, -719_528, -719_529, 2_932_896, 2_932_897, -(2**31), 2**31 - 1)


def _decimal(chance: random.Random, digits: int, scale: int) -> Decimal:
    number = chance.choice([chance.randint(1 - 10**digits, 10**digits - 1), chance.randint(-10, 10)])
    return Decimal(number).scaleb(-scale, Context(prec=60))


def _row(chance: random.Random, *, far: bool) -> tuple[Any, ...]:
    moments = [chance.randint(0, 2 * 10**15), chance.randint(_YEAR_1, _YEAR_10000 - 1), *(MICROSECONDS if far else ())]
    days = [chance.randint(0, 30_000), chance.randint(-719_162, 2_932_896), *(DAYS if far else ())]
    row = (
        chance.randint(-128, 127),
        chance.choice([chance.randint(-(2**63), 2**63 - 1), chance.randint(-5, 5)]),
        "".join(chance.choices(CHARACTERS, k=chance.randint(0, 12))),
        _decimal(chance, 12, 2),
        _decimal(chance, 38, 6),
        _decimal(chance, 9, 0),
        chance.choice(moments),
        chance.choice(moments),
        chance.choice(days),
        chance.random() < 0.5,
        "".join(chance.choices("ab", k=chance.randint(0, 4))),
    )
    return tuple(None if chance.random() < NULLS else cell for cell in row)


def _write(path: Path, rows: list[tuple[Any, ...]]) -> None:
    columns = [pa.array(cells, kind) for cells, kind in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)]
    pq.write_table(pa.table(columns, schema=SCHEMA), path)


def settings(spark: SparkSession) -> Mapping[str, str]:
    """As the sink asks for them."""
    return JsonSettings("t", session_facts(spark, "t")).now(spark)


def _fields(frame: DataFrame) -> tuple[JsonField, ...] | None:
    columns = {name: quoted(name) for name in frame.columns}
    expressions = RecordExpressions(
        topic=None, key=None, value=WHOLE_ROW, headers=None, partition=None, columns=columns
    )
    return with_json(expressions, frame.schema, settings(frame.sparkSession)).json


def _differing(frame: DataFrame, fields: tuple[JsonField, ...]) -> list[Any]:
    """Rows for which the two make different bytes."""

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ours, theirs = json_values(batch, fields).to_pylist(), batch.column("spark").to_pylist()
            found = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
            columns = [pa.array([pair[side] for pair in found], pa.binary()) for side in (0, 1)]
            yield pa.record_batch([pa.array([len(ours)] * len(found), pa.int64()), *columns], names=["n", "a", "b"])

    with_theirs = frame.selectExpr("*", f"CAST({WHOLE_ROW} AS BINARY) AS spark")
    return with_theirs.mapInArrow(compare, "n bigint, a binary, b binary").take(5)


@pytest.mark.parametrize("large_types", ["false", "true"])
@pytest.mark.parametrize("far", [False, True], ids=["four-digit years", "any year"])
def test_the_same_bytes(spark: SparkSession, tmp_path: Path, large_types: str, *, far: bool) -> None:
    chance = random.Random(f"{large_types}{far}")
    _write(tmp_path / "rows.parquet", [_row(chance, far=far) for _ in range(ROWS)])
    with session_settings(spark, {"spark.sql.execution.arrow.useLargeVarTypes": large_types}):
        frame = spark.read.parquet(str(tmp_path)).selectExpr(*COLUMNS)
        fields = _fields(frame)
        assert fields is not None
        assert _differing(frame, fields) == []


def test_settings_that_nobody_has_set_have_spark_s_defaults(spark: SparkSession) -> None:
    """The time zone's is the virtual machine's, and the others allow it."""
    frame = spark.range(1).selectExpr("id", "CAST(id AS TIMESTAMP) AS at")
    with session_settings(spark, dict.fromkeys(SETTINGS)):
        zone = spark.conf.get(TIME_ZONE)
        fields, without_time = _fields(frame), _fields(frame.select("id"))
    with session_settings(spark, {TIME_ZONE: zone}):
        assert fields == _fields(frame)
    assert without_time == (JsonField("id", "LongType"),)


def test_the_comparison_sees_a_difference(spark: SparkSession, tmp_path: Path) -> None:
    _write(tmp_path / "rows.parquet", [_row(random.Random(0), far=False) for _ in range(3)])
    frame = spark.read.parquet(str(tmp_path)).selectExpr("n8", "yes")
    assert _differing(frame, (JsonField("yes", "BooleanType"), JsonField("n8", "LongType"))) != []


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
