"""JSON built from Arrow columns; tests/integration/sink/test_record_json.py shows that it is Spark's to the byte."""

from __future__ import annotations

import json
from datetime import timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from spark_2pc_sink.sink.records.record_json import (
    IGNORE_NULLS,
    OFFSET_SECONDS,
    TIME_PARSER,
    TIME_ZONE,
    JsonField,
    json_fields,
    json_values,
)

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
