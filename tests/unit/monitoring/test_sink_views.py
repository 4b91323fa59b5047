"""Sink views: a word for each condition, what is pending and for how long; and charts, in which nothing is markup."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.monitoring.dashboard import sink_views
from spark_2pc_sink.monitoring.dashboard.sink_views import HEIGHT, Bar, bar_chart
from spark_2pc_sink.recovery.report import RecoveryReport
from tests.unit.monitoring.samples import halted, in_doubt, owed, row, sink


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


SVG = "{http://www.w3.org/2000/svg}"


def bars(*values: float) -> list[Bar]:
    return [Bar(f"12:00:{number:02}", f"batch {number}", {"rows": value}) for number, value in enumerate(values)]


def rectangles(svg: str) -> list[dict[str, float]]:
    """The rectangles of a chart; that it parses is a part of the test."""
    found = ET.fromstring(svg).iter(f"{SVG}rect")  # noqa: S314 - our own text
    return [{name: float(each.attrib[name]) for name in ("x", "y", "width", "height")} for each in found]


def test_heights_are_in_proportion_and_end_at_one_line() -> None:
    low, high, none = rectangles(bar_chart(bars(50, 100, 0), name="rows", unit=""))
    assert high["height"] == pytest.approx(2 * low["height"])
    assert none["height"] == 0
    assert {round(each["y"] + each["height"], 1) for each in (low, high, none)} == {HEIGHT - 24.0}


def test_what_came_from_outside_is_text() -> None:
    svg = bar_chart([Bar("<b>", '"><script>', {"rows": 1})], name='rows"', unit="<i>")
    assert "<script" not in svg
    assert [each.text for each in ET.fromstring(svg).iter(f"{SVG}title")] == ['"><script>']  # noqa: S314 - our own text
