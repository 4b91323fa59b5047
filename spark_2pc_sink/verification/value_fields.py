"""Value fields: which part of a record has the value of an expression over a batch row, read off the sink's own note.

Pure. A record and a table row are made of the same batch row by expressions of Spark, which nobody but Spark can
compute. But where both sides have the same expression, they have the same value, and that can be compared. So only the
forms are read in which a value shows the expressions that it is made of: ``to_json(struct(…))``, ``to_json(
named_struct(…))``, a whole row, and a column alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_2pc_sink.options.row_source import unquoted

_NAME: Final = r"(?:`[^`]+`|[A-Za-z_]\w*)"
_PATH: Final = re.compile(rf"{_NAME}(?:\s*\.\s*{_NAME})*")
_PART: Final = re.compile(_NAME)
_CALL: Final = re.compile(r"(?P<function>[A-Za-z_]\w*)\s*\((?P<arguments>.*)\)", re.DOTALL)
_SPREAD: Final = re.compile(rf"(?P<struct>{_NAME})\s*\.\s*\*")
_NAMED: Final = re.compile(rf"(?P<expression>.+)\s+AS\s+(?P<name>{_NAME})", re.IGNORECASE | re.DOTALL)
_TEXT: Final = re.compile(r"'(?P<text>[^'\\]*)'|\"(?P<double>[^\"\\]*)\"")
_CAST: Final = re.compile(rf"CAST\s*\(\s*(?P<path>{_PATH.pattern})\s+AS\s+STRING\s*\)", re.IGNORECASE)
#: A path of two parts is a column and a field of it.
_TWO: Final = 2


@dataclass(frozen=True)
class ValueFields:
    """The fields of a value that is an object.

    Attributes:
        every_column: each column of the row is a field of its name.
        named: the expression of a field, in its plain form, to the field's name.
        spread: structs whose fields are fields of the value.
    """

    every_column: bool = False
    named: Mapping[str, str] = field(default_factory=dict)
    spread: tuple[str, ...] = ()

    def path_of(self, expression: str) -> tuple[str, ...]:
        """The field that has an expression's value, or the field and the field inside of it; () where none has.

        Args:
            expression: of a column of the table.
        """
        plain = plain_expression(expression)
        if plain in self.named:
            return (self.named[plain],)
        path = path_parts(expression)
        if path is None:
            return ()
        if len(path) == 1 and self.every_column:
            return path
        if len(path) == _TWO and path[0] in self.spread:
            return path[1:]
        if len(path) == _TWO and (outer := self.named.get(path[0])) is not None:
            return (outer, path[1])
        return path if len(path) == _TWO and self.every_column else ()


def value_fields(value: str | None) -> ValueFields | None:
    """The fields of the value that an expression makes; None where the expression does not show them.

    Args:
        value: the sink's expression; None for the whole row.
    """
    if value is None:
        return ValueFields(every_column=True)
    call = _CALL.fullmatch(value.strip())
    if call is None:
        return None
    function, arguments = call["function"].lower(), _arguments(call["arguments"])
    if arguments is None:
        return None
    if function == "to_json":
        return value_fields(arguments[0]) if _is_struct(arguments[0]) else None
    if function == "struct":
        return _of_struct(arguments)
    return _of_named_struct(arguments) if function == "named_struct" else None


def only_column(expression: str | None) -> str | None:
    """The plain form of a column that an expression is, or is the text of; None for any other expression."""
    if expression is None:
        return None
    cast = _CAST.fullmatch(expression.strip())
    inner = expression if cast is None else cast["path"]
    return None if path_parts(inner) is None else plain_expression(inner)


def plain_expression(expression: str) -> str:
    """An expression without what does not matter: blanks around it, and the quotes and blanks of a plain path."""
    path = path_parts(expression)
    return expression.strip() if path is None else ".".join(path)


def path_parts(expression: str) -> tuple[str, ...] | None:
    """The parts of ``a.b``, without their quotes; None where it is no path."""
    text = expression.strip()
    return tuple(part.strip("`") for part in _PART.findall(text)) if _PATH.fullmatch(text) else None


def _is_struct(expression: str) -> bool:
    call = _CALL.fullmatch(expression.strip())
    return call is not None and call["function"].lower() in ("struct", "named_struct")


def _of_struct(arguments: Sequence[str]) -> ValueFields | None:
    named: dict[str, str] = {}
    spread: list[str] = []
    every_column = False
    for argument in arguments:
        stars, alias, path = _SPREAD.fullmatch(argument), _NAMED.fullmatch(argument), path_parts(argument)
        if argument == "*":
            every_column = True
        elif stars is not None:
            spread.append(stars["struct"].strip("`"))
        elif alias is not None:
            named[plain_expression(alias["expression"])] = alias["name"].strip("`")
        elif path is not None:
            named[plain_expression(argument)] = path[-1]
        # What Spark names by itself, as col1, is the field of no column.
    return ValueFields(every_column, named, tuple(spread))


def _of_named_struct(arguments: Sequence[str]) -> ValueFields | None:
    named: dict[str, str] = {}
    for name, expression in zip(arguments[::2], arguments[1::2], strict=False):
        text = _TEXT.fullmatch(name)
        if text is None:
            return None
        named[plain_expression(expression)] = text["double"] if text["text"] is None else text["text"]
    return ValueFields(named=named)


def _arguments(text: str) -> list[str] | None:
    """The arguments of a call; None where the text is no list of them, as of ``f(a) + g(b)``."""
    parts, start, depth = [], 0, 0
    for place, character in unquoted(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return None
        if character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    parts.append(text[start:].strip())
    return parts if depth == 0 and all(parts) else None
