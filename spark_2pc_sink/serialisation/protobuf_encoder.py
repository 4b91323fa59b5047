"""The Protobuf encoder: encodes Arrow columns as messages, all rows at once.

Fields are ordered by number, as the runtimes write them, and map entries by key. Each class here is one kind of field;
its ``pieces``, concatenated, are the encoding after the field's tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.serialisation.columns import check_full, elements, entries, floats, integers, text_bytes
from spark_2pc_sink.wire.arrow_layout import ArrowColumn, BoolArray, Int64Array, Varints, binary_layout
from spark_2pc_sink.wire.row_bytes import (
    Piece,
    fixed_rows,
    grouped_rows,
    joined_rows,
    row_sizes,
    spread_rows,
    varint_rows,
)

#: Wire types of Protobuf's encoding.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_TAG_BITS: Final = 3
_MICROSECONDS_PER_S: Final = 1_000_000
_NANOSECONDS_PER_MICROSECOND: Final = 1_000
#: Up to this scale Arrow writes decimals without an exponent.
_PLAIN_SCALE_MAX: Final = 6


class ProtobufEncoder(Protocol):
    """Encodes the columns of one kind of field, without nulls. Can be pickled."""

    @property
    def wire_type(self) -> int: ...

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        """The pieces of each value after its tag."""

    def nonzero(self, column: ArrowColumn) -> BoolArray:
        """Whether each value differs from the default of its kind, which a field without presence omits."""


@dataclass(frozen=True)
class Integer:
    """An int32, int64 or bool."""

    wire_type: int = VARINT

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return [_varints(integers(column))]

    def nonzero(self, column: ArrowColumn) -> BoolArray:
        there: BoolArray = integers(column) != 0
        return there


@dataclass(frozen=True)
class Floating:
    """A float or a double; ``kind`` is NumPy's name of the number type."""

    kind: str

    @property
    def wire_type(self) -> int:
        return FIXED32 if self.kind == "<f4" else FIXED64

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return [fixed_rows(floats(column, self.kind))]

    def nonzero(self, column: ArrowColumn) -> BoolArray:
        # -0.0 is not the default.
        numbers = floats(column, self.kind)
        there: BoolArray = (numbers != 0) | np.signbit(numbers)
        return there


@dataclass(frozen=True)
class Bytes:
    """A string (``text``) or bytes."""

    path: str
    text: bool
    wire_type: int = LENGTH

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return _prefixed(text_bytes(column, self.path) if self.text else column.cast(pa.large_binary()))

    def nonzero(self, column: ArrowColumn) -> BoolArray:
        there: BoolArray = binary_layout(column.cast(pa.large_binary())).lengths > 0
        return there


@dataclass(frozen=True)
class _NeverDefault:
    """A kind without a default that a field omits: the text of zero is not empty, and a message has presence."""

    wire_type: int = LENGTH

    def nonzero(self, column: ArrowColumn) -> BoolArray:
        return np.ones(len(column), bool)


@dataclass(frozen=True)
class DecimalText(_NeverDefault):
    """A decimal as a string, without an exponent."""

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        if column.type.scale <= _PLAIN_SCALE_MAX:
            return _prefixed(column.cast(pa.large_string()).cast(pa.large_binary()))
        texts = [format(value, "f").encode() for value in column.to_pylist()]
        return _prefixed(pa.array(texts, pa.large_binary()))


@dataclass(frozen=True)
class Timestamp(_NeverDefault):
    """A ``google.protobuf.Timestamp``: seconds, and nanoseconds after them."""

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        seconds, rest = np.divmod(integers(column), _MICROSECONDS_PER_S)
        return _of_numbers(seconds, rest * _NANOSECONDS_PER_MICROSECOND)


@dataclass(frozen=True)
class Date(_NeverDefault):
    """A ``google.type.Date``: year, month, day."""

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return _of_numbers(*(part(column).to_numpy(zero_copy_only=False) for part in (pc.year, pc.month, pc.day)))


@dataclass(frozen=True)
class Message(_NeverDefault):
    """A message: the column of each field, in the order of their numbers."""

    fields: tuple[tuple[str, Field], ...] = ()

    def body(self, column: ArrowColumn) -> ArrowColumn:
        pieces = [piece for name, field in self.fields for piece in field.pieces(column.field(name))]
        return joined_rows(pieces, len(column))

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return _prefixed(self.body(column))


class Field(Protocol):
    """One field of a message. Can be pickled."""

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        """The pieces of each row's field, tags included; a null omits the field, if the field can represent that."""


@dataclass(frozen=True)
class Single:
    """A field with one value; with ``presence``, null is distinguished from the default of its kind."""

    path: str
    number: int
    of: ProtobufEncoder
    presence: bool = True

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        if self.presence:
            there = None if column.null_count == 0 else np.asarray(column.is_valid())
        else:
            check_full(column, self.path, "give it a value by coalesce(…), or mark the field as optional in the schema")
            there = self.of.nonzero(column)
        values = column if there is None else column.filter(pa.array(there))
        pieces = [tag(self.number, self.of.wire_type), *self.of.pieces(values)]
        return pieces if there is None else [spread_rows(joined_rows(pieces, len(values)), there)]


@dataclass(frozen=True)
class Repeated:
    """A field with any number of values; if ``packed``, all numbers share one tag."""

    path: str
    number: int
    of: ProtobufEncoder
    packed: bool

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        check_full(column, self.path, f"it would be an empty array in Protobuf: coalesce({self.path}, array())")
        values, counts = elements(column)
        check_full(values, f"{self.path}[]", f"remove nulls: filter({self.path}, x -> x IS NOT NULL)")
        if not self.packed:
            items = joined_rows([tag(self.number, self.of.wire_type), *self.of.pieces(values)], len(values))
            return [grouped_rows(items, counts)]
        some = counts > 0
        packs = grouped_rows(joined_rows(self.of.pieces(values), len(values)), counts[some])
        written = joined_rows([tag(self.number, LENGTH), *_prefixed(packs)], len(packs))
        return [spread_rows(written, some)]


@dataclass(frozen=True)
class Map:
    """A map: any number of messages of a key (1) and a value (2)."""

    path: str
    number: int
    keys: ProtobufEncoder
    values: ProtobufEncoder

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        check_full(column, self.path, f"it would be an empty map in Protobuf: coalesce({self.path}, map())")
        keys, values, counts = entries(column)
        check_full(values, f"{self.path}[]", f"remove nulls: map_filter({self.path}, (k, v) -> v IS NOT NULL)")
        parts = [tag(1, self.keys.wire_type), *self.keys.pieces(keys)]
        parts += [tag(2, self.values.wire_type), *self.values.pieces(values)]
        items = joined_rows([tag(self.number, LENGTH), *_prefixed(joined_rows(parts, len(keys)))], len(keys))
        return [grouped_rows(items, counts)]


def tag(number: int, wire_type: int) -> bytes:
    written: bytes = _varints(np.array([number << _TAG_BITS | wire_type], np.int64))[0].as_py()
    return written


def _varints(numbers: Int64Array) -> Any:
    """Negative numbers are written as the 64-bit numbers with the same bits: ten bytes."""
    return varint_rows(Varints.of_unsigned(numbers.view(np.uint64)))


def _prefixed(content: ArrowColumn) -> list[Piece]:
    """Contents prefixed by their lengths."""
    return [_varints(binary_layout(content).lengths), content]


def _of_numbers(*fields: Int64Array) -> list[Piece]:
    """A message of integers without presence, numbered from 1."""
    pieces = [
        Single("", number, Integer(), presence=False).pieces(pa.array(field)) for number, field in enumerate(fields, 1)
    ]
    body = joined_rows([piece for parts in pieces for piece in parts], len(fields[0]))
    return [_varints(row_sizes(body)), body]
