"""The checks of values, which must be stored unchanged; made on whole Arrow arrays.

A check that passes costs one pass over the array's buffers. Only when it fails does it determine the offending values.
Checks are values: they are sent with the plan to Spark's tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# PostgreSQL's datetime.h: dates and timestamps begin with Julian day 0, 4713-11-24 BC; dates end before 5874898-01-01.
DATE_DAYS_MIN = -2_440_588
DATE_DAYS_MAX = 2_145_042_905
# The end of PostgreSQL's timestamps, in the year 294276, lies beyond 2**63 microseconds after 1970: no bound needed.
TIMESTAMP_MICROSECONDS_MIN = -210_866_803_200_000_000

# The escape itself, preceded by an even number of backslashes: \\u0000 is a backslash and five characters.
_ESCAPED_NUL = r"(?:^|[^\\])(?:\\\\)*\\u0000"


class Check(Protocol):
    """A rule for values, and those that violate it."""

    @property
    def rule(self) -> str:
        """The end of a sentence that begins 'x cannot be stored: ', with {} for the type of the table's column."""
        ...

    def offenders(self, values: Any) -> Any | None:
        """None if all of ``values`` (a pyarrow.Array) pass; else a boolean array, true for each that does not."""
        ...


@dataclass(frozen=True)
class ValidText:
    """Text is UTF-8. Spark does not ensure that: a cast from binary turns any bytes into a string."""

    rule: str = "it is not valid UTF-8"

    def offenders(self, values: Any) -> Any | None:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            texts = values.cast(pa.large_binary()).to_pylist()
            return pa.array([bool(text) and text.decode(errors="ignore").encode() != text for text in texts])
        return None


@dataclass(frozen=True)
class TextWithoutNul:
    """Text has no U+0000, which PostgreSQL cannot hold. Removing it could make two keys equal, so it is refused."""

    rule: str = "PostgreSQL's text has no NUL character (U+0000)"

    def offenders(self, values: Any) -> Any | None:
        data = text_bytes(values)
        if data.size == 0 or data.min() > 0:
            return None
        # The byte may also be in the slot of a null.
        return _some(pc.match_substring(values, "\x00"))


@dataclass(frozen=True)
class JsonWithoutNul:
    r"""JSON text has no escape ``\u0000``: jsonb refuses it, json fails whenever it is read as text."""

    rule: str = r"PostgreSQL's JSON has no NUL character (\u0000)"

    def offenders(self, values: Any) -> Any | None:
        if text_bytes(values).tobytes().find(rb"\u0000") < 0:
            return None
        return _some(pc.match_substring_regex(values, _ESCAPED_NUL))


@dataclass(frozen=True)
class TextLength:
    """Text fits varchar(n) or char(n), counted in characters."""

    characters_max: int
    rule: str = "it is longer than {}"

    def offenders(self, values: Any) -> Any | None:
        return _some(pc.greater(pc.utf8_length(values), self.characters_max))


@dataclass(frozen=True)
class TextPattern:
    """Text has a form, given by an RE2 regular expression."""

    pattern: str
    rule: str

    def offenders(self, values: Any) -> Any | None:
        return _some(pc.invert(pc.match_substring_regex(values, self.pattern)))


#: A uuid in its canonical form, with hyphens and hexadecimal digits of either case.
UUID_TEXT = TextPattern(
    "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
    "it is not a uuid such as 123e4567-e89b-12d3-a456-426614174000",
)


@dataclass(frozen=True)
class WholeNumberRange:
    """An integer, or the integer representation of a date or a timestamp, lies between two inclusive bounds."""

    low: int
    high: int
    rule: str = "it is out of the range of {}"

    def offenders(self, values: Any) -> Any | None:
        numbers = whole_numbers(values)
        if within(numbers, self.low, self.high):
            return None
        wide = numbers.cast(pa.int64())  # the bounds may be beyond the array's own type
        return _some(pc.or_(pc.less(wide, self.low), pc.greater(wide, self.high)))


@dataclass(frozen=True)
class WholeMultiple:
    """The integer representation of a time is a multiple of ``step``: PostgreSQL would round the remainder."""

    step: int
    rule: str = "{} would round its fraction of a second"

    def offenders(self, values: Any) -> Any | None:
        numbers = whole_numbers(values)
        return _some(pc.not_equal(pc.multiply(pc.divide(numbers, self.step), self.step), numbers))


@dataclass(frozen=True)
class DecimalRange:
    """A decimal lies between two inclusive bounds, and has no digit beyond ``scale``."""

    low: Decimal
    high: Decimal
    scale: int
    rule: str = "it does not fit {} without losing digits"

    def offenders(self, values: Any) -> Any | None:
        if within(values, self.low, self.high) and self._exact(values):
            return None
        return pa.array([value is not None and not self._fits(value) for value in values.to_pylist()])

    def _exact(self, values: Any) -> bool:
        if values.type.scale <= self.scale:
            return True
        try:
            values.cast(pa.decimal128(values.type.precision, self.scale))
        except pa.ArrowInvalid:
            return False
        return True

    def _fits(self, value: Decimal) -> bool:
        # Digit by digit: quantize() and similar methods round to 28 digits, or raise.
        _, digits, exponent = value.as_tuple()
        beyond = -int(exponent) - self.scale
        return self.low <= value <= self.high and not (beyond > 0 and any(digits[-beyond:]))


def text_bytes(values: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The concatenated bytes of all texts of a string or large_string array, as a view if possible."""
    _, offsets_buffer, data_buffer = values.buffers()
    if data_buffer is None or len(values) == 0:
        return np.empty(0, np.uint8)
    width = np.int64 if values.type in (pa.large_string(), pa.large_binary()) else np.int32
    offsets = np.frombuffer(offsets_buffer, width)
    return np.frombuffer(data_buffer, np.uint8)[offsets[values.offset] : offsets[values.offset + len(values)]]


def within(numbers: Any, low: Any, high: Any) -> bool:
    """True if all numbers of an array, if it has any, lie between two inclusive bounds."""
    found = pc.min_max(numbers)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    return least is None or (low <= least and greatest <= high)


def whole_numbers(values: Any) -> Any:
    """An integer array unchanged; for dates, times, timestamps and durations their integer representations."""
    if pa.types.is_integer(values.type):
        return values
    return values.view(pa.int32() if values.type.bit_width == pa.int32().bit_width else pa.int64())


def _some(mask: Any) -> Any | None:
    """The mask without nulls, or None if no element is true."""
    return pc.fill_null(mask, False) if pc.any(mask).as_py() else None  # noqa: FBT003 - pyarrow's own signature
