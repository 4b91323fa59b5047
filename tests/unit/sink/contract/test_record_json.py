"""JSON built from Arrow columns; tests/integration/sink/test_record_json.py shows that it is Spark's to the byte."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from spark_2pc_sink.sink.contract.record_json import IGNORE_NULLS, TIME_PARSER, TIME_ZONE, json_fields, json_values

UTC = {IGNORE_NULLS: "true", TIME_PARSER: "CORRECTED", TIME_ZONE: "UTC"}
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
ROW = (7, "b", Decimal("-0.05"), datetime(2023, 11, 14, 22, 13, 20, 999_999, timezone.utc), None, None, True)


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


def test_bytes() -> None:
    (made,) = values([ROW])
    assert made == b'{"id":7,"na\\"me":"b","amount":-0.05,"at":"2023-11-14T22:13:20.999Z","express":true}'


@pytest.mark.parametrize(
    ("rows", "made"),
    [
        ([(1, "a"), (2, "b")], [b'{"n":1,"s":"a"}', b'{"n":2,"s":"b"}']),
        ([(1, None), (2, "b")], [b'{"n":1}', b'{"n":2,"s":"b"}']),
        ([(None, "a"), (2, "b")], [b'{"s":"a"}', b'{"n":2,"s":"b"}']),
        ([(None, "a"), (2, None), (None, None)], [b'{"s":"a"}', b'{"n":2}', b"{}"]),
        ([(None, None)], [b"{}"]),
        ([], []),
    ],
)
def test_commas(rows: list[tuple[Any, ...]], made: list[bytes]) -> None:
    schema = t.StructType([t.StructField("n", t.IntegerType()), t.StructField("s", t.StringType())])
    arrow = pa.schema([("n", pa.int32()), ("s", pa.string())])
    assert json_values(batch(rows, arrow), fields(schema)).to_pylist() == made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ('say "hi"', b'say \\"hi\\"'),
        ("a\\b", b"a\\\\b"),
        ('\\"', b'\\\\\\"'),
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
        (-1, "1969-12-31T23:59:59.999Z"),
        (-1_000, "1969-12-31T23:59:59.999Z"),
        (-1_001, "1969-12-31T23:59:59.998Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000_000, "+10000-01-01T00:00:00.000Z"),
        (-62_135_596_800_000_001, "0000-12-31T23:59:59.999Z"),
        (-62_167_219_200_000_001, "-0001-12-31T23:59:59.999Z"),
        (-(2**63), "-290308-12-21T19:59:05.224Z"),
    ],
)
def test_times_before_1970_and_years_beyond_four_digits(microseconds: int, text: str) -> None:
    schema = t.StructType([t.StructField("at", t.TimestampType())])
    column = pa.array([microseconds, None], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    made = json_values(pa.record_batch([column], names=["at"]), fields(schema)).to_pylist()
    assert made == [f'{{"at":"{text}"}}'.encode(), b"{}"]


def test_dates_beyond_four_digits() -> None:
    schema = t.StructType([t.StructField("day", t.DateType())])
    days = [(date(9999, 12, 31) - date(1970, 1, 1) + timedelta(more)).days for more in (0, 1)] + [-719_529, None]
    rows = pa.record_batch([pa.array(days, pa.int32()).cast(pa.date32())], names=["day"])
    assert json_values(rows, fields(schema)).to_pylist() == [
        b'{"day":"9999-12-31"}',
        b'{"day":"+10000-01-01"}',
        b'{"day":"-0001-12-31"}',
        b"{}",
    ]


def one(kind: t.DataType, **more: Any) -> t.StructType:
    return t.StructType([t.StructField("c", kind, **more)])


@pytest.mark.parametrize(
    ("schema", "settings"),
    [
        (one(t.DoubleType()), {}),
        (one(t.FloatType()), {}),
        (one(t.BinaryType()), {}),
        (one(t.ArrayType(t.IntegerType())), {}),
        (one(t.StructType([t.StructField("a", t.IntegerType())])), {}),
        (one(t.DecimalType(38, 7)), {}),
        (one(t.IntegerType(), metadata={"EXISTS_DEFAULT": "1"}), {}),
        (one(t.IntegerType()), {IGNORE_NULLS: "false"}),
        (one(t.TimestampType()), {TIME_ZONE: "Europe/London"}),
        (one(t.TimestampNTZType()), {TIME_PARSER: "legacy"}),
        (one(t.DateType()), {TIME_PARSER: "LEGACY"}),
        (t.StructType([t.StructField("c", t.IntegerType()), t.StructField("c", t.IntegerType())]), {}),
        (t.StructType([t.StructField("a\nb", t.IntegerType())]), {}),
    ],
    ids=str,
)
def test_what_is_left_to_spark(schema: t.StructType, settings: dict[str, str]) -> None:
    assert fields(schema, {**UTC, **settings}) is None


@pytest.mark.parametrize(
    ("schema", "settings"),
    [
        (one(t.DecimalType(38, 6)), {}),
        (one(t.IntegerType()), {TIME_ZONE: "Europe/London", TIME_PARSER: "LEGACY"}),
        (one(t.TimestampNTZType()), {TIME_ZONE: "Europe/London"}),
        (one(t.DateType()), {TIME_ZONE: "Europe/London", TIME_PARSER: "EXCEPTION"}),
    ],
    ids=str,
)
def test_settings_that_do_not_matter_to_a_type(schema: t.StructType, settings: dict[str, str]) -> None:
    assert fields(schema, {**UTC, **settings}) is not None
