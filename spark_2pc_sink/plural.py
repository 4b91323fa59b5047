"""Counts in texts for people: 1 row, 2 rows."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one.

    Args:
        number: the number.
        noun: singular, perhaps preceded by an adjective, such as "more partition".
    """
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
