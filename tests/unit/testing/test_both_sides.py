"""The assertion made of verify."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import assert_same_on_both_sides
from spark_2pc_sink.verification import api

SAME = VerifyReport(transactional_id="orders", verdict="same")
SIDES: dict[str, Any] = {"transactional_id": "orders", "kafka": {"bootstrap.servers": "h:1"}, "database": "d"}


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_answer(report: VerifyReport) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def verify(**named: Any) -> VerifyReport:
            asked.update(named)
            return report

        monkeypatch.setattr(api, "verify", verify)
        return asked

    return set_answer


def test_equal_sides_pass_and_the_report_is_returned(answer: Any) -> None:
    asked = answer(SAME)
    assert assert_same_on_both_sides(**SIDES, table="t", since=3) is SAME
    assert asked == {**SIDES, "table": "t", "since": 3}


@pytest.mark.parametrize(
    "report",
    [
        replace(SAME, verdict="different", counts={"gap": 1}),
        replace(SAME, verdict="inconclusive"),
        replace(SAME, known=False),
    ],
    ids=["different", "not checked", "not known"],
)
def test_anything_else_fails_with_the_report(answer: Any, report: VerifyReport) -> None:
    answer(report)
    with pytest.raises(AssertionError) as failed:
        assert_same_on_both_sides(**SIDES)
    assert str(failed.value) == str(report)
