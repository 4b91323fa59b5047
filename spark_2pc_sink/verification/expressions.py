"""Which part of a record holds a column of the table: derived from the sink's layout.

Pure. A record and a table row are made from the same batch row by Spark expressions, which only Spark can compute. But
if both sides have the same expression, they have the same value, and that can be compared. So only those forms are
parsed that show the expressions of a value: ``to_json(struct(…))``, ``to_json(named_struct(…))``, a whole row, and a
column alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.sql_text import unquoted
from spark_2pc_sink.verification.columns import Paths, TableShape

_NAME: Final = r"(?:`[^`]+`|[A-Za-z_]\w*)"
_PATH: Final = re.compile(rf"{_NAME}(?:\s*\.\s*{_NAME})*")
_PART: Final = re.compile(_NAME)
_CALL: Final = re.compile(r"(?P<function>[A-Za-z_]\w*)\s*\((?P<arguments>.*)\)", re.DOTALL)
_SPREAD: Final = re.compile(rf"(?P<struct>{_NAME})\s*\.\s*\*")
_NAMED: Final = re.compile(rf"(?P<expression>.+)\s+AS\s+(?P<name>{_NAME})", re.IGNORECASE | re.DOTALL)
_TEXT: Final = re.compile(r"(?P<quote>['\"])(?P<text>(?:(?!(?P=quote))[^\\])*)(?P=quote)")
_CAST: Final = re.compile(rf"CAST\s*\(\s*(?P<path>{_PATH.pattern})\s+AS\s+STRING\s*\)", re.IGNORECASE)
#: A path of two parts is a column and a field of it.
_TWO: Final = 2
#: The batch column that is the record's value if the sink has no expression for it.
_VALUE_COLUMN: Final = re.compile(r"(?<!\w)value(?!\w)", re.IGNORECASE)
#: Types with the same texts in Spark and in PostgreSQL.
_SAME_TEXT: Final = frozenset(
    {*("text", "varchar", "bpchar", "json", "jsonb", "uuid"), *("int2", "int4", "int8", "bool", "date")}
)


def path_parts(expression: str) -> tuple[str, ...] | None:
    """The parts of ``a.b``, without their quotes; None if it is not a path."""
    text = expression.strip()
    return tuple(part.strip("`") for part in _PART.findall(text)) if _PATH.fullmatch(text) else None


def _plain(expression: str) -> str:
    """An expression without surrounding blanks, and without the quotes and blanks of a plain path."""
    path = path_parts(expression)
    return expression.strip() if path is None else ".".join(path)


def only_column(expression: str | None) -> str | None:
    """The plain form of a column, if the expression is the column or its text; else None."""
    cast = _CAST.fullmatch((expression or "").strip())
    inner = (expression or "") if cast is None else cast["path"]
    return None if path_parts(inner) is None else _plain(inner)


def split_list(text: str, outside: Iterable[tuple[int, str]]) -> list[str] | None:
    """The parts between commas, without surrounding blanks; None if a parenthesis is not closed, or not opened.

    ``outside`` are the characters of the text that are not in quotes, each with its position.
    """
    parts, start, depth = [], 0, 0
    for place, character in outside:
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            return None
        if character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()] if depth == 0 else None


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
        """The field that has an expression's value, or the field and the field inside it; () if none has."""
        plain, path = _plain(expression), path_parts(expression) or ()
        if plain in self.named:
            return (self.named[plain],)
        if len(path) == _TWO and path[0] in self.spread:
            return path[1:]
        if len(path) == _TWO and path[0] in self.named:
            return (self.named[path[0]], path[1])
        return path if self.every_column and len(path) <= _TWO else ()


def value_fields(value: str | None) -> ValueFields | None:
    """The fields of the value that a sink's expression makes; None if the expression does not show them.

    Without an expression the value is the whole row.
    """
    if value is None:
        return ValueFields(every_column=True)
    call = _CALL.fullmatch(value.strip())
    arguments = None if call is None else split_list(call["arguments"], unquoted(call["arguments"]))
    if call is None or arguments is None or not all(arguments):
        return None
    function = call["function"].lower()
    if function == "to_json":
        inner = _CALL.fullmatch(arguments[0])
        is_struct = inner is not None and inner["function"].lower() in ("struct", "named_struct")
        return value_fields(arguments[0]) if is_struct else None
    if function == "struct":
        return _of_struct(arguments)
    names = [_TEXT.fullmatch(name) for name in arguments[::2]]
    if function != "named_struct" or None in names:
        return None
    pairs = zip(names, arguments[1::2], strict=False)
    return ValueFields(named={_plain(expression): name["text"] for name, expression in pairs if name is not None})


def _of_struct(arguments: Sequence[str]) -> ValueFields:
    named: dict[str, str] = {}
    spread: list[str] = []
    for argument in arguments:
        stars, alias, path = _SPREAD.fullmatch(argument), _NAMED.fullmatch(argument), path_parts(argument)
        if stars is not None:
            spread.append(stars["struct"].strip("`"))
        elif alias is not None:
            named[_plain(alias["expression"])] = alias["name"].strip("`")
        elif path is not None:
            named[_plain(argument)] = path[-1]
        # A name generated by Spark, such as col1, is not the field of a column.
    return ValueFields("*" in arguments, named, tuple(spread))


@dataclass(frozen=True)
class RecordSources:
    """Maps the columns of one table to fields, from the layout of a lane with its table and its records."""

    layout: SinkLayout

    @cached_property
    def _fields(self) -> ValueFields | None:
        return value_fields(self.layout.value)

    @property
    def paths(self) -> Paths | None:
        """The fields that hold columns; None if they have the names of the columns, as far as is known."""
        by_name = self._fields is None or (self.layout.value is None and self.layout.columns is None)
        return None if by_name else self.path_of

    @property
    def breadth(self) -> int:
        """The number of columns found, as a rank among topics with the same rows."""
        columns, fields = self.layout.columns, self._fields
        every = len(columns) if columns is not None else 1_000
        if fields is None:
            alone = only_column(self.layout.value) is not None
            return sum(self._part_of(name) is not None for name in columns or ()) if alone else every
        if columns is None:
            return every if fields.every_column else len(fields.named)
        return sum(bool(self.path_of(name)) for name in columns)

    def path_of(self, column: str) -> tuple[str, ...]:
        """The field of the value that holds a column, and the path inside it; () for none."""
        expression = self._expression(column)
        if expression is None:
            return ()
        path = (self._fields or ValueFields(every_column=True)).path_of(expression)
        # The batch may have a JSON column, with the table's columns extracted from it.
        ready = self.layout.value is None and not path and _VALUE_COLUMN.search(expression)
        return (column,) if ready else path

    def alone(self, shape: TableShape) -> dict[str, str]:
        """The columns of a table that are a record's key or its unchanged value, if their text is the same there."""
        found = {}
        for column in shape.columns:
            part = self._part_of(column.name)
            if part is not None and column.base == "bytea":
                found[column.name] = f"{part}_bytes"
            elif part is not None and column.base in _SAME_TEXT:
                found[column.name] = "value_text" if part == "value" else part
        return found

    def _expression(self, column: str) -> str | None:
        return f"`{column}`" if self.layout.columns is None else self.layout.columns.get(column)

    def _part_of(self, column: str) -> str | None:
        expression = self._expression(column)
        if expression is None:
            return None
        written = {"value": self.layout.value, "key": self.layout.key}
        return next((part for part, of_part in written.items() if _plain(expression) == only_column(of_part)), None)
