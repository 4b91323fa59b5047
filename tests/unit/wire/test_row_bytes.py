"""Bytes of rows: pieces that are joined, spread over absent rows and grouped, against Python's own bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.wire.arrow_layout import Varints
from spark_2pc_sink.wire.row_bytes import (
    chosen_rows,
    fixed_rows,
    grouped_rows,
    joined_rows,
    row_sizes,
    spread_rows,
    varint_rows,
)

ROWS = st.lists(st.binary(max_size=5), max_size=10)


def column(rows: list[bytes]) -> pa.Array:
    """A slice, with a row before and behind."""
    return pa.array([b"before", *rows, b"behind"], pa.large_binary()).slice(1, len(rows))


def plain_varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=20))
def test_unsigned_varints_have_64_bits(numbers: list[int]) -> None:
    found = varint_rows(Varints.of_unsigned(np.array(numbers, np.uint64)))
    assert found.to_pylist() == [plain_varint(number) for number in numbers]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=20))
def test_signed_varints_have_64_bits(numbers: list[int]) -> None:
    found = varint_rows(Varints.of(np.array(numbers, np.int64)))
    zigzag = [number << 1 if number >= 0 else ~number << 1 | 1 for number in numbers]
    assert found.to_pylist() == [plain_varint(number) for number in zigzag]


@given(ROWS)
def test_pieces_are_joined(rows: list[bytes]) -> None:
    found = joined_rows([b"<", b"-", column(rows), b"|", column(rows), b">"], len(rows))
    assert found.to_pylist() == [b"<-" + row + b"|" + row + b">" for row in rows]
    assert row_sizes(found).tolist() == [2 * len(row) + 4 for row in rows]


@pytest.mark.parametrize("count", [0, 3])
def test_pieces_that_all_rows_have_are_rows_too(count: int) -> None:
    assert joined_rows([b"a", b"b"], count).to_pylist() == [b"ab"] * count
    assert joined_rows([], count).to_pylist() == [b""] * count


@given(ROWS, st.data())
def test_rows_are_spread(rows: list[bytes], data: st.DataObject) -> None:
    there = data.draw(st.permutations([True] * len(rows) + [False] * 3))
    left = iter(rows)
    expected = [next(left) if each else b"" for each in there]
    assert spread_rows(column(rows), np.array(there)).to_pylist() == expected


@given(st.lists(ROWS, max_size=5))
def test_rows_are_grouped(groups: list[list[bytes]]) -> None:
    rows = [row for group in groups for row in group]
    counts = np.array([len(group) for group in groups], np.int64)
    assert grouped_rows(column(rows), counts).to_pylist() == [b"".join(group) for group in groups]


def test_numbers_and_chosen_bytes() -> None:
    assert fixed_rows(np.array([1.5], "<f8")).to_pylist() == [b"\0\0\0\0\0\0\xf8?"]
    matrix = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    chosen = np.array([[True, False, True], [False, False, True]])
    assert chosen_rows(matrix, chosen).to_pylist() == [b"\x01\x03", b"\x06"]
