"""The text of a status: on one screen, what needs a person first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jdbc_state.sessions import DriverSession, Liveness
from spark_2pc_sink.cli.status_text import DETAILS_MAX, ROWS_MAX, Shown, ordered, status_text, table
from spark_2pc_sink.errors import HaltCause
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
    text = status_text(forty(), Shown(width=120))
    lines = text.splitlines()
    assert lines[:5] == [
        "40 sinks: 38 fine, 2 in doubt (for 0:01:00)",
        "",
        "sink       condition  batch  rows  records      for  driver  recover would",
        "orders-00  in doubt       7    10        9  0:01:00  -       commit",
        "orders-01  in doubt       7    10        9  0:01:00  -       commit",
    ]
    assert lines[5] == "and 38 more, which --all shows"
    assert text.count("  to settle: start the job\n") == 2
    assert len(lines) <= 30


def test_all_of_them_are_shown_where_that_is_wanted() -> None:
    text = status_text(forty(), Shown(width=120, everything=True))
    assert "orders-39  fine" in text
    assert "more, which" not in text


def test_where_many_are_in_doubt_only_some_have_details() -> None:
    """And not more rows than a screen has; what is left out is counted."""
    text = status_text(forty(in_doubt=30), Shown(width=120))
    assert text.count("in doubt       7") == ROWS_MAX
    assert "and 20 more, which --all shows" in text
    assert text.count("IN DOUBT: because") == DETAILS_MAX
    assert f"{ROWS_MAX - DETAILS_MAX} more in doubt: --details, or --transactional-id ID, shows what to do" in text
    text = status_text(forty(in_doubt=3), Shown(width=120, details=True))
    assert text.count("IN DOUBT: because") == 3
    assert "more in doubt" not in text


def test_only_those_in_doubt() -> None:
    text = status_text(forty(), Shown(width=120, in_doubt=True))
    assert "orders-02" not in text
    assert "which --all shows" not in text
    assert text.startswith("40 sinks: 38 fine, 2 in doubt")


def test_one_sink_has_details_and_no_table() -> None:
    text = status_text(StatusReport(sinks=(FINE,)), Shown(width=120), one=True)
    assert text.startswith("1 sink: 1 fine\n\norders: nothing is in doubt: because\n  database: batch 7")
    assert "recover would" not in text


def test_few_sinks_are_all_listed() -> None:
    text = status_text(StatusReport(sinks=(FINE, named(FINE, "payments"))), Shown(width=120))
    assert "payments  fine" in text
    assert "IN DOUBT" not in text


def test_what_could_not_be_read_comes_first() -> None:
    broken = UnreadableSink("bad", "database", "status 'gone' is none of …")
    found = StatusReport(sinks=(FINE,), unreadable=(broken,), kafka_problem="no broker answered")
    assert status_text(found, Shown(width=120)).splitlines()[:3] == [
        "2 sinks: 1 fine, 1 unreadable",
        "KAFKA COULD NOT BE READ (why: below). This is what the database alone knows",
        "bad: UNREADABLE in the database: status 'gone' is none of …",
    ]
    alone = StatusReport(sinks=(replace(DECIDED, known=None, row=None, before=None),), database_problem="down")
    text = status_text(alone, Shown(width=120))
    assert "\nTHE DATABASE COULD NOT BE READ (why: below). This is what Kafka alone shows\n" in text
    assert "orders  unclear        -     -        -    -  -       not known" in text
    assert status_text(StatusReport(note="there is no table"), Shown(width=120)) == "0 sinks\nthere is no table\n"


def test_the_order() -> None:
    """What needs a person first, the oldest of it first; then by name."""
    old = named(replace(COMMITS, row=replace(ROW, decided_age_s=600.0)), "old")
    busy, away = named(replace(OPEN, driver=LIVES), "busy"), named(replace(DECIDED, elsewhere=True), "away")
    found = ordered([away, named(FINE, "b"), named(FINE, "a"), busy, COMMITS, old])
    assert [report.transactional_id for report in found] == ["old", "orders", "busy", "a", "b", "away"]


@pytest.mark.parametrize("width", [140, 100, 80])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    """Counts go first, then texts are cut."""
    long = named(replace(COMMITS, driver=Liveness(alive=True, detail="", session=SESSION)), "orders-of-the-north-" * 2)
    halted = named(replace(DECIDED, cause=HaltCause.NOT_THE_FIRST_BATCH), "payments")
    lines = table([long, halted], width)
    assert max(map(len, lines)) <= width
    assert ("records" in lines[0]) is (width >= 140)
    assert "in doubt" in lines[1]
    assert "stop: not_" in lines[2]


@pytest.mark.parametrize(
    ("report", "driver", "would"),
    [
        (FINE, "-", "-"),
        (replace(FINE, driver=Liveness(alive=False, detail="")), "none", "-"),
        (replace(FINE, driver=Liveness(alive=None, detail="")), "not known", "-"),
        (replace(COMMITS, driver=Liveness(alive=True, detail="", session=SESSION)), "pid 4711 at 10.0.0.1", "commit"),
        (
            replace(FINE, driver=Liveness(alive=True, detail="", session=replace(SESSION, address=""))),
            "pid 4711 at local socket",
            "-",
        ),
        (replace(DECIDED, elsewhere=True), "-", "-"),
        (replace(DECIDED, cause=HaltCause.OUTCOME_LOST), "-", "stop: outcome_lost"),
        (replace(OPEN, actions=(Action("rebuild_row", ""), Action("abort", ""))), "-", "make the row again, abort"),
        (replace(DECIDED, row=replace(ROW, status="owed")), "-", "nothing: start the job"),
        (DECIDED, "-", "not known"),
    ],
)
def test_the_driver_and_what_recover_would_do(report: RecoveryReport, driver: str, would: str) -> None:
    head, line = table([report], 200)
    assert line[head.index("driver") :].startswith(driver)
    assert line.endswith(would)


def test_a_sink_without_a_batch_has_no_counts() -> None:
    row = replace(ROW, status="none", batch_id=None, row_count=0)
    assert table([replace(FINE, row=row)], 120)[1] == "orders  fine           -     -        -    -  -       -"
