"""Sink views: a word for each condition, what is pending and for how long, and the bars of the charts."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.monitoring.dashboard import sink_views
from spark_2pc_sink.recovery.report import RecoveryReport
from tests.unit.monitoring.samples import (
    halted,
    in_doubt,
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
