"""Sink views: what a page shows about a sink, as text, and as charts: inline SVG, bars of one figure for each batch.

Colours are CSS classes of the page's stylesheet, so that they follow light and dark mode. Each bar has its figures as
a title, which browsers show and screen readers read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from jdbc_state import HistoryLine
from spark_2pc_sink.recovery.report import Condition, RecoveryReport

WIDTH: Final = 460
HEIGHT: Final = 170
_LEFT: Final = 46
_RIGHT: Final = 8
_TOP: Final = 12
_BOTTOM: Final = 24
#: Lines across the chart above the base line.
_GRID_LINES: Final = 2
#: A single bar does not fill the chart.
_BAR_WIDTH_MAX: Final = 28
_BAR_SHARE: Final = 0.72


@dataclass(frozen=True)
class Bar:
    """One batch: its parts by class name, from the base line up. Only the first and the last bar show the label."""

    label: str
    title: str
    parts: Mapping[str, float]


def bar_chart(bars: Sequence[Bar], *, name: str, unit: str) -> Markup:
    """An SVG element; '' without bars."""
    if not bars:
        return Markup()
    view = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "xmlns": "http://www.w3.org/2000/svg"}
    chart = Element("svg", {"class": "chart", "role": "img", "aria-label": name, **view})
    top = nice_ceiling(max(sum(bar.parts.values()) for bar in bars))
    _add(chart, "line", "base", x1=_LEFT, x2=WIDTH - _RIGHT, y1=_y(0, top), y2=_y(0, top))
    _add(chart, "text", "tick", "0", x=_LEFT - 8, y=_y(0, top) + 4)
    for number in range(1, _GRID_LINES + 1):
        value = top * number / _GRID_LINES
        y = _y(value, top)
        _add(chart, "line", "grid", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y)
        _add(chart, "text", "tick", f"{short_number(value)} {unit}".strip(), x=_LEFT - 8, y=y + 4)
    slot = (WIDTH - _LEFT - _RIGHT) / len(bars)
    width = min(_BAR_WIDTH_MAX, slot * _BAR_SHARE)
    for number, bar in enumerate(bars):
        column = SubElement(chart, "g")
        SubElement(column, "title").text = bar.title
        left, below = _LEFT + slot * number + (slot - width) / 2, 0.0
        for kind, value in bar.parts.items():
            y = _y(below + value, top)
            _add(column, "rect", kind, x=left, y=y, width=width, height=_y(below, top) - y)
            below += value
    _add(chart, "text", "first", bars[0].label, x=_LEFT, y=HEIGHT - 6)
    if len(bars) > 1:
        _add(chart, "text", "last", bars[-1].label, x=_LEFT + slot * len(bars), y=HEIGHT - 6)
    # ElementTree has escaped all texts and attributes.
    return Markup(tostring(chart, encoding="unicode"))  # noqa: S704


def _add(parent: Element, tag: str, kind: str, text: str | None = None, **places: float) -> None:
    SubElement(parent, tag, {"class": kind, **{name: f"{place:.2f}" for name, place in places.items()}}).text = text


def _y(value: float, top: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def nice_ceiling(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten at or above ``value``; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def short_number(value: float) -> str:
    """``1.5M``, ``20k``, ``0.25``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


#: Below this, tenths of a second are shown.
_TENTHS_BELOW_S: Final = 10
#: The steps of a batch shown separately in a chart; negligible ones are combined.
SHOWN_STEPS: Final = ("produce", "decide", "complete")
OTHER_STEPS: Final = "other"
#: An en dash, for missing values.
NOTHING: Final = "\u2013"


@dataclass(frozen=True)
class Badge:
    text: str
    tone: str


_BADGES: Final[dict[Condition, Badge]] = {
    "fine": Badge("both sides agree", "good"),
    "at_work": Badge("batch in progress", "good"),
    "in_doubt": Badge("in doubt", "bad"),
    "owed": Badge("Kafka is owed a batch", "warn"),
    "elsewhere": Badge("on another cluster", "quiet"),
    "not_known": Badge("unknown", "quiet"),
    "unclear": Badge("unclear", "warn"),
}
#: In the order of a list: sinks that need attention are first.
TONES: Final = ("bad", "warn", "good", "quiet")


def badge(sink: RecoveryReport) -> Badge:
    return Badge("needs a decision", "bad") if sink.cause is not None else _BADGES[sink.condition]


def pending(sink: RecoveryReport) -> str:
    """What is in doubt, and since when; '' if nothing is."""
    if sink.elsewhere:
        return ""
    if sink.in_doubt_s is not None and sink.row is not None:
        return f"Kafka has lacked batch {sink.row.batch_id} for {duration(sink.in_doubt_s)}"
    if sink.prepared_s is not None:
        return f"a transaction has been open for {duration(sink.prepared_s)}"
    return ""


def driver_line(sink: RecoveryReport) -> str:
    """Whether the driver is alive, in a few words."""
    if sink.driver is None or sink.driver.alive is None:
        return "unknown"
    if not sink.driver.alive:
        return "not running"
    session = sink.driver.session
    return f"running on {session.address}" if session is not None and session.address else "running"


def duration(seconds: float) -> str:
    """``8.2 s``, ``45 s``, ``3 min 12 s``, ``5 h 3 min``, ``12 d 4 h``."""
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f} s"
    minutes, whole_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole_s} s" if minutes else f"{whole_s} s"


def number(value: int | None) -> str:
    """A count, with narrow spaces between thousands; a dash for none."""
    return NOTHING if value is None else f"{value:,}".replace(",", "\u202f")


def name(value: object) -> str:
    """An identifying number, such as a batch id: as programs print it; a dash for none."""
    return NOTHING if value is None or value == "" else str(value)


def instant(value: datetime | None) -> str:
    """To the second, in UTC, which the page names; a dash for none."""
    return NOTHING if value is None else value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def batch_bars(lines: Sequence[HistoryLine]) -> tuple[list[Bar], list[Bar]]:
    """The rows of each batch, and its seconds by steps, if the history has them."""
    rows, steps = list[Bar](), list[Bar]()
    for line in reversed(lines):
        if line.row.batch_id is None:
            continue
        count, batch = line.row.row_count, f"batch {line.row.batch_id}"
        at = (line.row.decided_at or line.row.claimed_at).astimezone(timezone.utc).strftime("%H:%M:%S")
        rows.append(Bar(at, f"{batch}: {number(count)} rows", {"rows": count}))
        taken: dict[str, float] = line.figures.get("step_seconds", {})
        if taken:
            parts = {step: taken.get(step, 0.0) for step in SHOWN_STEPS}
            parts[OTHER_STEPS] = sum(taken.values()) - sum(parts.values())
            told = ", ".join(f"{step} {short_number(seconds)} s" for step, seconds in parts.items() if seconds)
            steps.append(Bar(at, f"{batch}: {told}", parts))
    return rows, steps
