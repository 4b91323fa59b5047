"""The report of `status`: its summary, what it counts as in doubt, and its JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from jdbc_state.sessions import Liveness
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recovery.report import RecoveryReport, duration
from spark_2pc_sink.recovery.status import StatusReport, UnreadableSink
from tests.unit.recovery.test_report import REPORT, ROW

LIVES = Liveness(alive=True, detail="as it is")
FINE = replace(REPORT, actions=())
DECIDED = replace(REPORT, settled=False, row=ROW, dry_run=True, actions=())
DONE = replace(ROW, status="done")
OPEN = replace(DECIDED, before=DONE, row=DONE, prepared_s=7.0)


@pytest.mark.parametrize(
    ("report", "condition"),
    [
        (FINE, "fine"),
        (replace(FINE, known=False, row=None), "not_known"),
        (replace(DECIDED, known=None, row=None), "unclear"),
        (DECIDED, "in_doubt"),
        (replace(DECIDED, driver=LIVES), "in_doubt"),
        (replace(DECIDED, row=replace(ROW, status="owed")), "owed"),
        (replace(DECIDED, row=replace(ROW, status="owed"), cause=HaltCause.DATABASE_BEHIND), "in_doubt"),
        (replace(DECIDED, elsewhere=True), "elsewhere"),
        (OPEN, "in_doubt"),
        (replace(OPEN, driver=LIVES), "at_work"),
        (replace(OPEN, driver=replace(LIVES, alive=None)), "in_doubt"),
        (replace(OPEN, driver=LIVES, cause=HaltCause.DATABASE_BEHIND), "in_doubt"),
        (replace(OPEN, driver=LIVES, before=None), "in_doubt"),
    ],
)
def test_the_condition_of_a_sink(report: RecoveryReport, condition: str) -> None:
    """An open transaction of a driver that lives is a batch at work; a decision that Kafka lacks is in doubt."""
    assert report.condition == condition
    assert bool(StatusReport(sinks=(report,)).in_doubt) is (condition in {"in_doubt", "owed"})


@pytest.mark.parametrize(
    ("sinks", "summary"),
    [
        ([], "0 sinks"),
        ([FINE], "1 sink: 1 healthy"),
        (
            [FINE, replace(DECIDED, elsewhere=True), DECIDED, DECIDED, FINE, replace(OPEN, driver=LIVES)],
            "6 sinks: 2 healthy, 1 at work, 2 in doubt (for 0:01:00), 1 elsewhere",
        ),
        ([OPEN], "1 sink: 1 in doubt (for 0:00:07)"),
    ],
)
def test_the_summary(sinks: list[RecoveryReport], summary: str) -> None:
    """What is well comes first; of what a person has to look after it says for how long."""
    each = (replace(report, transactional_id=f"orders-{number}") for number, report in enumerate(sinks))
    assert StatusReport(sinks=tuple(each)).summary == summary


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0:00:00"), (192, "0:03:12"), (3_600 * 30, "1d 6:00:00"), (86_399, "23:59:59")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_json() -> None:
    """The same names whatever was found."""
    broken = UnreadableSink("bad", "database", "status 'gone' must be one of none, decided, done, owed")
    late = replace(DECIDED, transactional_id="late")
    found = StatusReport(sinks=(FINE, late), unreadable=(broken,), kafka_problem="down")
    printed: dict[str, Any] = json.loads(json.dumps(found.as_json()))
    assert printed["summary"] == "3 sinks: 1 healthy, 1 in doubt (for 0:01:00), 1 unreadable"
    assert [sink["transactional_id"] for sink in printed["sinks"]] == ["orders", "late"]
    assert printed["in_doubt"] == ["late"]
    assert printed["unreadable"] == [{"transactional_id": "bad", "side": "database", "problem": broken.problem}]
    assert (printed["kafka_problem"], printed["database_problem"]) == ("down", None)
    assert not found.complete
    assert StatusReport().as_json().keys() == printed.keys()
