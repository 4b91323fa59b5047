"""COPY: complete streams, binary forms, checks of whole arrays, and refusals that name the row. FAILURES C8."""

from __future__ import annotations

import datetime as dt
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, strategies as st
from pyspark.sql import types as t

from spark_2pc_sink.errors import UnstorableValueError
from spark_2pc_sink.options import Rows
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.sink.rows.catalog import TargetColumn, TargetTable
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan, plan_columns
from spark_2pc_sink.sink.rows.copy_encoder import (
    COPY_TRAILER,
    CopyEncoder,
    array_payload,
    timestamp_payload,
    uuid_payload,
)
from spark_2pc_sink.sink.rows.table_copy import HEADER, READ_BYTES, CopyReader
from spark_2pc_sink.sink.rows.value_checks import (
    UUID_TEXT,
    Check,
    DecimalRange,
    JsonWithoutNul,
    TextLength,
    TextWithoutNul,
    ValidText,
    WholeMultiple,
    WholeNumberRange,
)

ID = TargetColumn(name="id", type_name="bigint", base_type="int8", nullable=False)


def plan_for(spark_type: t.DataType, base_type: str, *, keys: Sequence[str] = (), **more: Any) -> ColumnPlan:
    target = TargetColumn(**{"name": "x", "type_name": base_type, "base_type": base_type, **more})
    table = TargetTable(TableName("orders", "public"), (ID, target), (("id",),))
    rows = Rows("orders", mode="upsert" if keys else "append", keys=keys)
    return plan_columns([("id", t.LongType()), ("x", spark_type)], table, rows)


TEXT = plan_for(t.StringType(), "text")


def batch_of(values: Sequence[Any], arrow_type: Any = None, *, first_id: int = 100) -> Any:
    array = values if isinstance(values, pa.Array) else pa.array(values, arrow_type)
    return pa.record_batch({"id": pa.array(range(first_id, first_id + len(array)), pa.int64()), "x": array})


def encoded(plan: ColumnPlan, *batches: Any) -> list[tuple[bytes | None, ...]]:
    encoder = CopyEncoder(plan.copy_plan)
    return decode(b"".join([*(encoder.encode(encoder.checked(batch)) for batch in batches), encoder.finish()]))


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


def test_all_rows_of_all_batches_arrive_in_order() -> None:
    """Without finish() pgpq keeps up to a MiB: 59 of a million rows were once lost so, without an error."""
    batches = [batch_of([f"row {row}" * 20] * 700, first_id=row * 700) for row in range(60)]
    encoder = CopyEncoder(TEXT.copy_plan)
    pieces = [encoder.encode(encoder.checked(batch)) for batch in batches]
    assert not all(pieces), "nothing was held back: this test shows nothing"
    rows = decode(b"".join([*pieces, encoder.finish()]))
    assert encoder.rows == len(rows) == 60 * 700
    assert rows[-1] == (struct.pack(">q", 60 * 700 - 1), b"row 59" * 20)
    assert [row[0] for row in rows] == [struct.pack(">q", number) for number in range(60 * 700)]


@pytest.mark.parametrize(
    ("spark_type", "base_type", "values"),
    [
        (t.StringType(), "text", pa.array(["ü"], pa.large_string())),
        (t.BinaryType(), "bytea", pa.array([b"\x00"], pa.large_binary())),
        (t.TimestampType(), "timestamptz", pa.array([0], pa.timestamp("us", tz="Asia/Tokyo"))),
    ],
)
def test_what_session_settings_change_makes_no_difference(spark_type: t.DataType, base_type: str, values: Any) -> None:
    usual = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(
        values.type, pa.timestamp("us", tz="UTC")
    )
    plan = plan_for(spark_type, base_type)
    assert encoded(plan, batch_of(values)) == encoded(plan, batch_of(values.cast(usual)))


def test_reader_puts_rows_together_in_pieces_of_bounded_size() -> None:
    """FAILURES C11: the driver never holds all rows in one piece."""
    rows = [bytes([number]) * (READ_BYTES + 10) for number in range(3)]
    reader = CopyReader(iter([rows[0], b"", pa.py_buffer(rows[1] + rows[2])]))
    read = list(iter(reader.read, b""))
    assert b"".join(read) == HEADER + b"".join(rows) + COPY_TRAILER
    assert max(map(len, read)) == READ_BYTES
    assert reader.read() == b""


def test_row_is_told_by_its_upsert_key_or_its_number() -> None:
    bad = batch_of(["a", "\x00"])
    with pytest.raises(UnstorableValueError) as by_key:
        CopyEncoder(plan_for(t.StringType(), "text", keys=["id"]).copy_plan).checked(bad)
    assert by_key.value.row_key == "id=101"
    encoder = CopyEncoder(TEXT.copy_plan)
    encoder.encode(encoder.checked(batch_of(["a"] * 5)))
    with pytest.raises(UnstorableValueError) as by_number:
        encoder.checked(bad)
    assert by_number.value.row_key == "number 6 of its task"


VARCHAR_OID = 1043


def naive_array(elements: list[str | None], *, nulls: bool) -> bytes:
    framed = b"".join(
        struct.pack(">i", -1) if text is None else struct.pack(">i", len(text.encode())) + text.encode()
        for text in elements
    )
    return struct.pack(">iiIii", 1, nulls, VARCHAR_OID, len(elements), 1) + framed


ELEMENTS = st.none() | st.text("aü\x00", max_size=3)


@given(st.lists(st.none() | st.lists(ELEMENTS, max_size=4), max_size=5), st.integers(0, 3), st.booleans())
def test_arrays_of_text(lists: list[list[str | None] | None], start: int, large: bool) -> None:
    whole = pa.array(lists, pa.large_list(pa.large_string()) if large else pa.list_(pa.string()))
    part = whole.slice(start)
    elements = pc.list_flatten(part)
    payload = array_payload(part, elements, element_oid=VARCHAR_OID)
    nulls = elements.null_count > 0
    assert payload.to_pylist() == [
        None if value is None else naive_array(value, nulls=nulls) for value in part.to_pylist()
    ]


@given(st.lists(st.none() | st.datetimes(), max_size=5), st.integers(0, 2))
def test_timestamps(moments: list[dt.datetime | None], start: int) -> None:
    array: Any = pa.array(moments, pa.timestamp("us", tz="Europe/Berlin")).slice(start)
    epoch = dt.datetime(2000, 1, 1)  # noqa: DTZ001 - the difference is what counts
    expected = [
        None if moment is None else struct.pack(">q", (moment - epoch) // dt.timedelta(microseconds=1))
        for moment in moments[start:]
    ]
    assert timestamp_payload(array).to_pylist() == expected


@pytest.mark.parametrize("text_type", [pa.string(), pa.large_string()])
def test_uuids(text_type: Any) -> None:
    some = uuid.UUID("123E4567-E89B-12D3-A456-426614174000")
    array = pa.array(["gone", None, str(some), str(some).upper(), str(uuid.UUID(int=0))], text_type).slice(1)
    assert uuid_payload(array).to_pylist() == [None, some.bytes, some.bytes, bytes(16)]


def offends(check: Check, values: Any) -> list[bool]:
    found = check.offenders(values)
    if found is None:
        return [False] * len(values)
    assert found.null_count == 0
    assert found.true_count > 0, "a mask without an offender"
    return list(found.to_pylist())


def agrees(check: Check, values: list[Any], arrow_type: Any, fits: Callable[[Any], bool]) -> None:
    """The check says of each value what ``fits`` says, also in a slice, where what is outside does not count."""
    array = pa.array(values, arrow_type)
    expected = [value is not None and not fits(value) for value in values]
    assert offends(check, array) == expected
    assert offends(check, array.slice(1, 2)) == expected[1:3]


def texts(alphabet: str) -> st.SearchStrategy[list[str | None]]:
    return st.lists(st.none() | st.text(alphabet, max_size=6), max_size=6)


@given(texts("ab\x00ü"), st.sampled_from([pa.string(), pa.large_string()]))
@example(["a", "b\x00", None, "\x00"], pa.string())
def test_nul_in_text(values: list[str | None], arrow_type: Any) -> None:
    agrees(TextWithoutNul(), values, arrow_type, lambda text: "\x00" not in text)


def test_nul_in_the_slot_of_a_null_is_no_offence() -> None:
    hidden = pa.Array.from_buffers(
        pa.string(), 1, [pa.py_buffer(b"\x00"), pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\x00")]
    )
    assert hidden.to_pylist() == [None]
    assert TextWithoutNul().offenders(hidden) is None


@given(texts("\\u0x"))
@example([r"\u0000", r"\\u0000", r"\\\u0000", r"x\u0000", r"x\\\\u0000", r"\\\\\u0000", None])
def test_escaped_nul_in_json(values: list[str | None]) -> None:
    agrees(JsonWithoutNul(), values, pa.string(), lambda text: not escapes_nul(text))


def escapes_nul(text: str) -> bool:
    """Read escape by escape, as a JSON parser does."""
    return any(escape == r"\u0000" for escape in re.findall(r"\\u[0-9a-fA-F]{4}|\\.", text, re.DOTALL))


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"caf\xe9"])
def test_bytes_that_are_no_utf8(bad: bytes) -> None:
    array = pa.array([b"fine", None, bad, "ü€😀".encode()], pa.binary()).view(pa.string())
    assert offends(ValidText(), array) == [False, False, True, False]
    assert offends(ValidText(), array.slice(3)) == [False]


@given(texts("aü😀"))
def test_length_is_counted_in_characters(values: list[str | None]) -> None:
    agrees(TextLength(3), values, pa.string(), lambda text: len(text) <= 3)


@given(st.lists(st.none() | st.uuids().map(str) | st.text("0123456789abcdef-{}\n", max_size=40), max_size=5))
@example(["123E4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000", "", None])
@example(["123e4567-e89b-12d3-a456-426614174000\n", "{123e4567-e89b-12d3-a456-426614174000}"])
def test_uuids_in_canonical_form(values: list[str | None]) -> None:
    form = re.compile("-".join(f"[0-9a-fA-F]{{{digits}}}" for digits in (8, 4, 4, 4, 12)))
    agrees(UUID_TEXT, values, pa.string(), lambda text: form.fullmatch(text) is not None)


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**15) - 1, 2**15), max_size=5))
@example([-(2**15) - 1, -(2**15), 2**15 - 1, 2**15])
def test_integers_in_range(values: list[int | None]) -> None:
    check = WholeNumberRange(-(2**15), 2**15 - 1)
    agrees(check, values, pa.int64(), lambda number: -(2**15) <= number < 2**15)


@given(st.lists(st.none() | st.datetimes(), max_size=5))
@example([dt.datetime(1969, 12, 31, 23, 59, 59, 999_000), dt.datetime(1969, 12, 31, 23, 59, 59, 999_001)])  # noqa: DTZ001
def test_fractions_that_would_be_rounded(values: list[dt.datetime | None]) -> None:
    check = WholeMultiple(1000)
    agrees(check, values, pa.timestamp("us"), lambda moment: moment.microsecond % 1000 == 0)


DIGITS_38 = 10**38 - 1


@given(
    st.lists(
        st.none() | st.integers(-DIGITS_38, DIGITS_38) | st.integers(-(10**6), 10**6).map(lambda n: n * 10**14),
        max_size=5,
    ),
    st.sampled_from([(10, 2), (38, 10), (20, 18), (5, 5), (3, 5), (38, 0)]),
)
@example([99_999_999 * 10**18 + 99 * 10**16, 10**8 * 10**18, 10**15, 10**16, 0], (10, 2))
def test_decimals_that_lose_no_digit(unscaled: list[int | None], limits: tuple[int, int]) -> None:
    """Compared as integers: 38 digits are more than decimal.Decimal computes with by itself."""
    precision, scale = limits
    values = [None if number is None else Decimal(f"{number}E-18") for number in unscaled]
    high = Decimal(f"{10**precision - 1}E-{scale}")
    check = DecimalRange(high.copy_negate(), high, scale)

    def fits(value: Decimal) -> bool:
        number, beyond = unscaled_of(value), 18 - scale
        lost = number % 10**beyond if beyond > 0 else 0
        return lost == 0 and abs(number) * 10 ** max(scale, 0) < 10 ** (precision + 18)

    agrees(check, values, pa.decimal128(38, 18), fits)


def unscaled_of(value: Decimal) -> int:
    sign, digits, exponent = value.as_tuple()
    assert exponent == -18
    return (-1 if sign else 1) * int("".join(map(str, digits)))
