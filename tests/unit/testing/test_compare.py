"""Multisets, with differences by their kind, and the assertion that uses verify."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import assert_same_multiset, assert_same_on_both_sides, multiset_difference
from spark_2pc_sink.verification import api

SAME = VerifyReport(transactional_id="orders", verdict="same")
SIDES: dict[str, Any] = {"transactional_id": "orders", "kafka": {"bootstrap.servers": "h:1"}, "database": "d"}


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


def test_equal_sides_pass_and_the_report_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = mock.Mock(return_value=SAME)
    monkeypatch.setattr(api, "verify", verify)
    assert assert_same_on_both_sides(**SIDES, table="t", since=3) is SAME
    assert verify.call_args == mock.call(**SIDES, table="t", since=3)


@pytest.mark.parametrize(
    "report",
    [
        replace(SAME, verdict="different", counts={"gap": 1}),
        replace(SAME, verdict="inconclusive"),
        replace(SAME, known=False),
    ],
    ids=["different", "not checked", "not known"],
)
def test_anything_else_fails_with_the_report(monkeypatch: pytest.MonkeyPatch, report: VerifyReport) -> None:
    monkeypatch.setattr(api, "verify", mock.Mock(return_value=report))
    with pytest.raises(AssertionError) as failed:
        assert_same_on_both_sides(**SIDES)
    assert str(failed.value) == str(report)
