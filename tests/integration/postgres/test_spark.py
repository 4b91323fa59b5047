"""What Spark hands to a task, through the plan, into PostgreSQL: the types and expressions are Spark's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_2pc_sink.sink.rows.catalog import read_target
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan, plan_columns
from spark_2pc_sink.sink.rows.copy_encoder import CopyEncoder
from spark_2pc_sink.sink.rows.create_table import create_table_ddl
from tests.harness.streams import session_settings
from tests.integration.postgres.database_tables import append, rows, run, transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_TYPE = """
SELECT id, true AS bool, 1Y AS byte, 2S AS short, 3 AS int, 1.5f AS float, 2.5d AS double, 1.50BD AS dec,
  cast('0.00001' AS decimal(38,18)) AS dec38, 'sü' AS string, cast('v' AS varchar(5)) AS varchar,
  X'00FF' AS binary, date'1969-12-31' AS date, timestamp'1900-01-01 00:00:00.123456' AS ts,
  timestamp_ntz'0001-01-01 00:00:00.000001' AS ntz, interval '-1 02:03:04.5' day to second AS gap,
  array(1, null) AS ints, array('a', null, '') AS strings, array(timestamp'2020-01-01 00:00:00') AS times,
  array(1.5BD) AS decs, cast(array() AS array<bigint>) AS none, array(X'00') AS bins,
  named_struct('at', timestamp'2020-01-01 00:00:00.123456', 'gone', cast(null AS int)) AS struct,
  map('k', 1, 'n', null) AS map, parse_json('{"a": [1, null]}') AS variant, array(named_struct('a', 1)) AS structs,
  array(array(1), null) AS nested, cast(null AS string) AS missing
FROM range(1000)
"""
EXPECTED = {
    "bool": "true", "byte": "1", "short": "2", "int": "3", "float": "1.5", "double": "2.5", "dec": "1.50",
    "dec38": "0.000010000000000000", "string": "sü", "varchar": "v", "binary": "\\x00ff", "date": "1969-12-31",
    "ts": "1900-01-01 00:00:00.123456+00", "ntz": "0001-01-01 00:00:00.000001", "gap": "-26:03:04.5",
    "ints": "{1,NULL}", "strings": '{a,NULL,""}', "times": '{"2020-01-01 00:00:00+00"}', "decs": "{1.5}", "none": "{}",
    "bins": '{"\\\\x00"}', "missing": None,
}  # fmt: skip
EXPECTED_JSON = {
    "struct": {"at": "2020-01-01T00:00:00.123456Z", "gone": None},
    "map": {"k": 1, "n": None},
    "variant": {"a": [1, None]},
    "structs": [{"a": 1}],
    "nested": [[1], None],
}


@pytest.mark.parametrize("encode", ["in tasks", "in the driver"])
@pytest.mark.parametrize("large_types", ["false", "true"])
def test_every_type_of_spark(spark: SparkSession, database: str, large_types: str, encode: str) -> None:
    """In a session zone that had odd offsets, with small and large Arrow types, in several tasks or collected."""
    settings = {
        "spark.sql.session.timeZone": "Europe/Paris",
        "spark.sql.execution.arrow.useLargeVarTypes": large_types,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "300",
    }
    frame = spark.sql(EVERY_TYPE).repartition(3)
    with session_settings(spark, settings):
        run(database, create_table_ddl(frame.schema.fields, "every_type"))
        with transaction(database) as connection:
            plan = plan_columns(
                [(field.name, field.dataType) for field in frame.schema], read_target(connection, "every_type")
            )
        streams = (encode_in_tasks if encode == "in tasks" else encode_here)(frame, plan)
    with transaction(database) as connection:
        assert append(connection, plan, streams) == 1000

    shown = ", ".join(f'"{name}"::text' for name in [*EXPECTED, *EXPECTED_JSON])
    answer = rows(
        database,
        f"SELECT set_config('timezone', 'UTC', true), count(*) OVER (PARTITION BY true), count(*), {shown} "
        f"FROM every_type GROUP BY {shown}",
    )
    [(_, groups, count, *texts)] = answer
    assert (groups, count) == (1, 1000)
    found = dict(zip([*EXPECTED, *EXPECTED_JSON], texts, strict=True))
    assert {name: found[name] for name in EXPECTED} == EXPECTED
    assert {name: json.loads(found[name]) for name in EXPECTED_JSON} == EXPECTED_JSON
    assert rows(database, "SELECT count(DISTINCT id), min(id), max(id) FROM every_type") == [(1000, 0, 999)]


def encode_in_tasks(frame: DataFrame, plan: ColumnPlan) -> list[list[bytes]]:
    """One stream of each task, as the sink would collect them."""

    def encode(batches: Iterable[Any]) -> Iterator[Any]:
        yield pa.record_batch({"stream": [b"".join(encoded(batches, plan))]})

    collected = frame.selectExpr(*plan.expressions).mapInArrow(encode, "stream binary").collect()
    return [[bytes(row.stream)] for row in collected]


def encode_here(frame: DataFrame, plan: ColumnPlan) -> list[list[bytes]]:
    """One stream, of the rows that the driver has collected."""
    return [encoded(frame.selectExpr(*plan.expressions).toArrow().to_batches(), plan)]


def encoded(batches: Iterable[Any], plan: ColumnPlan) -> list[bytes]:
    encoder = CopyEncoder(replace(plan.copy_plan, row_key="id"))
    return [*(encoder.encode(batch) for batch in batches), encoder.finish()]


def test_type_of_time(spark: SparkSession, database: str) -> None:
    """TIME came after Spark 4.0."""
    types = pytest.importorskip("pyspark.sql.types")
    if not hasattr(types, "TimeType"):
        pytest.skip("this Spark has no TIME")
    frame = spark.sql("SELECT id, time'23:59:59.999999' AS at FROM range(2)")
    run(database, create_table_ddl(frame.schema.fields, "times"))
    with transaction(database) as connection:
        plan = plan_columns([(field.name, field.dataType) for field in frame.schema], read_target(connection, "times"))
        assert append(connection, plan, encode_in_tasks(frame, plan)) == 2
    assert rows(database, "SELECT DISTINCT at::text FROM times") == [("23:59:59.999999",)]


@pytest.mark.parametrize(
    "parser",
    [{}, {"spark.sql.ansi.doubleQuotedIdentifiers": "true"}, {"spark.sql.parser.escapedStringLiterals": "true"}],
    ids=["as it is", "double quotes are names", "backslashes are themselves"],
)
def test_json_keeps_microseconds_and_seconds_of_zones(
    spark: SparkSession, database: str, parser: dict[str, str]
) -> None:
    """Alone, to_json writes milliseconds, +00:09 for Paris's +00:09:21 in 1900, and nothing for a null field."""
    frame = spark.sql(
        "SELECT named_struct('at', timestamp'1900-01-01 00:00:00.000001+00:00', 'each', "
        "array(timestamp_ntz'2020-01-01 00:00:00.000001'), 'nothing', CAST(NULL AS INT)) AS x"
    )
    run(database, "CREATE TABLE json (x jsonb)")
    with transaction(database) as connection:
        plan = plan_columns([("x", frame.schema["x"].dataType)], read_target(connection, "json"))
    with session_settings(spark, {"spark.sql.session.timeZone": "Europe/Paris", **parser}):
        [row] = frame.selectExpr(*plan.expressions).collect()
    assert json.loads(row.x) == {
        "at": "1900-01-01T00:00:00.000001Z",
        "each": ["2020-01-01T00:00:00.000001"],
        "nothing": None,
    }
