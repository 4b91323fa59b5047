"""Refusals: limits of a format, for a value in a task, or for a type on the driver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class NotEncodableError(Exception):
    """A value that the schema cannot represent.

    Attributes:
        path: path of the field, with points between names.
        rule: requirement of the schema or its format.
        remedy: what the author of the job can do.
        row: number of the row in its column; -1 if unknown.
    """

    path: str
    rule: str
    remedy: str
    row: int = -1


@dataclass
class NoSchemaError(Exception):
    """A type that the format or the given schema cannot represent.

    Attributes:
        path: path of the field, with points between names; '' for the whole.
        rule: what is wrong.
        remedy: what the author of the job can do; '' if a cast to a type that the format has is enough.
    """

    path: str
    rule: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """The rule with its field."""
        return f"field {self.path!r}: {self.rule}" if self.path else self.rule
