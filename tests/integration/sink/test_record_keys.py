"""Keys that tasks take from the table's columns against those that Spark computes: the same bytes, or not taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_2pc_sink.sink.job.lane_columns import record_sql, shared_columns
from spark_2pc_sink.sink.records.record_columns import key_values
from spark_2pc_sink.sink.records.record_expressions import (
    RecordExpressions,
    analyze,
    with_key_column,
)
from spark_2pc_sink.sink.spark_sql import quoted
from tests.harness.streams import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Each type that can be taken, with its extremes; a null is added.
VALUES = {
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


@pytest.mark.parametrize(("kind", "large_types"), [*((kind, "false") for kind in VALUES), ("string", "true")])
def test_the_same_bytes_as_sparks(spark: SparkSession, kind: str, large_types: str) -> None:
    rows = ", ".join(f"(CAST({value} AS {kind}))" for value in (*VALUES[kind], "null"))
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
    assert len(found) == len(VALUES[kind]) + 1
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
