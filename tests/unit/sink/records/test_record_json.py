"""JSON built from Arrow columns, and which expressions tasks take over from Spark."""

from __future__ import annotations

import json
from datetime import timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import types as t
from pyspark.sql.types import IntegerType, StructField, StructType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.sink.job.lane_columns import record_sql, upsert_order_columns
from spark_2pc_sink.sink.records import record_expressions
from spark_2pc_sink.sink.records.record_expressions import RecordExpressions, check_taken, choose_expressions, with_json
from spark_2pc_sink.sink.records.record_json import (
    IGNORE_NULLS,
    OFFSET_SECONDS,
    TIME_PARSER,
    TIME_ZONE,
    WHOLE_ROW,
    JsonField,
    json_fields,
    json_values,
)
from spark_2pc_sink.sink.rows.catalog import TargetColumn, TargetTable
from tests.unit.options.test_sink_options import sink as sink_options

UTC = {IGNORE_NULLS: "true", TIME_PARSER: "CORRECTED", TIME_ZONE: "UTC", OFFSET_SECONDS: "true"}
#: Columns, by their types of Spark and of Arrow.
COLUMNS: dict[str, tuple[t.DataType, Any]] = {
    "id": (t.LongType(), pa.int64()),
    'na"me': (t.StringType(), pa.string()),
    "amount": (t.DecimalType(12, 2), pa.decimal128(12, 2)),
    "at": (t.TimestampType(), pa.timestamp("us", tz="UTC")),
    "local": (t.TimestampNTZType(), pa.timestamp("us")),
    "day": (t.DateType(), pa.date32()),
    "express": (t.BooleanType(), pa.bool_()),
}
SCHEMA = t.StructType([t.StructField(name, kind) for name, (kind, _) in COLUMNS.items()])
FIELDS: Any = json_fields(SCHEMA, UTC)
ARROW = pa.schema([(name, kind) for name, (_, kind) in COLUMNS.items()])


def batch(rows: list[tuple[Any, ...]], schema: pa.Schema = ARROW) -> pa.RecordBatch:
    return pa.record_batch([pa.array([row[n] for row in rows], kind) for n, kind in enumerate(schema.types)], schema)


def values(rows: list[tuple[Any, ...]]) -> list[bytes]:
    made: list[bytes] = json_values(batch(rows), FIELDS).to_pylist()
    return made


def expected(row: tuple[Any, ...]) -> dict[str, Any]:
    """What a reader of the JSON finds, by Python's own formatting."""
    number, name, amount, at, local, day, express = row
    texts = (
        number,
        name,
        amount,
        None if at is None else at.strftime(f"{at.year:04}-%m-%dT%H:%M:%S.{at.microsecond // 1000:03}Z"),
        None if local is None else local.strftime(f"{local.year:04}-%m-%dT%H:%M:%S.{local.microsecond // 1000:03}"),
        None if day is None else day.isoformat(),
        express,
    )
    return {field: text for field, text in zip(ARROW.names, texts, strict=True) if text is not None}


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_MOMENTS = st.datetimes()
_CENTS = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda cents: Decimal(cents).scaleb(-2))
ROWS = st.tuples(
    optional(st.integers(-(2**63), 2**63 - 1)),
    optional(st.text(st.characters(codec="utf-8"))),
    optional(_CENTS),
    optional(_MOMENTS.map(lambda moment: moment.replace(tzinfo=timezone.utc))),
    optional(_MOMENTS),
    optional(st.dates()),
    optional(st.booleans()),
)


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_a_reader_finds_the_row(rows: list[tuple[Any, ...]]) -> None:
    read = [json.loads(value, parse_float=Decimal) for value in values(rows)]
    assert read == [expected(row) for row in rows]
    assert [list(value) for value in read] == [list(expected(row)) for row in rows]


@given(st.lists(ROWS, min_size=1, max_size=8), st.data())
def test_a_slice_and_large_types_make_the_same(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    large = pa.schema(
        [
            (name, pa.large_string() if kind == pa.string() else kind)
            for name, kind in zip(ARROW.names, ARROW.types, strict=True)
        ]
    )
    start = data.draw(st.integers(0, len(rows) - 1))
    cut = json_values(batch(rows, large).slice(start), FIELDS)
    assert cut.to_pylist() == values(rows)[start:]


@pytest.mark.parametrize(
    "field",
    [
        [t.StructField("c", t.IntegerType(), metadata={"EXISTS_DEFAULT": "1"})],
        [t.StructField("c", t.IntegerType())] * 2,
    ],
    ids=["a column's default", "two of a name"],
)
def test_what_is_left_to_spark(field: list[t.StructField]) -> None:
    assert json_fields(t.StructType(field), UTC) is None


def test_bytes_are_base64_without_line_breaks() -> None:
    rows = pa.record_batch({"c": pa.array([b"x" * 60], pa.binary())})
    made = json_values(rows, (JsonField("c", "BinaryType", None, False),)).to_pylist()
    assert made == [b'{"c":"' + b"eHh4" * 20 + b'"}']


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
    return TargetTable(table=TableName("t", "public"), columns=columns, unique_keys=())


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


def test_a_condition_that_is_a_column_of_its_name_has_a_type_too() -> None:
    """No convention takes such a column, as one named key is taken."""
    with pytest.raises(ConfigurationError, match="must be boolean; convert it, with delete_when="):
        record_expressions._check_type("delete_when", "`delete_when`", "string")
