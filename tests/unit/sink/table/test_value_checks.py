"""Each check on whole arrays against the same rule asked of one value at a time. FAILURES C8."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
    text_bytes,
)


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


@given(st.lists(st.text("\x00\\u0é\n"), max_size=5))
def test_escaped_nul_in_what_a_json_writer_wrote(values: list[str]) -> None:
    agrees(JsonWithoutNul(), [json.dumps(v) for v in values], pa.string(), lambda text: "\x00" not in json.loads(text))


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"caf\xe9"])
@pytest.mark.parametrize(("text", "binary"), [(pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())])
def test_bytes_that_are_no_utf8(bad: bytes, text: Any, binary: Any) -> None:
    array = pa.array([b"fine", None, bad, "ü€😀".encode()], binary).view(text)
    assert offends(ValidText(), array) == [False, False, True, False]
    assert offends(ValidText(), array.slice(3)) == [False]


@given(texts("aü😀"))
def test_length_is_counted_in_characters(values: list[str | None]) -> None:
    agrees(TextLength(3, "varchar(3)"), values, pa.string(), lambda text: len(text) <= 3)


@given(st.lists(st.none() | st.uuids().map(str) | st.text("0123456789abcdef-{}\n", max_size=40), max_size=5))
@example(["123E4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000", "", None])
@example(["123e4567-e89b-12d3-a456-426614174000\n", "{123e4567-e89b-12d3-a456-426614174000}"])
def test_uuids_in_canonical_form(values: list[str | None]) -> None:
    form = re.compile("-".join(f"[0-9a-fA-F]{{{digits}}}" for digits in (8, 4, 4, 4, 12)))
    agrees(UUID_TEXT, values, pa.string(), lambda text: form.fullmatch(text) is not None)


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**15) - 1, 2**15), max_size=5))
@example([-(2**15) - 1, -(2**15), 2**15 - 1, 2**15])
def test_integers_in_range(values: list[int | None]) -> None:
    check = WholeNumberRange(-(2**15), 2**15 - 1, "smallint")
    agrees(check, values, pa.int64(), lambda number: -(2**15) <= number < 2**15)


def test_bounds_beyond_the_array_s_own_type() -> None:
    agrees(WholeNumberRange(-99_999, 99_999, "numeric(5,0)"), [-128, 127], pa.int8(), lambda _: True)


@given(st.lists(st.none() | st.dates(), max_size=5))
def test_dates_and_timestamps_are_compared_by_the_number_behind_them(values: list[dt.date | None]) -> None:
    epoch, bound = dt.date(1970, 1, 1), dt.date(1969, 6, 1)
    day = WholeNumberRange((bound - epoch).days, 2**31 - 1, "date")
    agrees(day, values, pa.date32(), lambda date: date >= bound)
    moments = [value and dt.datetime.combine(value, dt.time()) for value in values]
    microsecond = WholeNumberRange((bound - epoch).days * 86_400_000_000, 2**63 - 1, "timestamp")
    agrees(microsecond, moments, pa.timestamp("us"), lambda moment: moment.date() >= bound)


@given(st.lists(st.none() | st.datetimes(), max_size=5))
@example([dt.datetime(1969, 12, 31, 23, 59, 59, 999_000), dt.datetime(1969, 12, 31, 23, 59, 59, 999_001)])  # noqa: DTZ001
def test_fractions_that_would_be_rounded(values: list[dt.datetime | None]) -> None:
    check = WholeMultiple(1000, "timestamp(3)")
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
    check = DecimalRange(high.copy_negate(), high, scale, f"numeric({precision},{scale})")

    def fits(value: Decimal) -> bool:
        number, beyond = unscaled_of(value), 18 - scale
        lost = number % 10**beyond if beyond > 0 else 0
        return lost == 0 and abs(number) * 10 ** max(scale, 0) < 10 ** (precision + 18)

    agrees(check, values, pa.decimal128(38, 18), fits)


def unscaled_of(value: Decimal) -> int:
    sign, digits, exponent = value.as_tuple()
    assert exponent == -18
    return (-1 if sign else 1) * int("".join(map(str, digits)))


def test_bytes_of_texts_are_those_of_the_slice() -> None:
    array = pa.array(["ab", None, "", "cü", "d"])
    assert text_bytes(array.slice(1, 3)).tobytes() == "cü".encode()
    assert text_bytes(pa.array([], pa.string())).size == 0
    assert text_bytes(pa.array([None, None], pa.large_string())).size == 0
