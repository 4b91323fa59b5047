"""Multisets: equal whatever the order, and differences that say which kind they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.testing import assert_same_multiset, multiset_difference


@given(st.lists(st.integers(0, 5)))
def test_order_does_not_matter(elements: list[int]) -> None:
    assert not multiset_difference(sorted(elements), elements)


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_every_element_is_accounted_for(actual: list[int], expected: list[int]) -> None:
    difference = multiset_difference(actual, expected)
    surplus = difference.duplicated.total() + difference.foreign.total()
    assert difference.actual - surplus == difference.expected - difference.missing.total()
    assert bool(difference) == (sorted(actual) != sorted(expected))


def test_missing_twice_and_foreign_are_told_apart() -> None:
    with pytest.raises(AssertionError) as raised:
        assert_same_multiset(["a", "a", "z"], ["a", "b"], what="records in t")
    assert str(raised.value).splitlines() == [
        "records in t: 3 found, 2 expected",
        "missing: 1 of 1 different",
        "  1 x 'b'",
        "twice: 1 of 1 different",
        "  1 x 'a'",
        "foreign: 1 of 1 different",
        "  1 x 'z'",
    ]


def test_a_long_difference_is_cut() -> None:
    assert str(multiset_difference(range(1000), [])).splitlines()[-1] == "  …"
