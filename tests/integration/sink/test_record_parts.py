"""Keys that tasks take from the table's columns, and whether key, topic and partition are made of the upsert keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job.lane_columns import record_sql, shared_columns
from spark_2pc_sink.sink.job.lane_expressions import check_places
from spark_2pc_sink.sink.records.record_columns import key_values
from spark_2pc_sink.sink.records.record_expressions import (
    RecordExpressions,
    analyze,
    choose_expressions,
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
