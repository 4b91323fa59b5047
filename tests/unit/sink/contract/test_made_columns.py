"""What Spark makes beside the table's columns for the JSON of a record, and what tasks take from the table's JSON."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from spark_2pc_sink.sink.records.record_expressions import MadeColumn, made_columns
from spark_2pc_sink.sink.records.record_json import IGNORE_NULLS, OFFSET_SECONDS, TIME_PARSER, TIME_ZONE, json_fields
from spark_2pc_sink.sink.rows.text_guards import json_sql

UTC = {IGNORE_NULLS: "true", TIME_PARSER: "CORRECTED", TIME_ZONE: "UTC", OFFSET_SECONDS: "true"}
STRUCT = t.StructType([t.StructField("a", t.IntegerType())])
NUMBERS = t.ArrayType(t.LongType())


def made(kind: t.DataType, **settings: str) -> MadeColumn:
    """What Spark makes for a column ``c`` of a type."""
    schema = t.StructType([t.StructField("c", kind)])
    fields = json_fields(schema, {**UTC, **({IGNORE_NULLS: "false"} if settings else {})})
    assert fields is not None
    (column,) = made_columns(fields, schema)
    return column


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        (NUMBERS, None),
        (t.MapType(t.LongType(), t.DateType()), None),
        (STRUCT, f"CASE WHEN contains({json_sql('`c`', STRUCT)}, 'null') THEN to_json(`c`) END AS _2pc_json_0"),
        (t.ArrayType(t.TimestampType()), "to_json(`c`) AS _2pc_json_0"),
        (t.DoubleType(), "CAST(`c` AS STRING) AS _2pc_json_0"),
    ],
    ids=str,
)
def test_the_json_of_the_table_is_not_made_twice(kind: t.DataType, shared: str | None) -> None:
    column = made(kind)
    assert column.select({"c"}) == shared
    assert column.select({"other"}) == f"{column.sql} AS _2pc_json_0"
    assert not column.guarded


def test_where_nulls_are_kept_a_struct_is_what_the_table_gets() -> None:
    assert made(STRUCT, keeps="nulls").select({"c"}) is None


def test_a_text_that_is_none_is_marked() -> None:
    column = made(t.ArrayType(t.StringType()))
    assert column.guarded
    assert "is_valid_utf8" in column.sql


def test_columns_of_which_tasks_make_all_need_nothing() -> None:
    schema = t.StructType([t.StructField("n", t.LongType()), t.StructField("f", t.FloatType())])
    fields = json_fields(schema, UTC)
    assert fields is not None
    assert [column.source for column in made_columns(fields, schema)] == ["f"]
