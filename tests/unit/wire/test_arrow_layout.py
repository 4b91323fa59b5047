"""Binary columns in every layout of Arrow, varints, and the bytes of rows, seen as NumPy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.wire.arrow_layout import (
    Varints,
    as_binary,
    as_one_array,
    binary_array,
    binary_layout,
    encode_varint_rows,
)
from spark_2pc_sink.wire.batch_format import encode_varint as our_varint
from spark_2pc_sink.wire.batch_format import read_unsigned, read_varint
from spark_2pc_sink.wire.row_bytes import (
    chosen_rows,
    fixed_rows,
    grouped_rows,
    joined_rows,
    row_sizes,
    spread_rows,
    varint_rows,
)
from tests.unit.wire.rows import LAYOUTS


@given(
    st.lists(st.none() | st.binary(max_size=9), max_size=20),
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]),
)
def test_every_layout_gives_the_bytes_of_its_rows(items: list[bytes | None], layout: str, kind: Any) -> None:
    column = pa.array(items, pa.binary())
    seen = binary_layout(as_binary(as_one_array(LAYOUTS[layout](column)).cast(kind), "key"))

    assert [bytes(seen.data[start : start + size]) for start, size in zip(seen.starts, seen.lengths, strict=True)] == [
        item or b"" for item in items
    ]
    assert (seen.valid is None) == (None not in items)
    if seen.valid is not None:
        assert seen.valid.tolist() == [item is not None for item in items]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_strings_are_their_utf8_bytes(kind: Any) -> None:
    assert as_binary(pa.array(["naïve", None, ""], kind), "key").to_pylist() == ["naïve".encode(), None, b""]


def test_a_column_that_is_not_bytes_is_refused_by_name() -> None:
    with pytest.raises(LocalProtocolError, match="'amount' as bytes in state Arrow type int64"):
        as_binary(pa.array([1]), "amount")


def test_chunks_beyond_the_bound_become_large_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the test below, with a bound that needs no gigabytes."""
    short, long = (pa.chunked_array([[b"abc"], [b"d" * size]], pa.binary()) for size in (1, 4))
    monkeypatch.setattr("spark_2pc_sink.wire.arrow_layout.INT32_BYTES_MAX", short.nbytes)
    assert pa.types.is_binary(as_one_array(short).type)
    assert pa.types.is_large_binary(as_one_array(long).type)
    assert as_one_array(long).to_pylist() == [b"abc", b"dddd"]


def test_binary_array_takes_its_rows_from_the_offsets() -> None:
    data = np.frombuffer(b"abcd", np.uint8)
    assert binary_array(data, np.array([0, 1, 1, 4])).to_pylist() == [b"a", b"", b"bcd"]


INT32 = st.integers(-(2**31), 2**31 - 1)


def kafka_varint(number: int) -> bytes:
    written = bytearray()
    encode_varint(number, written.append)
    return bytes(written)


@given(st.lists(st.tuples(INT32, INT32), max_size=40))
@example([(64 if row % 2 else 8192, row) for row in range(40)])  # sizes change often, and none is a single byte
def test_rows_are_what_kafka_python_writes(numbers: list[tuple[int, int]]) -> None:
    columns = [np.array([pair[side] for pair in numbers], np.int64) for side in (0, 1)]
    data, offsets = encode_varint_rows([Varints.of(columns[0]), None, Varints.of(columns[1])], len(numbers))

    rows = [bytes(data[start:stop]) for start, stop in pairwise(offsets)]
    assert rows == [kafka_varint(left) + b"\x00" + kafka_varint(right) for left, right in numbers]


@pytest.mark.parametrize("bits", [6, 13, 20, 27])
def test_a_varint_grows_exactly_at_its_corners(bits: int) -> None:
    corners = np.array([2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1], np.int64)
    expected = [len(kafka_varint(int(corner))) for corner in corners]
    assert Varints.of(corners).sizes.tolist() == expected
    assert expected == [bits // 7 + 1, bits // 7 + 2, bits // 7 + 1, bits // 7 + 2]


@given(st.integers(-(2**63), 2**63 - 1))
def test_one_number_is_what_kafka_python_writes_and_reads_back(number: int) -> None:
    data = our_varint(number)
    assert data == kafka_varint(number)
    assert read_varint(b"x" + data + b"y", 1) == (number, 1 + len(data))


def test_a_varint_that_does_not_end_in_time_is_refused() -> None:
    assert read_unsigned(b"\xff\xff\xff\xff\x0f", 0, bytes_max=5) == (2**32 - 1, 5)
    with pytest.raises(IndexError, match="more than 5 bytes"):
        read_unsigned(b"\xff" * 9, 0, bytes_max=5)


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


@given(ROWS)
def test_pieces_are_joined(rows: list[bytes]) -> None:
    found = joined_rows([b"<", b"-", column(rows), b"|", column(rows), b">"], len(rows))
    assert found.to_pylist() == [b"<-" + row + b"|" + row + b">" for row in rows]
    assert row_sizes(found).tolist() == [2 * len(row) + 4 for row in rows]
    assert joined_rows([b"a", b"b"], len(rows)).to_pylist() == [b"ab"] * len(rows)


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
