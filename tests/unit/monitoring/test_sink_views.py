"""Sink views: a word for each condition, what is pending and for how long, and the bars of the charts."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.monitoring.dashboard import sink_views
from spark_2pc_sink.recovery.report import RecoveryReport
from tests.unit.monitoring.samples import (
    FIGURES,
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


def test_what_is_pending_says_for_how_long() -> None:
    assert sink_views.pending(in_doubt()) == "Kafka has lacked batch 41 for 2 min 0 s"
    assert sink_views.pending(sink(prepared_s=8.25)) == "a transaction has been open for 8.2 s"
    assert sink_views.pending(sink()) == ""
    assert sink_views.pending(sink(of=row(status="decided"), elsewhere=True)) == "", "the wrong cluster cannot tell"


def test_bars_go_from_the_oldest_batch_to_the_newest() -> None:
    found = sink_views.row_bars(lines({}, {}, {}))
    assert [bar.title for bar in found] == [f"batch {batch}: 1\u202f200 rows" for batch in (39, 40, 41)]


def test_times_of_steps_add_up_to_the_batch() -> None:
    (bar,) = sink_views.step_bars(lines(FIGURES, {}))
    assert bar.parts == pytest.approx({"produce": 0.9, "decide": 0.5, "complete": 0.0, "other": 0.1})
    assert bar.title == "batch 41: produce 0.9 s, decide 0.5 s, other 0.1 s"
