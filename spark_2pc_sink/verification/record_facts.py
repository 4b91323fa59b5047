"""Facts of records: which fields their JSON has, and how those are spelt; found in a sample of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_FRACTION: Final = re.compile(r"T\d\d:\d\d:\d\d(?:\.(\d+))?")
_OFFSET: Final = re.compile(r"T\d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d:\d\d")


class _Number(str):
    """A number as the record spells it."""

    __slots__ = ()


@dataclass
class FieldFacts:
    """How the values of one field are spelt.

    Attributes:
        fraction_digits: of a text that is a timestamp, digits behind the second; -1 where there is none.
        point: some number has a decimal point or an exponent.
        text: some value is a text.
        other: some value is an object or an array.
        zoned: in such a value some timestamp is in another time zone than UTC.
    """

    fraction_digits: int = -1
    point: bool = False
    text: bool = False
    other: bool = False
    zoned: bool = False

    def note(self, value: object) -> None:
        """Take one more value into account; a null tells nothing."""
        if isinstance(value, _Number):
            self.point |= any(mark in value for mark in ".eE")
        elif isinstance(value, str):
            self.text = True
            self._note_fraction(value)
        elif isinstance(value, (dict, list)):
            self.other, text = True, json.dumps(value)
            self.zoned |= _OFFSET.search(text) is not None
            self._note_fraction(text)

    def _note_fraction(self, text: str) -> None:
        for fraction in _FRACTION.findall(text):
            self.fraction_digits = max(self.fraction_digits, len(fraction))


@dataclass
class RecordFacts:
    """What a sample of records shows.

    Attributes:
        fields: by name; a field that is null in all of them is there too.
        records: how many of them are JSON objects.
        others: how many are not.
    """

    fields: dict[str, FieldFacts] = field(default_factory=dict)
    records: int = 0
    others: int = 0

    def note(self, values: Iterable[bytes | None]) -> None:
        """Take the values of more records into account."""
        for value in values:
            found = as_object(value)
            if found is None:
                self.others += 1
                continue
            self.records += 1
            for name, part in found.items():
                self.fields.setdefault(name, FieldFacts()).note(part)


def as_object(value: bytes | None) -> Mapping[str, Any] | None:
    """The JSON object that a value is, its numbers as it spells them; None for any other value."""
    if value is None:
        return None
    try:
        found = json.loads(value, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
