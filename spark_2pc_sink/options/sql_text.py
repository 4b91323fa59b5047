"""A user's SQL, parsed without a database: the rows of an output, stars, and statements, apart from quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.options.settings import refused

#: Spark's generators that are not supported, and their equivalents.
_OTHER_GENERATORS: Final = {
    "explode_outer": "explode(if(coalesce(size(lines), 0) > 0, lines, array(null))) AS line",
    "posexplode": "explode(transform(lines, (l, i) -> struct(i AS pos, l AS line))) AS numbered",
    "posexplode_outer": "explode(transform(lines, (l, i) -> struct(i AS pos, l AS line))) AS numbered",
    "inline": "explode(lines) AS line",
    "inline_outer": "explode(lines) AS line",
    "stack": "explode(array(struct(a AS x), struct(b AS x))) AS one",
    "json_tuple": "columns or value with get_json_object(...)",
}
_CALL: Final = re.compile(r"(?P<function>\w+)\s*\(")
_ALIAS: Final = re.compile(r"\s*\bAS\s+(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>[A-Za-z_]\w*))\s*", re.IGNORECASE)
#: Pattern before a star that means all columns.
_ANYTHING: Final = re.compile(r"[(,]\s*(?P<star>)\Z")
_FORM: Final = "it must be 'explode(expression) AS name'"
_EXAMPLE: Final = "pass rows='explode(lines) AS line'"


@dataclass(frozen=True)
class Explosion:
    """One row of a batch becomes one row for each element of an array, in a further column; none if it has none."""

    array: str
    name: str


@dataclass(frozen=True)
class RowSource:
    """The rows that an output gets. Outputs of one source share the work of their rows."""

    #: 'explode(expression) AS name'; None for the rows of the batch.
    rows: str | None = None
    #: SQL condition on these rows; only rows for which it is true are kept. None for all.
    where: str | None = None

    @property
    def explosion(self) -> Explosion | None:
        """The parsed `rows`; None if the rows are those of the batch."""
        if self.rows is None:
            return None
        text = self.rows.strip()
        call = _CALL.match(text)
        if call is None:
            raise refused("rows", self.rows, _FORM, _EXAMPLE)
        function = call["function"].lower()
        if function in _OTHER_GENERATORS:
            remedy = f"use explode, as in {_OTHER_GENERATORS[function]!r}"
            raise refused("rows", self.rows, f"it must use explode, not {function}", remedy)
        end = _closing(text, call.end())
        alias = None if end is None else _ALIAS.fullmatch(text, end + 1)
        if function != "explode" or end is None or alias is None or not text[call.end() : end].strip():
            raise refused("rows", self.rows, _FORM, _EXAMPLE)
        name = alias["bare"] if alias["quoted"] is None else alias["quoted"].replace("``", "`")
        return Explosion(text[call.end() : end].strip(), name)


def with_columns_for_star(sql: str, columns: str) -> str:
    """Replace a ``*`` that means all columns, as in ``struct(*)``, with these columns, an SQL list."""
    return _with_star_replaced(sql, _ANYTHING, columns)


def with_fields_for_star(sql: str, name: str, fields: str) -> str:
    """Replace ``name.*``, for the name of a struct, with these fields, an SQL list."""
    spellings = "|".join(re.escape(form) for form in (name, "`" + name.replace("`", "``") + "`"))
    return _with_star_replaced(sql, re.compile(rf"[(,]\s*(?P<star>(?:{spellings})\s*\.\s*)\Z", re.IGNORECASE), fields)


def _with_star_replaced(sql: str, before: re.Pattern[str], columns: str) -> str:
    """Whether the star is a separate argument: in a product it follows a factor."""
    for place, character in reversed(list(unquoted(sql))):
        found = before.search(sql, 0, place) if character == "*" else None
        if found is not None and sql[place + 1 :].lstrip().startswith((")", ",")):
            sql = f"{sql[: found.start('star')]}{columns}{sql[place + 1 :]}"
    return sql


def _closing(text: str, start: int) -> int | None:
    """The position of the parenthesis that closes the one before ``start``; None if there is none."""
    depth = 1
    for place, character in unquoted(text, start):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return place
    return None


def unquoted(text: str, start: int = 0) -> Iterator[tuple[int, str]]:
    """The characters of SQL outside literals and quoted names."""
    quote, escaped = "", False
    for place in range(start, len(text)):
        character = text[place]
        if escaped:
            escaped = False
        elif quote:
            escaped = character == "\\" and quote != "`"
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        else:
            yield place, character


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
