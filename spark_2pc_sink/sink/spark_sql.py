"""Names and texts, quoted as parts of Spark SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A column's name between backticks, with any characters."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as a string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
