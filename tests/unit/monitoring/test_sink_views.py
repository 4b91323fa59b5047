"""Sink views: a word for each condition, what is pending and for how long, and the bars of the charts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from jdbc_state.sessions import Liveness
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.monitoring.dashboard import sink_views
from spark_2pc_sink.recovery.report import RecoveryReport
from tests.unit.monitoring.samples import (
    ALIVE,
    DEAD,
    EVERYTHING,
    FIGURES,
    UNKNOWN,
    halted,
    in_doubt,
    lines,
    owed,
    row,
    sink,
)


@pytest.mark.parametrize(
    ("shown", "text", "tone"),
    [
        (sink(), "both sides agree", "good"),
        (sink(settled=False, prepared_s=3.0), "batch in progress", "good"),
        (in_doubt(), "in doubt", "bad"),
        (owed(), "Kafka is owed a batch", "warn"),
        (halted(HaltCause.OUTCOME_LOST), "needs a decision", "bad"),
        (sink(elsewhere=True), "on another cluster", "quiet"),
        (sink(known=False), "unknown", "quiet"),
        (sink(known=None), "unclear", "warn"),
    ],
)
def test_a_condition_has_a_word_and_a_tone(shown: RecoveryReport, text: str, tone: str) -> None:
    assert sink_views.badge(shown) == sink_views.Badge(text, tone)


def test_what_a_person_should_look_at_comes_first() -> None:
    ordered = [sink_views.badge(each).tone for each in sorted(EVERYTHING.sinks, key=sink_views.weight)]
    assert ordered == ["bad", "bad", "warn", "good", "quiet"]


def test_what_is_pending_says_for_how_long() -> None:
    assert sink_views.pending(in_doubt()) == "Kafka has lacked batch 41 for 2 min 0 s"
    assert sink_views.pending(sink(prepared_s=8.25)) == "a transaction has been open for 8.2 s"
    assert sink_views.pending(sink()) == ""
    assert sink_views.pending(sink(of=row(status="decided"), elsewhere=True)) == "", "the wrong cluster cannot tell"


@pytest.mark.parametrize(
    ("driver", "text"),
    [(ALIVE, "running on 10.0.3.17"), (DEAD, "not running"), (UNKNOWN, "unknown"), (None, "unknown")],
)
def test_whether_the_driver_lives(driver: Liveness | None, text: str) -> None:
    assert sink_views.driver_line(sink(driver=driver)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h 0 min"),
        (86_399, "23 h 59 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert sink_views.duration(seconds) == text


def test_times_are_in_utc_whatever_the_database_answers_in() -> None:
    there = datetime(2026, 11, 24, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert sink_views.instant(there) == "2026-11-23 23:00:00"
    assert sink_views.instant(None) == "\u2013"


def test_counts_have_groups_and_names_have_none() -> None:
    assert (sink_views.number(1_234_567), sink_views.name(1_234_567)) == ("1\u202f234\u202f567", "1234567")
    assert sink_views.name(0) == "0"
    assert {sink_views.number(None), sink_views.name(None), sink_views.name("")} == {"\u2013"}


def test_bars_go_from_the_oldest_batch_to_the_newest() -> None:
    found = sink_views.row_bars(lines({}, {}, {}))
    assert [bar.title for bar in found] == [f"batch {batch}: 1\u202f200 rows" for batch in (39, 40, 41)]


def test_times_of_steps_add_up_to_the_batch() -> None:
    (bar,) = sink_views.step_bars(lines(FIGURES, {}))
    assert bar.parts == pytest.approx({"produce": 0.9, "decide": 0.5, "complete": 0.0, "other": 0.1})
    assert bar.title == "batch 41: produce 0.9 s, decide 0.5 s, other 0.1 s"
