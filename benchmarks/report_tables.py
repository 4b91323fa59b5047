"""Tables and figures as RESULTS.md has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def seconds_of(spread: Mapping[str, float]) -> str:
    """A median with its spread."""
    return f"{spread['median']:.2f} s ({spread['low']:.2f} to {spread['high']:.2f})"


def thousands(spread: Mapping[str, float]) -> str:
    """Rows each second with their spread."""
    return f"{spread['median'] / 1e3:.0f} ({spread['low'] / 1e3:.0f} to {spread['high'] / 1e3:.0f})"


def ratio_of(spread: Mapping[str, float]) -> str:
    """A ratio with its spread."""
    return f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"
