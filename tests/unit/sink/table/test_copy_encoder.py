"""The encoder of a task: complete streams, and refusals that name the row. FAILURES C8."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from spark_2pc_sink.errors import LocalProtocolError, UnstorableValueError
from spark_2pc_sink.sink.rows.catalog import TableName, TargetColumn, TargetTable, UniqueKey
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan, plan_columns
from spark_2pc_sink.sink.rows.copy_encoder import COPY_TRAILER, SHOWN_CHARACTERS_MAX, CopyEncoder
from spark_2pc_sink.sink.rows.table_writer import HEADER, READ_BYTES, CopyReader

ID = TargetColumn(name="id", type_name="bigint", base_type="int8", nullable=False)


def plan_for(spark_type: t.DataType, base_type: str, *, keys: Sequence[str] = (), **more: Any) -> ColumnPlan:
    """A plan of two columns: id and x, of which x is of the given types."""
    target = TargetColumn(**{"name": "x", "type_name": base_type, "base_type": base_type, **more})
    table = TargetTable(TableName("orders", "public"), (ID, target), (UniqueKey("pk", ("id",), primary=True),))
    return plan_columns([("id", t.LongType()), ("x", spark_type)], table, upsert_keys=keys)


TEXT = plan_for(t.StringType(), "text")


def batch_of(values: Sequence[Any], arrow_type: Any = None, *, first_id: int = 100) -> Any:
    array = values if isinstance(values, pa.Array) else pa.array(values, arrow_type)
    return pa.record_batch({"id": pa.array(range(first_id, first_id + len(array)), pa.int64()), "x": array})


def encoded(plan: ColumnPlan, *batches: Any) -> list[tuple[bytes | None, ...]]:
    encoder = CopyEncoder(plan.copy_plan)
    return decode(b"".join([*(encoder.encode(batch) for batch in batches), encoder.finish()]))


def decode(stream: bytes) -> list[tuple[bytes | None, ...]]:
    """Read the tuples of COPY BINARY as PostgreSQL's documentation describes them."""
    rows: list[tuple[bytes | None, ...]] = []
    at = 0
    while at < len(stream):
        (count,) = struct.unpack_from(">h", stream, at)
        at += 2
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", stream, at)
            at += 4
            row.append(None if length < 0 else stream[at : at + length])
            at += max(length, 0)
        rows.append(tuple(row))
    return rows


# --- streams ---------------------------------------------------------------------------------------------------


def test_all_rows_of_all_batches_arrive_in_order() -> None:
    """Without finish() pgpq keeps up to a MiB: 59 of a million rows were once lost so, without an error."""
    batches = [batch_of([f"row {row}" * 20] * 700, first_id=row * 700) for row in range(60)]
    encoder = CopyEncoder(TEXT.copy_plan)
    pieces = [encoder.encode(batch) for batch in batches]
    assert not all(pieces), "nothing was held back: this test shows nothing"
    rows = decode(b"".join([*pieces, encoder.finish()]))
    assert encoder.rows == len(rows) == 60 * 700
    assert rows[-1] == (struct.pack(">q", 60 * 700 - 1), b"row 59" * 20)
    assert [row[0] for row in rows] == [struct.pack(">q", number) for number in range(60 * 700)]


def test_no_row_is_no_byte() -> None:
    assert CopyEncoder(TEXT.copy_plan).finish() == b""
    assert encoded(TEXT, batch_of([], pa.string())) == []


def test_batches_may_be_slices() -> None:
    whole = batch_of(["a", None, "", "d"])
    assert encoded(TEXT, whole.slice(1, 2), whole.slice(3)) == [
        (struct.pack(">q", 101), None),
        (struct.pack(">q", 102), b""),
        (struct.pack(">q", 103), b"d"),
    ]


def test_calls_out_of_order_are_refused() -> None:
    encoder = CopyEncoder(TEXT.copy_plan)
    encoder.finish()
    with pytest.raises(LocalProtocolError):
        encoder.encode(batch_of(["a"]))
    with pytest.raises(LocalProtocolError):
        encoder.finish()
    assert encoder.rows == 0


def test_other_columns_are_passed_over() -> None:
    batch = pa.record_batch({"value": ["of Kafka"], "x": ["ours"], "id": [7]})
    encoder = CopyEncoder(TEXT.copy_plan)
    assert decode(encoder.encode(batch) + encoder.finish()) == [(struct.pack(">q", 7), b"ours")]


@pytest.mark.parametrize(
    ("spark_type", "base_type", "values"),
    [
        (t.StringType(), "text", pa.array(["ü"], pa.large_string())),
        (t.StringType(), "jsonb", pa.array(["{}"], pa.large_string())),
        (t.BinaryType(), "bytea", pa.array([b"\x00"], pa.large_binary())),
        (t.TimestampType(), "timestamptz", pa.array([0], pa.timestamp("us", tz="Asia/Tokyo"))),
    ],
)
def test_what_session_settings_change_makes_no_difference(spark_type: t.DataType, base_type: str, values: Any) -> None:
    usual = {
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
    }.get(values.type, pa.timestamp("us", tz="UTC"))
    plan = plan_for(spark_type, base_type)
    assert encoded(plan, batch_of(values)) == encoded(plan, batch_of(values.cast(usual)))


def test_batch_that_is_not_the_plan_s_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="column x arrives as int32"):
        CopyEncoder(TEXT.copy_plan).encode(batch_of([1], pa.int32()))
    with pytest.raises(LocalProtocolError, match="each column of the plan"):
        CopyEncoder(TEXT.copy_plan).encode(pa.record_batch({"id": [1]}))


def test_reader_puts_rows_together_in_pieces_of_bounded_size() -> None:
    """FAILURES C11: the driver never holds all rows in one piece."""
    rows = [bytes([number]) * (READ_BYTES + 10) for number in range(3)]
    reader = CopyReader(iter([rows[0], b"", pa.py_buffer(rows[1] + rows[2])]))
    read = list(iter(reader.read, b""))
    assert b"".join(read) == HEADER + b"".join(rows) + COPY_TRAILER
    assert max(map(len, read)) == READ_BYTES
    assert reader.read() == b""


# --- refusals --------------------------------------------------------------------------------------------------

NUMERIC_10_2: dict[str, Any] = {"type_name": "numeric(10,2)", "type_modifier": (10 << 16 | 2) + 4}
INVALID = pa.array([b"fine", b"\xff"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("plan", "values", "shown", "rule"),
    [
        (TEXT, ["fine", "a\x00b"], r"'a\x00b'", "no NUL character"),
        (TEXT, INVALID, r"b'\xff'", "not valid UTF-8"),
        (plan_for(t.StringType(), "json"), ["{}", r'"\u0000"'], repr(r'"\u0000"'), "no NUL character"),
        (plan_for(t.StringType(), "jsonb"), ["{}", r'"\\\u0000"'], repr(r'"\\\u0000"'), "no NUL character"),
        (
            plan_for(t.StringType(), "varchar", type_name="character varying(3)", type_modifier=7),
            ["äöü", "äöüx"],
            "'äöüx'",
            "longer than character varying(3)",
        ),
        (plan_for(t.StringType(), "uuid"), [None, "123"], "'123'", "no uuid"),
        (plan_for(t.LongType(), "int4"), [2**31 - 1, 2**31], "2147483648", "out of the range of int4"),
        (
            plan_for(t.LongType(), "numeric", **NUMERIC_10_2),
            [99_999_999, -100_000_000],
            "-100000000",
            "out of the range of numeric(10,2)",
        ),
        (
            plan_for(t.DecimalType(12, 3), "numeric", **NUMERIC_10_2),
            pa.array([Decimal("1.250"), Decimal("1.255")], pa.decimal128(12, 3)),
            "1.255",
            "fit numeric(10,2) without losing digits",
        ),
        (
            plan_for(t.DecimalType(10, 0), "int2"),
            pa.array([Decimal(32767), Decimal(32768)], pa.decimal128(10, 0)),
            "32768",
            "fit int2",
        ),
        (
            plan_for(t.TimestampNTZType(), "timestamp", type_name="timestamp(3)", type_modifier=3),
            pa.array([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)], pa.timestamp("us")),  # noqa: DTZ001
            "2020-01-01 00:00:00.000001",
            "timestamp(3) would round",
        ),
        (
            plan_for(t.TimestampType(), "timestamptz"),
            pa.array([-210_866_803_200_000_000, -210_866_803_200_000_001]).cast(pa.timestamp("us", tz="UTC")),
            "-210866803200000001",
            "out of the range of timestamptz",
        ),
        (
            plan_for(t.DateType(), "date"),
            pa.array([-2_440_588, -2_440_589], pa.int32()).cast(pa.date32()),
            "-2440589",
            "out of the range of date",
        ),
        (
            plan_for(t.ArrayType(t.StringType()), "text", is_array=True, element_oid=25),
            pa.array([["fine", None], [None, "fine", "\x00"]]),
            r"'\x00'",
            "no NUL character",
        ),
        (
            plan_for(t.ArrayType(t.LongType()), "int2", is_array=True, element_oid=21),
            pa.array([None, [], [1], [40_000]]).slice(2),
            "40000",
            "out of the range of int2",
        ),
    ],
)
def test_value_that_cannot_be_stored_is_refused_with_its_row(
    plan: ColumnPlan, values: Any, shown: str, rule: str
) -> None:
    encoder = CopyEncoder(plan.copy_plan, row_key="id")
    with pytest.raises(UnstorableValueError) as caught:
        encoder.encode(batch_of(values))
    error = caught.value
    assert (error.column, error.row_key, error.value) == ("x", "id=101", shown)
    assert rule in error.rule
    assert encoder.rows == 0
    assert encoder.finish() == b"", "something of the batch was encoded"


def test_null_where_the_table_has_not_null() -> None:
    plan = plan_for(t.StringType(), "text", nullable=False)
    with pytest.raises(UnstorableValueError, match=r"column 'x' of the row with id=101: null .* text NOT NULL"):
        CopyEncoder(plan.copy_plan, row_key="id").encode(batch_of(["a", None]))


def test_null_in_an_upsert_key() -> None:
    plan = plan_for(t.StringType(), "text", keys=["id"])
    batch = pa.record_batch({"id": pa.array([1, None], pa.int64()), "x": ["a", "b"]})
    with pytest.raises(UnstorableValueError, match="column 'id' of the row with x='b'") as caught:
        CopyEncoder(plan.copy_plan, row_key="x").encode(batch)
    assert "an upsert key" in caught.value.rule


def test_row_is_told_by_its_upsert_key_or_its_number() -> None:
    bad = batch_of(["a", "\x00"])
    with pytest.raises(UnstorableValueError) as by_key:
        CopyEncoder(plan_for(t.StringType(), "text", keys=["id"]).copy_plan).encode(bad)
    assert by_key.value.row_key == "id=101"
    encoder = CopyEncoder(TEXT.copy_plan)
    encoder.encode(batch_of(["a"] * 5))
    with pytest.raises(UnstorableValueError) as by_number:
        encoder.encode(bad)
    assert by_number.value.row_key == "number 6 of its task"


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(UnstorableValueError) as caught:
        CopyEncoder(TEXT.copy_plan).encode(batch_of(["\x00" + "x" * 10_000]))
    assert len(caught.value.value) < SHOWN_CHARACTERS_MAX + 30
    assert caught.value.value.endswith("… (10006 characters)")
