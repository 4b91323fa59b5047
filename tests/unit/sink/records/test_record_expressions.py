"""Which expressions tasks take over from Spark, and what Spark makes for the JSON of a record."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from spark_2pc_sink.sink.job.lane_columns import record_sql, upsert_order_columns
from spark_2pc_sink.sink.records.record_expressions import RecordExpressions, check_taken, choose_expressions, with_json
from spark_2pc_sink.sink.records.record_json import IGNORE_NULLS, OFFSET_SECONDS, TIME_PARSER, TIME_ZONE, WHOLE_ROW
from spark_2pc_sink.sink.rows.catalog import SqlTableName, TargetColumn, TargetTable
from tests.unit.options.test_sink_options import sink as sink_options

SETTINGS = {IGNORE_NULLS: "true", TIME_PARSER: "CORRECTED", TIME_ZONE: "UTC", OFFSET_SECONDS: "true"}


def taken_over(columns: dict[str, str], *, value: str = WHOLE_ROW) -> RecordExpressions:
    schema = StructType([StructField("1", IntegerType())])
    given = RecordExpressions(topic=None, key=None, value=value, headers=None, partition=None, columns=columns)
    return with_json(given, schema, SETTINGS)


def test_a_resend_selects_what_tells_rows_of_one_key_apart() -> None:
    """Beside what goes into the record: a column is not selected twice."""
    expressions = taken_over({"1": "`1`"})
    assert upsert_order_columns(expressions, ["1"], "ts") == ["ts AS _2pc_order"]
    other = taken_over({"1": "`1` + 1"})
    assert upsert_order_columns(other, ["1"], "ts") == ["`1` + 1 AS `1`", "ts AS _2pc_order"]


@pytest.mark.parametrize(
    ("columns", "value"),
    [({"1": "1"}, WHOLE_ROW), ({"other": "`1`"}, WHOLE_ROW), ({"1": "`1`"}, "to_json(struct(`1`))")],
)
def test_other_values_stay_with_spark(columns: dict[str, str], value: str) -> None:
    expressions = taken_over(columns, value=value)
    assert expressions.json is None
    assert [sql.rpartition(" AS ")[2] for sql in record_sql(expressions)] == ["_2pc_value"]


def chosen(**options: Any) -> RecordExpressions:
    """Of a batch whose columns are the record's by their names, beside an id."""
    names = ["topic", "key", "value", "headers", "partition", "id"]
    lane = sink_options(**options).lanes[0]
    return choose_expressions(lane, StructType([StructField(name, IntegerType()) for name in names]))


def table_of(*names: str, unwritable: str = "") -> TargetTable:
    columns = tuple(TargetColumn(name, "integer", "int4", unwritable=unwritable) for name in names)
    return TargetTable(table=SqlTableName("t", "public"), columns=columns, unique_keys=())


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({}, table_of("id", "offset")),
        ({}, table_of("key", unwritable="a generated column")),
        ({"columns": {"id": "id"}}, table_of("id", "key")),
        ({"key": "id"}, table_of("id", "key")),
    ],
    ids=["the table has none", "only the database writes it", "the user chose", "the record takes another"],
)
def test_what_nobody_expects_in_the_table_may_stay_out(options: dict[str, Any], target: TargetTable) -> None:
    check_taken(chosen(**options), target)
