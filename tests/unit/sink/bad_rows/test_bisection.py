"""The bisection: exactly the bad rows, each good row kept once, and what it costs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.sink.bad_rows.bad_row import find_refused, try_again


class Table:
    """Takes all rows of a try, or none: where one of them is bad, or its key is there already."""

    def __init__(self, keys: list[int], bad: set[int]) -> None:
        self.keys = keys
        self.bad = bad
        self.kept: list[int] = []
        self.tried: list[int] = []

    def __call__(self, start: int, stop: int) -> str | None:
        self.tried.append(stop - start)
        rows = range(start, stop)
        there = {self.keys[row] for row in self.kept}
        for row in rows:
            if row in self.bad:
                return f"row {row}"
            if self.keys[row] in there:
                return f"row {row} is there"
            there.add(self.keys[row])
        self.kept += rows
        return None


#: How many rows, and which of them are bad.
ROWS = st.integers(0, 300).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, max(count - 1, 0)), max_size=20))
)


@given(ROWS)
def test_exactly_the_bad_rows_are_found(case: tuple[int, set[int]]) -> None:
    """Each with its own refusal; the others are kept, once, in their order."""
    count, bad = case
    bad &= set(range(count))
    table = Table(list(range(count)), bad)
    assert find_refused(count, table, most=count) == [(row, f"row {row}") for row in sorted(bad)]
    assert table.kept == [row for row in range(count) if row not in bad]


@given(st.lists(st.integers(0, 30), max_size=120))
def test_of_rows_with_one_key_the_first_is_kept(keys: list[int]) -> None:
    """Rows that stand in each other's way: those behind the first are refused."""
    table = Table(keys, set())
    refused = [row for row, _ in find_refused(len(keys), table, most=len(keys))]
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    assert table.kept == sorted(first.values())
    assert sorted(refused + table.kept) == list(range(len(keys)))


@given(st.integers(1, 5_000), st.data())
def test_one_bad_row_costs_at_most_three_times_the_rows(count: int, data: st.DataObject) -> None:
    """The whole, its halves, and the halves on the way to it; in some two tries for each halving."""
    bad = data.draw(st.integers(0, count - 1))
    table = Table(list(range(count)), {bad})
    find_refused(count, table, most=1)
    assert sum(table.tried) <= 3 * count
    assert len(table.tried) <= 2 * math.ceil(math.log2(count)) + 2


@given(ROWS, st.integers(0, 5))
def test_no_more_than_one_beyond_the_limit_is_looked_for(case: tuple[int, set[int]], most: int) -> None:
    """With a thousand bad rows, it is known early that there are too many."""
    count, bad = case
    bad &= set(range(count))
    table = Table(list(range(count)), bad)
    found = find_refused(count, table, most=most)
    assert [row for row, _ in found] == sorted(bad)[: most + 1]


def test_a_refusal_that_does_not_come_back_is_no_bad_row() -> None:
    """What a trigger refuses at random, and takes when it is asked once more, is kept."""
    answers = iter(["both", None, None])
    assert find_refused(2, lambda _start, _stop: next(answers), most=2) == []


@pytest.mark.parametrize("refers_to", [{0: 2}, {0: 2, 1: 0}, {2: 1, 1: 0, 0: 3}])
def test_a_row_may_refer_to_one_behind_it(refers_to: dict[int, int]) -> None:
    """Refused at first, and taken when that one is there; what refers to a bad row stays refused."""
    kept: set[int] = set()

    def attempt(start: int, stop: int) -> str | None:
        rows = set(range(start, stop))
        for row in rows:
            if row == 4 or (row in refers_to and refers_to[row] not in kept | rows):
                return f"row {row}"
        kept.update(rows)
        return None

    found = try_again(find_refused(6, attempt, most=6), attempt)
    assert found == [(4, "row 4")]
    assert kept == {0, 1, 2, 3, 5}


def test_nothing_is_tried_again_where_nothing_was_refused() -> None:
    assert try_again([], lambda _start, _stop: "no") == []
