"""What Spark hands to a task, through the plan, into PostgreSQL: the types and expressions are Spark's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spark_2pc_sink.sink.rows.catalog import read_target
from spark_2pc_sink.sink.rows.column_plan import plan_columns
from tests.harness.streams import session_settings
from tests.integration.postgres.database_tables import run, transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_json_keeps_microseconds_and_seconds_of_zones(spark: SparkSession, database: str) -> None:
    """Alone, to_json writes milliseconds, +00:09 for Paris's +00:09:21 in 1900, and nothing for a null field."""
    frame = spark.sql(
        "SELECT named_struct('at', timestamp'1900-01-01 00:00:00.000001+00:00', 'each', "
        "array(timestamp_ntz'2020-01-01 00:00:00.000001'), 'nothing', CAST(NULL AS INT)) AS x"
    )
    run(database, "CREATE TABLE json (x jsonb)")
    with transaction(database) as connection:
        plan = plan_columns([("x", frame.schema["x"].dataType)], read_target(connection, "json"))
    parsers = ("ansi.doubleQuotedIdentifiers", "parser.escapedStringLiterals")
    for parser in ({}, *({f"spark.sql.{name}": "true"} for name in parsers)):
        with session_settings(spark, {"spark.sql.session.timeZone": "Europe/Paris", **parser}):
            [row] = frame.selectExpr(*plan.expressions).collect()
        assert json.loads(row.x) == {
            "at": "1900-01-01T00:00:00.000001Z",
            "each": ["2020-01-01T00:00:00.000001"],
            "nothing": None,
        }
