"""Sink views: a word for each condition, what is pending and for how long; and charts, in which nothing is markup."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from spark_2pc_sink.monitoring.dashboard.sink_views import HEIGHT, Bar, bar_chart

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
