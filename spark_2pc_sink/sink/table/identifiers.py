"""Names, quoted as parts of psycopg2's statements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg2 import sql

from spark_2pc_sink.options import names
from spark_2pc_sink.options.names import quote_identifier

__all__ = ["TableName", "identifiers", "quote_identifier"]


@dataclass(frozen=True)
class TableName(names.TableName):
    """A table, with or without its schema, that can stand in a statement."""

    @property
    def identifier(self) -> sql.Identifier:
        """The name as a part of a statement."""
        return sql.Identifier(self.name) if self.schema is None else sql.Identifier(self.schema, self.name)


def identifiers(columns: Iterable[str]) -> sql.Composed:
    """Names as a list of columns in a statement."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))
