"""Status: what is asked, shown and waited for; the text of all sinks fits on a screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.cli import sinks as command
from spark_2pc_sink.cli.sinks import (
    DETAILS_MAX,
    ROWS_MAX,
    exit_code_of,
    ordered,
    status_text,
    wait_until_settled,
)
from spark_2pc_sink.recovery.report import Action, RecoveryReport, StatusReport, UnreadableSink
from tests.harness.json_contract import read_output
from tests.unit.recovery.test_report import DECIDED, FINE, LIVES, OPEN, ROW

SIDES = ["--bootstrap-server", "h:1", "--database", "postgresql://h/d"]
UNKNOWN = replace(FINE, known=False, row=None, before=None)
AWAY = replace(DECIDED, elsewhere=True)
BROKEN = UnreadableSink("bad", "database", "no pair")

Give = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Lets looks find these reports, one after the other; returns what they were asked."""

    def given(*reports: StatusReport) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def status(**options: Any) -> StatusReport:
            asked.append(options)
            return reports[min(len(asked), len(reports)) - 1]

        monkeypatch.setattr(command, "status", status)
        return asked

    return given


def test_the_file_of_the_sink_needs_no_flag(
    give: Give, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = give(StatusReport(sinks=(FINE,)))
    monkeypatch.chdir(tmp_path)
    kafka = '[kafka]\n"bootstrap.servers" = "h:1"\n'
    Path("orders.toml").write_text(f'transactional_id = "orders"\ndatabase = "postgresql://h/d"\n{kafka}')
    assert cli.main(["status", "orders.toml"]) == cli.main(["status", "--config", "orders.toml"]) == 0
    assert asked[0] == asked[1]
    assert asked[0]["transactional_id"] == "orders"
    assert capsys.readouterr().out.startswith("orders: healthy, batch 7 on both sides\n  database: ")


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (StatusReport(sinks=(FINE, AWAY)), 0),
        (StatusReport(sinks=(replace(OPEN, driver=LIVES),)), 0),
        (StatusReport(sinks=(FINE, DECIDED, UNKNOWN), unreadable=(BROKEN,)), 3),
        (StatusReport(sinks=(FINE,), unreadable=(BROKEN,)), 1),
        (StatusReport(sinks=(DECIDED,), kafka_problem="down"), 1),
        (StatusReport(sinks=(FINE,), database_problem="down"), 1),
        (StatusReport(sinks=(UNKNOWN,)), 4),
        (StatusReport(sinks=(AWAY,)), 4),
        (StatusReport(), 4),
    ],
)
def test_exit_codes(found: StatusReport, code: int) -> None:
    """1 before 3: what was seen of one side alone is no answer. 3 before 1 where only a row could not be understood."""
    assert exit_code_of(found) == code


def test_what_was_said_is_passed_on(give: Give, capsys: pytest.CaptureFixture[str]) -> None:
    asked = give(StatusReport(note="there is no table"))
    words = ["status", *SIDES, "--match", "orders-*", "--timeout", "3", "--state-schema", "ops"]
    assert cli.main(words) == 4
    assert asked == [
        {
            "kafka": {"bootstrap.servers": "h:1"},
            "database": "postgresql://h/d",
            "state_schema": "ops",
            "match": "orders-*",
            "timeout_s": 3,
        }
    ]
    assert capsys.readouterr().out == "0 sinks\nthere is no table\n"


def test_json_has_what_was_asked_for(give: Give, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the schema; with --in-doubt only those, and the summary of all."""
    give(StatusReport(sinks=(FINE, replace(DECIDED, transactional_id="late")), unreadable=(BROKEN,)))
    assert cli.main(["status", *SIDES, "--json"]) == 3
    printed = read_output(capsys.readouterr().out)
    assert [sink["transactional_id"] for sink in printed["sinks"]] == ["orders", "late"]
    assert (printed["in_doubt"], printed["unreadable"][0]["side"]) == (["late"], "database")
    cli.main(["status", *SIDES, "--json", "--in-doubt"])
    printed = read_output(capsys.readouterr().out)
    assert [sink["transactional_id"] for sink in printed["sinks"]] == ["late"]
    assert printed["summary"] == "3 sinks: 1 healthy, 1 in doubt (for 0:01:00), 1 unreadable"


class Looks:
    """Looks of which each takes two seconds, by a clock that only moves with them and with pauses."""

    def __init__(self, *found: StatusReport) -> None:
        self.found = list(found)
        self.time_s = 0.0
        self.said: list[str] = []

    def look(self) -> StatusReport:
        self.time_s += 2.0
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds

    def wait(self, limit_s: int) -> StatusReport:
        return wait_until_settled(self.look, limit_s, self.said.append, self)


WAITED = StatusReport(sinks=(FINE, DECIDED))
SETTLED = StatusReport(sinks=(FINE, AWAY))


def test_it_waits_until_nothing_is_in_doubt() -> None:
    """What it waits for is said when it changes, and once."""
    older = replace(WAITED, sinks=(FINE, replace(DECIDED, row=replace(ROW, decided_age_s=61.0))))
    down = replace(WAITED, kafka_problem="down")
    looks = Looks(WAITED, older, down, StatusReport(database_problem="down"), SETTLED)
    assert looks.wait(60) is SETTLED
    assert looks.said == [
        "waiting for orders (in doubt, batch 7)",
        "waiting for Kafka, which cannot be read; orders (in doubt, batch 7)",
        "waiting for the database, which cannot be read",
    ]


COMMITS = replace(DECIDED, actions=(Action("commit", "would commit"),), remedies=("start the job",))


def named(report: RecoveryReport, name: str) -> RecoveryReport:
    return replace(report, transactional_id=name)


def forty(in_doubt: int = 2) -> StatusReport:
    bad = [named(COMMITS, f"orders-{number:02}") for number in range(in_doubt)]
    return StatusReport(sinks=(*bad, *(named(FINE, f"orders-{number:02}") for number in range(in_doubt, 40))))


def test_where_many_are_in_doubt_only_some_have_details() -> None:
    """And not more rows than a screen has; what is left out is counted."""
    text = status_text(forty(in_doubt=30))
    assert text.count("IN DOUBT") == ROWS_MAX + DETAILS_MAX
    assert "and 20 more (see --all)" in text
    assert text.count("  reason:   because") == DETAILS_MAX
    assert f"{ROWS_MAX - DETAILS_MAX} more in doubt: --details or --transactional-id ID shows what to do" in text
    text = status_text(forty(in_doubt=3), details=True)
    assert text.count("  reason:   because") == 3
    assert "more in doubt" not in text


def test_the_order() -> None:
    """What needs a person first, the oldest of it first; then by name."""
    old = named(replace(COMMITS, row=replace(ROW, decided_age_s=600.0)), "old")
    busy, away = named(replace(OPEN, driver=LIVES), "busy"), named(replace(DECIDED, elsewhere=True), "away")
    found = ordered([away, named(FINE, "b"), named(FINE, "a"), busy, COMMITS, old])
    assert [report.transactional_id for report in found] == ["old", "orders", "busy", "a", "b", "away"]
