"""Charts as inline SVG: bars of one figure for each batch, in one colour or in stacked parts.

Colours are CSS classes of the page's stylesheet, so that they follow light and dark mode. Each bar has its figures as
a title, which browsers show and screen readers read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

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
    """One batch.

    Attributes:
        label: below the axis, if there is room; used for the first and the last bar.
        title: tooltip with all values.
        parts: class name to value, from the base line up.
    """

    label: str
    title: str
    parts: Mapping[str, float]

    @property
    def height(self) -> float:
        """All parts together."""
        return sum(self.parts.values())


def bar_chart(bars: Sequence[Bar], *, name: str, unit: str) -> Markup:
    """An SVG element; '' without bars.

    Args:
        bars: from left to right.
        name: description of the chart, for screen readers.
        unit: unit of the values on the axis, '' for a plain number.
    """
    if not bars:
        return Markup()
    top = nice_ceiling(max(bar.height for bar in bars))
    parts = [_grid(top, unit)]
    slot = (WIDTH - _LEFT - _RIGHT) / len(bars)
    width = min(_BAR_WIDTH_MAX, slot * _BAR_SHARE)
    for number, bar in enumerate(bars):
        parts.append(_column(bar, left=_LEFT + slot * number + (slot - width) / 2, width=width, top=top))
    parts.append(_labels(bars, slot))
    return Markup(
        '<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{name}" '
        'xmlns="http://www.w3.org/2000/svg">{parts}</svg>'
    ).format(width=WIDTH, height=HEIGHT, name=name, parts=Markup().join(parts))


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


def _grid(top: float, unit: str) -> Markup:
    lines = []
    for number in range(_GRID_LINES + 1):
        value = top * number / _GRID_LINES
        y = _y(value, top)
        lines.append(
            Markup('<line class="{kind}" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>').format(
                kind="grid" if number else "base", left=_LEFT, right=WIDTH - _RIGHT, y=_rounded(y)
            )
        )
        text = f"{short_number(value)}{f' {unit}' if unit else ''}"
        lines.append(
            Markup('<text class="tick" x="{x}" y="{y}">{text}</text>').format(
                x=_LEFT - 8, y=_rounded(y + 4), text=text if number else "0"
            )
        )
    return Markup().join(lines)


def _column(bar: Bar, *, left: float, width: float, top: float) -> Markup:
    rectangles, below = [], 0.0
    for kind, value in bar.parts.items():
        y, height = _y(below + value, top), _y(below, top) - _y(below + value, top)
        below += value
        rectangles.append(
            Markup('<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>').format(
                kind=kind, x=_rounded(left), y=_rounded(y), width=_rounded(width), height=_rounded(height)
            )
        )
    return Markup("<g><title>{title}</title>{rectangles}</g>").format(
        title=bar.title, rectangles=Markup().join(rectangles)
    )


def _labels(bars: Sequence[Bar], slot: float) -> Markup:
    first = Markup('<text class="first" x="{x}" y="{y}">{text}</text>').format(
        x=_LEFT, y=HEIGHT - 6, text=bars[0].label
    )
    if len(bars) == 1:
        return first
    right = _LEFT + slot * len(bars)
    return first + Markup('<text class="last" x="{x}" y="{y}">{text}</text>').format(
        x=_rounded(right), y=HEIGHT - 6, text=bars[-1].label
    )


def _y(value: float, top: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _rounded(value: float) -> str:
    return f"{value:.2f}"
