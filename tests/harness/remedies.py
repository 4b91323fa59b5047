"""What a remedy says to type, taken out of a message as a person would copy it."""

from __future__ import annotations

import ast
import re
from typing import Final

_SQL: Final = re.compile(
    r"\b(?:ALTER|CREATE|GRANT|UPDATE|DROP|SELECT|CLUSTER|ANALYZE) "
    # Up to the end of a sentence or clause, but not within quotation marks.
    r"""(?:"(?:[^"]|"")*"|'(?:[^']|'')*'|\((?:[^()]|\([^()]*\))*\)|[^"'.,;:()\n]|\.(?=\w|")"""
    # A comma ends a clause, but not a list of privileges or of changes.
    r"|,(?= (?:SELECT|INSERT|UPDATE|DELETE|ALTER COLUMN)\b))+"
)
_COLUMNS: Final = re.compile(r"""columns=\{((?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"}])*?), \.\.\.\}""")


def sql_in(message: object) -> list[str]:
    return [found.group().strip() for found in _SQL.finditer(str(message))]


def columns_in(message: object) -> dict[str, str]:
    """The columns that a message says to give, by name; the dots stand for the others."""
    found: dict[str, str] = {}
    for given in _COLUMNS.finditer(str(message)):
        found |= ast.literal_eval(f"{{{given[1]}}}")
    return found


def option_in(message: object, name: str) -> str | None:
    """The value that a message says to give to an option of text; None if it names none."""
    found = re.search(rf"""\b{name}=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", str(message))
    return None if found is None else str(ast.literal_eval(found[1]))
