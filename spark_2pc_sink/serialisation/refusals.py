"""Refusals: what a format cannot say, of a value in a task, or of a type on the driver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class NotEncodableError(Exception):
    """A value that the schema has no place for.

    Attributes:
        path: of the field, with points between names.
        rule: what the schema or its format asks for.
        remedy: what the author of the job can do.
        row: the number of the row in its column; -1 where that is not known.
    """

    path: str
    rule: str
    remedy: str
    row: int = -1


@dataclass
class NoSchemaError(Exception):
    """A type that the format or the given schema has no place for.

    Attributes:
        path: of the field, with points between names; '' for the whole.
        rule: what is wrong.
        remedy: what the author of the job can do.
    """

    path: str
    rule: str
    remedy: str

    @property
    def sentence(self) -> str:
        """The rule with the field that it is about."""
        return f"field {self.path!r}: {self.rule}" if self.path else self.rule
