"""Values of records beside columns of all kinds, through the sink: Spark's bytes, whoever writes them and how often."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.records.record_json import TIME_ZONE
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.streams import session_settings
from tests.integration.postgres import database_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.harness.streams import FileStream
    from tests.integration.sink.targets import Row, Target

ROWS: list[Row] = [(number, None if number % 4 == 0 else f'n"{number}', number) for number in range(40)]
COLUMNS = {
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
UPSERT: dict[str, Any] = {"mode": "upsert", "upsert_keys": ["id"], "upsert_order_by": "amount"}


def with_columns(frame: DataFrame) -> DataFrame:
    for name, sql in COLUMNS.items():
        frame = frame.withColumn(name, F.expr(sql))
    return frame


def test_the_values_are_spark_s_also_when_they_are_sent_again(
    spark: SparkSession,
    stream: FileStream,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A21, B7: Kafka loses the transaction; what is sent again, and the replay of the batch, have the same bytes.

    One row is bad for the table, which the sink finds out by its own selects.
    """
    monkeypatch.setattr(SmallBatches, "expected", True)
    database_tables.run(target.database, *DDL)

    def sink() -> DualWriteSink:
        return target.sink(key="id", bad_rows="dead_letter", **UPSERT)

    stream.add(ROWS)
    made = with_columns(spark.createDataFrame([row for row in ROWS if row[2] != 7], stream.schema))
    with session_settings(spark, {TIME_ZONE: "Europe/Berlin"}):
        expected = [row.value.encode() for row in made.selectExpr("to_json(struct(*)) AS value").collect()]
        steps = target.abort_once(monkeypatch)
        stream.run(sink(), with_columns(stream.frame()))
        monkeypatch.undo()
        assert steps.count(Step.PRODUCE) >= 2
        assert_same_multiset([record.value for record in target.records()], expected, what="values")
        shutil.rmtree(stream.checkpoint / "commits")
        stream.run(sink(), with_columns(stream.frame()))
    assert_same_multiset([record.value for record in target.records()], expected, what="values after a replay")
    assert target.rows("count(*)") == [(len(ROWS) - 1,)]
