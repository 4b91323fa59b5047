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
    NESTED,
    OFFSET_SECONDS,
    TIME_PARSER,
    TIME_ZONE,
    WRAPPED,
    ZONED,
    JsonField,
    json_fields,
    json_values,
)

UTC = {IGNORE_NULLS: "true", TIME_PARSER: "CORRECTED", TIME_ZONE: "UTC", OFFSET_SECONDS: "true"}
SCHEMA = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField('na"me', t.StringType()),
        t.StructField("amount", t.DecimalType(12, 2)),
        t.StructField("at", t.TimestampType()),
        t.StructField("local", t.TimestampNTZType()),
        t.StructField("day", t.DateType()),
        t.StructField("express", t.BooleanType()),
    ]
)
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ('na"me', pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("express", pa.bool_()),
    ]
)


def fields(schema: t.StructType = SCHEMA, settings: dict[str, str] = UTC) -> Any:
    return json_fields(schema, settings)


def batch(rows: list[tuple[Any, ...]], schema: pa.Schema = ARROW) -> pa.RecordBatch:
    return pa.record_batch([pa.array([row[n] for row in rows], kind) for n, kind in enumerate(schema.types)], schema)


def values(rows: list[tuple[Any, ...]]) -> list[bytes]:
    made: list[bytes] = json_values(batch(rows), fields()).to_pylist()
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
    cut = json_values(batch(rows, large).slice(start), fields())
    assert cut.to_pylist() == values(rows)[start:]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ('say "hi"', b'say \\"hi\\"'),
        ("a\\b", b"a\\\\b"),
        ("\n\t\r\b\f", b"\\n\\t\\r\\b\\f"),
        ("\x00\x1f", b"\\u0000\\u001F"),
        ("/\x7f\u2028é\U0001f600", "/\x7f\u2028é\U0001f600".encode()),
    ],
)
def test_characters_are_escaped_as_jackson_does(text: str, made: bytes) -> None:
    """The escapes of com.fasterxml.jackson.core.io.CharTypes: short ones where JSON has them, else capital digits."""
    schema = t.StructType([t.StructField("s", t.StringType())])
    rows = batch([(text,), ("plain",)], pa.schema([("s", pa.string())]))
    assert json_values(rows, fields(schema)).to_pylist() == [b'{"s":"' + made + b'"}', b'{"s":"plain"}']


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (-1_000, "1969-12-31T23:59:59.999Z"),
        (-1_001, "1969-12-31T23:59:59.998Z"),
        (253_402_300_800_000_000, "+10000-01-01T00:00:00.000Z"),
        (-62_167_219_200_000_001, "-0001-12-31T23:59:59.999Z"),
        (-(2**63), "-290308-12-21T19:59:05.224Z"),
    ],
)
def test_times_before_1970_and_years_beyond_four_digits(microseconds: int, text: str) -> None:
    schema = t.StructType([t.StructField("at", t.TimestampType())])
    column = pa.array([microseconds, None], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    made = json_values(pa.record_batch([column], names=["at"]), fields(schema)).to_pylist()
    assert made == [f'{{"at":"{text}"}}'.encode(), b"{}"]


def one(kind: t.DataType, **more: Any) -> t.StructType:
    return t.StructType([t.StructField("c", kind, **more)])


MADE = "_2pc_json_0"


@pytest.mark.parametrize(
    "schema",
    [
        one(t.IntegerType(), metadata={"EXISTS_DEFAULT": "1"}),
        t.StructType([t.StructField("c", t.IntegerType()), t.StructField("c", t.IntegerType())]),
    ],
    ids=["a column's default", "two of a name"],
)
def test_what_is_left_to_spark(schema: t.StructType) -> None:
    assert fields(schema) is None


def text_of(kind: str, *columns: pa.Array, keeps_null: bool = False) -> list[bytes]:
    """The JSON of rows of one column, of which Spark has made the last of several."""
    field = JsonField("c", kind, MADE if len(columns) > 1 or kind in (NESTED, WRAPPED) else None, keeps_null)
    made: list[bytes] = json_values(pa.record_batch(list(columns), names=list(field.sources)), (field,)).to_pylist()
    return made


@pytest.mark.parametrize(
    ("units", "text"),
    [(0, "0E-10"), (9_999, "9.999E-7"), (10_000, "0.0000010000")],
)
def test_decimals_are_written_as_java_does(units: int, text: str) -> None:
    """BigDecimal.toString: with an exponent where the number is smaller than 0.000001."""
    column = pa.array([Decimal(units).scaleb(-10)], pa.decimal128(38, 10))
    assert text_of("DecimalType", column) == [f'{{"c":{text}}}'.encode()]


def test_bytes_are_base64_without_line_breaks() -> None:
    column = pa.array([b"", b"\xff", None, b"ab", b"x" * 60], pa.binary())
    made = [b'{"c":""}', b'{"c":"/w=="}', b"{}", b'{"c":"YWI="}', b'{"c":"' + b"eHh4" * 20 + b'"}']
    assert text_of("BinaryType", column) == made
    assert text_of("BinaryType", column.slice(1, 3)) == made[1:4]


@pytest.mark.parametrize(
    ("microseconds", "offset_s", "text"),
    [
        (0, 3_600, "1970-01-01T01:00:00.000+01:00"),
        (0, -2_670, "1969-12-31T23:15:30.000-00:44:30"),
        (253_402_300_799_999_999, 3_600, "+10000-01-01T00:59:59.999+01:00"),
        (2**63 - 1, 64_800, "+294247-01-10T22:00:54.775+18:00"),
        (-(2**63), -64_800, "-290308-12-21T01:59:05.224-18:00"),
    ],
)
def test_timestamps_have_the_offset_of_their_time_zone(microseconds: int, offset_s: int, text: str) -> None:
    """Also those whose local time 64 bits have no room for."""
    cycle = (400 * 365 + 97) * 86_400_000_000
    near = microseconds + (cycle if microseconds < -(2**62) else -cycle if microseconds > 2**62 else 0)
    at, local = (pa.array([number, None], pa.int64()) for number in (microseconds, near + offset_s * 1_000_000))
    columns = (at.cast(pa.timestamp("us", tz="Europe/London")), local.cast(pa.timestamp("us")))
    assert text_of(ZONED, *columns) == [f'{{"c":"{text}"}}'.encode(), b"{}"]
