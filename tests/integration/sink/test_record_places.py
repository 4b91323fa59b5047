"""Whether key, topic and partition of records are made of the upsert keys alone: as Spark understands them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job.lane_expressions import check_places
from spark_2pc_sink.sink.records.record_expressions import analyze, choose_expressions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
