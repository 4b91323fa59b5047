"""Record columns: the user's expressions that make a row of a record, ``column = expression, …``, taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.names import parse_identifier

_OPENING, _CLOSING = "([", ")]"
_QUOTES = "'\""


@dataclass(frozen=True)
class RecordColumn:
    """One column of the table, and the SQL expression over a record that makes it."""

    name: str
    expression: str


def parse_record_columns(text: str | None) -> tuple[RecordColumn, ...]:
    """Take the text apart at the commas that stand in no parentheses and no quotes.

    Raises:
        ConfigurationError: a part is not ``column = expression``, or a column occurs twice.
    """
    if text is None:
        return ()
    columns = tuple(_column(text, part) for part in _parts(text))
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise _refused(text, "each column occurs once")
    return columns


def _column(text: str, part: str) -> RecordColumn:
    name, equals, expression = part.partition("=")
    if not equals or not expression.strip() or expression.lstrip().startswith("="):
        raise _refused(text, "its parts have the form column = SQL expression, with commas between")
    return RecordColumn(parse_identifier(name.strip(), option="record_columns"), expression.strip())


def _parts(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for position, character in enumerate(text):
        if quote:
            # A doubled quote ends the text and begins it again.
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if quote or depth:
        raise _refused(text, "every quote and every parenthesis is closed")
    yield text[start:]


def _refused(text: str, rule: str) -> ConfigurationError:
    return ConfigurationError(
        option="record_columns",
        value=text,
        rule=rule,
        remedy="pass \"order_id = (value->>'id')::bigint, total = (value->>'total')::numeric\"",
    )
