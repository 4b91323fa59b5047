"""Rows that others of their key supersede: against the plainest way to find them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.sink.tasks.superseded_rows import Superseded, find_superseded

ROWS = st.lists(st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 3)), max_size=25)


def plain(rows: list[tuple[int | None, int | None]]) -> Superseded:
    def greatness(order: int | None) -> int:
        return -1 if order is None else order

    lost, early = [], []
    for number, (key, order) in enumerate(rows):
        same = [(other, greatness(value)) for other, (name, value) in enumerate(rows) if name == key is not None]
        best = max((value for _, value in same), default=greatness(order))
        lost.append(greatness(order) < best)
        early.append(not lost[-1] and any(value < best for other, value in same if other > number))
    return Superseded(np.array(lost, bool), np.array(early, bool))


def identities(keys: list[int | None], width: int) -> Any:
    """As `row_identities` makes them of counts, or, of equal first words, of anything else."""
    if not width:
        return pa.array(keys, pa.int64())
    return pa.array([None if key is None else bytes(8) + key.to_bytes(8, "big") for key in keys], pa.binary(width))


@pytest.mark.parametrize("width", [0, 16], ids=["counts", "hashes whose first words are equal"])
@given(rows=ROWS)
def test_they_are_those_below_the_greatest_of_their_key(width: int, rows: list[tuple[int | None, int | None]]) -> None:
    expected = plain(rows)
    found = find_superseded(identities([key for key, _ in rows], width), pa.array([o for _, o in rows], pa.int64()))
    assert found.lost.tolist() == expected.lost.tolist()
    assert found.early.tolist() == expected.early.tolist()


@pytest.mark.parametrize(
    "orders", [pa.array([b"B", b"a", None]), pa.array([1, 2, None]), pa.array([1, 2, None]).cast(pa.decimal128(20, 0))]
)
def test_orders_of_each_kind(orders: pa.Array) -> None:
    found = find_superseded(pa.array([7, 7, 7]), orders)
    assert found.lost.tolist() == [True, False, True]
    assert found.early.tolist() == [False, True, False]


def test_slices_are_compared_by_their_own_rows() -> None:
    keys = identities([9, 1, 2, 1, 9], 16).slice(1, 3)
    found = find_superseded(keys, pa.array([0, 5, 6, 4, 0]).slice(1, 3))
    assert found.lost.tolist() == [False, False, True]
