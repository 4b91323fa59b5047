"""A user's SQL, parsed without a database: its statements, apart from quotes and comments."""

from __future__ import annotations

import re
from typing import Final

# Tokens that may contain any characters: '…', E'…' with backslashes, "…", $tag$…$tag$, and comments.
_OPAQUE: Final = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|--[^\n]*|/\*.*?\*/""",
    re.DOTALL,
)


def bare_statements(text: str) -> list[str]:
    """The non-empty statements of a text, in lower case, with a blank in place of each quoted text and comment.

    PostgreSQL validates SQL. This is for what must be detected before it is sent.
    """
    bare = _OPAQUE.sub(" ", text).lower().split(";")
    return [" ".join(statement.split()) for statement in bare if statement.strip()]


# Commands that end or begin a transaction, or discard session state. ROLLBACK TO a savepoint is allowed.
_TRANSACTION_COMMAND: Final = re.compile(
    r"(?:commit|end|abort|begin|discard|start transaction|prepare transaction|set session characteristics)\b"
    r"|rollback(?! (?:work |transaction )?to\b)"
)


def transaction_command(text: str) -> str | None:
    """The first statement of a text that would end its transaction; None if there is none."""
    return next((each for each in bare_statements(text) if _TRANSACTION_COMMAND.match(each)), None)
