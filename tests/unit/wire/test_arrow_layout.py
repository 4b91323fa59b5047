"""Binary columns in every layout of Arrow, seen as NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.wire.arrow_layout import as_binary, as_one_array, binary_array, binary_layout
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


def test_fixed_size_and_null_columns_are_taken_too() -> None:
    assert as_binary(pa.array([b"ab", None], pa.binary(2)), "key").to_pylist() == [b"ab", None]
    assert as_binary(pa.nulls(2), "key").to_pylist() == [None, None]


def test_a_column_that_is_not_bytes_is_refused_by_name() -> None:
    with pytest.raises(LocalProtocolError, match="'amount' as bytes in state Arrow type int64"):
        as_binary(pa.array([1]), "amount")


def test_a_binary_column_is_not_copied() -> None:
    column = pa.array([b"a", b"bc"])
    seen = binary_layout(as_binary(column, "key"))
    assert seen.data.ctypes.data == column.buffers()[2].address


def test_chunks_beyond_the_bound_become_large_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the test below, with a bound that needs no gigabytes."""
    short, long = (pa.chunked_array([[b"abc"], [b"d" * size]], pa.binary()) for size in (1, 4))
    monkeypatch.setattr("spark_2pc_sink.wire.arrow_layout.INT32_BYTES_MAX", short.nbytes)
    assert pa.types.is_binary(as_one_array(short).type)
    assert pa.types.is_large_binary(as_one_array(long).type)
    assert as_one_array(long).to_pylist() == [b"abc", b"dddd"]


@pytest.mark.thorough
def test_chunks_beyond_two_gibibytes_become_large_binary() -> None:
    """32-bit offsets end at 2 GiB; a column of two chunks that are together larger must not lose its tail."""
    chunk = pa.array([b"x" * 2**20], pa.binary())
    many = pa.chunked_array([pa.concat_arrays([chunk] * 1025)] * 2)

    joined = as_one_array(many)

    assert pa.types.is_large_binary(joined.type)
    seen = binary_layout(joined)
    assert len(joined) == 2050
    assert int(seen.lengths.sum()) == 2050 * 2**20


def test_binary_array_takes_its_rows_from_the_offsets() -> None:
    data = np.frombuffer(b"abcd", np.uint8)
    assert binary_array(data, np.array([0, 1, 1, 4])).to_pylist() == [b"a", b"", b"bcd"]
