"""Counts in texts for people: 1 row, 2 rows, and 3 more."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """A number with its noun, which is given in the singular and may have an adjective: "more partition"."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"


def first_of(texts: Sequence[str], most: int, noun: str = "") -> list[str]:
    """At most so many of them, and then how many more there are, with or without their noun."""
    left = len(texts) - most
    more = counted(left, f"more {noun}") if noun else f"{left} more"
    return [*texts[:most], f"and {more}"] if left > 0 else list(texts)
