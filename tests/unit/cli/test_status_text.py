"""The text of a status: on one screen, what needs a person first."""

from __future__ import annotations

from dataclasses import replace

from jdbc_state.sessions import DriverSession
from spark_2pc_sink.cli.status import DETAILS_MAX, ROWS_MAX, Shown, ordered, status_text
from spark_2pc_sink.recovery.report import Action, RecoveryReport
from spark_2pc_sink.recovery.status import StatusReport, UnreadableSink
from tests.unit.recovery.test_report import ROW
from tests.unit.recovery.test_status import DECIDED, FINE, LIVES, OPEN

SESSION = DriverSession(4711, "app", hidden=False, address="10.0.0.1")
COMMITS = replace(DECIDED, actions=(Action("commit", "would commit"),), remedies=("start the job",))


def named(report: RecoveryReport, name: str) -> RecoveryReport:
    return replace(report, transactional_id=name)


def forty(in_doubt: int = 2) -> StatusReport:
    """Forty sinks, of which some are in doubt."""
    bad = [named(COMMITS, f"orders-{number:02}") for number in range(in_doubt)]
    return StatusReport(sinks=(*bad, *(named(FINE, f"orders-{number:02}") for number in range(in_doubt, 40))))


def test_forty_sinks_fit_on_one_screen() -> None:
    """A summary, those in doubt with their details, and how the rest is seen."""
    text = status_text(forty(), Shown())
    lines = text.splitlines()
    assert lines[:5] == [
        "40 sinks: 38 healthy, 2 in doubt (for 0:01:00)",
        "",
        "orders-00: IN DOUBT for 1 min, the database has batch 7, and Kafka has not confirmed it",
        "orders-01: IN DOUBT for 1 min, the database has batch 7, and Kafka has not confirmed it",
        "and 38 more, which --all shows",
    ]
    assert text.count("  to settle: start the job\n") == 2
    assert len(lines) <= 30


def test_all_of_them_are_shown_where_that_is_wanted() -> None:
    text = status_text(forty(), Shown(everything=True))
    assert "\norders-39: healthy, batch 7 in both\n" in text
    assert "more, which" not in text


def test_where_many_are_in_doubt_only_some_have_details() -> None:
    """And not more rows than a screen has; what is left out is counted."""
    text = status_text(forty(in_doubt=30), Shown())
    assert text.count("IN DOUBT") == ROWS_MAX + DETAILS_MAX
    assert "and 20 more, which --all shows" in text
    assert text.count("  because:  because") == DETAILS_MAX
    assert f"{ROWS_MAX - DETAILS_MAX} more in doubt: --details, or --transactional-id ID, shows what to do" in text
    text = status_text(forty(in_doubt=3), Shown(details=True))
    assert text.count("  because:  because") == 3
    assert "more in doubt" not in text


def test_only_those_in_doubt() -> None:
    text = status_text(forty(), Shown(in_doubt=True))
    assert "orders-02" not in text
    assert "which --all shows" not in text
    assert text.startswith("40 sinks: 38 healthy, 2 in doubt")


def test_one_sink_has_its_verdict_first_and_then_details() -> None:
    text = status_text(StatusReport(sinks=(FINE,)), Shown(), one=True)
    assert text.startswith("orders: healthy, batch 7 in both\n  database: batch 7")


def test_few_sinks_are_all_listed() -> None:
    text = status_text(StatusReport(sinks=(FINE, named(FINE, "payments"))), Shown())
    assert "\npayments: healthy, batch 7 in both" in text
    assert "IN DOUBT" not in text


def test_what_could_not_be_read_comes_first() -> None:
    broken = UnreadableSink("bad", "database", "status 'gone' is none of …")
    found = StatusReport(sinks=(FINE,), unreadable=(broken,), kafka_problem="no broker answered")
    assert status_text(found, Shown()).splitlines()[:3] == [
        "2 sinks: 1 healthy, 1 unreadable",
        "KAFKA COULD NOT BE READ (why: below). This is what the database alone knows",
        "bad: UNREADABLE in the database: status 'gone' is none of …",
    ]
    alone = StatusReport(sinks=(replace(DECIDED, known=None, row=None, before=None),), database_problem="down")
    text = status_text(alone, Shown())
    assert "\nTHE DATABASE COULD NOT BE READ (why: below). This is what Kafka alone shows\n" in text
    assert "\norders: not clear, as the database was not read" in text
    assert status_text(StatusReport(note="there is no table"), Shown()) == "0 sinks\nthere is no table\n"


def test_the_order() -> None:
    """What needs a person first, the oldest of it first; then by name."""
    old = named(replace(COMMITS, row=replace(ROW, decided_age_s=600.0)), "old")
    busy, away = named(replace(OPEN, driver=LIVES), "busy"), named(replace(DECIDED, elsewhere=True), "away")
    found = ordered([away, named(FINE, "b"), named(FINE, "a"), busy, COMMITS, old])
    assert [report.transactional_id for report in found] == ["old", "orders", "busy", "a", "b", "away"]
