"""Record sources: which part of a record tells a column of the table, by the expressions that the sink has noted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.verification.record_columns import RecordColumn
from spark_2pc_sink.verification.table_shape import Column, TableShape
from spark_2pc_sink.verification.value_fields import ValueFields, only_column, plain_expression, value_fields

Part: TypeAlias = Literal["key", "value"]

#: A column of the batch that is the value of the record where the sink has no expression for it.
_VALUE_COLUMN: Final = re.compile(r"(?<!\w)value(?!\w)", re.IGNORECASE)
#: Types whose texts are the same in Spark and in PostgreSQL.
_SAME_TEXT: Final = frozenset(
    {"text", "varchar", "bpchar", "json", "jsonb", "uuid", "int2", "int4", "int8", "bool", "date"}
)
#: What PostgreSQL sees of a part of a record: its text, and its bytes.
_PARTS: Final[Mapping[Part, tuple[str, str]]] = {"key": ("key", "key_bytes"), "value": ("value_text", "value_bytes")}


class RecordSources:
    """Answers for the columns of one table.

    Args:
        layout: of a lane, its table and its records.
    """

    def __init__(self, layout: SinkLayout) -> None:
        self._layout = layout
        self._fields = value_fields(layout.value)

    @property
    def by_name(self) -> bool:
        """Whether a column is told by the field of its name, as far as anybody knows."""
        return self._fields is None or (self._layout.value is None and self._layout.columns is None)

    @property
    def breadth(self) -> int:
        """How many columns are told, as a rank among topics with the same rows."""
        every = len(self._layout.columns) if self._layout.columns is not None else 1_000
        if self._fields is None and only_column(self._layout.value) is not None:
            return sum(self._part_of(name) is not None for name in self._layout.columns or ())
        if self._fields is None:
            return every
        if self._layout.columns is None:
            return every if self._fields.every_column else len(self._fields.named)
        return sum(bool(self.path_of(name)) for name in self._layout.columns)

    def path_of(self, column: str) -> tuple[str, ...]:
        """The field of the value that tells a column, and what inside of it; () for none."""
        fields = self._fields or ValueFields(every_column=True)
        expression = self._expression(column)
        if expression is None:
            return ()
        if self._layout.value is None and not fields.path_of(expression) and _VALUE_COLUMN.search(expression):
            # The batch may have its JSON ready, and the table's columns taken out of it.
            return (column,)
        return fields.path_of(expression)

    def alone(self, shape: TableShape) -> tuple[RecordColumn, ...]:
        """The columns of a table that are a record's key or its value as they are."""
        found = []
        for column in shape.columns:
            part = self._part_of(column.name)
            expression = None if part is None else _sql(part, column)
            if expression is not None:
                found.append(RecordColumn(column.name, expression))
        return tuple(found)

    def _expression(self, column: str) -> str | None:
        """Of a column of the table; None where it is not written."""
        return f"`{column}`" if self._layout.columns is None else self._layout.columns.get(column)

    def _part_of(self, column: str) -> Part | None:
        expression = self._expression(column)
        if expression is None:
            return None
        written: dict[Part, str | None] = {"value": self._layout.value, "key": self._layout.key}
        plain = plain_expression(expression)
        return next((part for part, of_part in written.items() if plain == only_column(of_part)), None)


def _sql(part: Part, column: Column) -> str | None:
    """What PostgreSQL reads the column from; None where the text is spelt in another way there."""
    text, content = _PARTS[part]
    if column.base == "bytea":
        return content
    return text if column.base in _SAME_TEXT else None
