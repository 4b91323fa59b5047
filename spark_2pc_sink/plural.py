"""Counts in texts for people: 1 row, 2 rows."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun, which is given in the singular and may have an adjective: "more partition"."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
