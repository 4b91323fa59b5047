"""The Protobuf encoder: encodes Arrow columns as messages, all rows at once.

Fields are ordered by number, as the runtimes write them, and map entries by key. `protobuf_schema` has compared their
types with the columns'; `Single`, `Repeated` and `Map` are the kinds of fields. The pieces of a field include its tags;
a null omits the field, if the field can represent that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.serialisation.serialiser import Encoder, check_full, elements, entries, floats, integers, text_bytes
from spark_2pc_sink.wire.arrow_layout import (
    ArrowColumn,
    BoolArray,
    Int64Array,
    Piece,
    Varints,
    binary_layout,
    fixed_rows,
    grouped_rows,
    joined_rows,
    spread_rows,
    varint_rows,
)

TIMESTAMP: Final = "google.protobuf.Timestamp"
DATE: Final = "google.type.Date"
#: Wire types of Protobuf's encoding; of these types, `_LENGTH` of all others.
_WIRE_TYPES: Final = {"bool": 0, "int32": 0, "int64": 0, "double": 1, "float": 5}
_LENGTH: Final = 2
_TAG_BITS: Final = 3
#: NumPy's names.
_FLOATS: Final = {"float": "<f4", "double": "<f8"}
_MICROSECONDS_PER_S: Final = 1_000_000
_NANOSECONDS_PER_MICROSECOND: Final = 1_000
#: Up to this scale Arrow writes decimals without an exponent.
_PLAIN_SCALE_MAX: Final = 6


@dataclass(frozen=True)
class Message:
    """A message: the column of each field, in the order of their numbers. Can be pickled."""

    fields: tuple[tuple[str, Encoder], ...] = ()

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return [piece for name, field in self.fields for piece in field.pieces(column.field(name))]

    def body(self, column: ArrowColumn) -> ArrowColumn:
        return joined_rows(self.pieces(column), len(column))


#: What a field's values are: a message, or a type of Protobuf by its name.
ValueType: TypeAlias = Message | str


def _pieces(kind: ValueType, column: ArrowColumn, path: str) -> list[Piece]:
    """The pieces of each value after its tag; the column has no nulls."""
    if isinstance(kind, Message):
        return _prefixed(kind.body(column))
    if kind == TIMESTAMP:
        seconds, rest = np.divmod(integers(column), _MICROSECONDS_PER_S)
        return _of_numbers(seconds, rest * _NANOSECONDS_PER_MICROSECOND)
    if kind == DATE:
        return _of_numbers(*(part(column).to_numpy(zero_copy_only=False) for part in (pc.year, pc.month, pc.day)))
    if kind in _FLOATS:
        return [fixed_rows(floats(column, _FLOATS[kind]))]
    if kind in _WIRE_TYPES:
        return [_varints(integers(column))]
    return _prefixed(_bytes(kind, column, path))


def _bytes(kind: str, column: ArrowColumn, path: str) -> ArrowColumn:
    """Strings, as which decimals are written without an exponent, or bytes."""
    if not pa.types.is_decimal(column.type):
        return text_bytes(column, path) if kind == "string" else column.cast(pa.large_binary())
    if column.type.scale <= _PLAIN_SCALE_MAX:
        return column.cast(pa.large_string()).cast(pa.large_binary())
    return pa.array([format(value, "f").encode() for value in column.to_pylist()], pa.large_binary())


def _nonzero(kind: ValueType, column: ArrowColumn) -> BoolArray:
    """Whether each value differs from the default of its kind, which a field without presence omits."""
    if isinstance(kind, str) and kind in _FLOATS:
        # -0.0 is not the default.
        numbers = floats(column, _FLOATS[kind])
        there: BoolArray = (numbers != 0) | np.signbit(numbers)
    elif isinstance(kind, str) and kind in _WIRE_TYPES:
        there = integers(column) != 0
    elif kind in ("string", "bytes") and not pa.types.is_decimal(column.type):
        there = binary_layout(column.cast(pa.large_binary())).lengths > 0
    else:
        # The text of a decimal is never empty, and a message has presence.
        there = np.ones(len(column), bool)
    return there


@dataclass(frozen=True)
class Single:
    """A field with one value; with ``presence``, null is distinguished from the default of its kind."""

    path: str
    number: int
    of: ValueType
    presence: bool = True

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        if self.presence:
            there = None if column.null_count == 0 else np.asarray(column.is_valid())
        else:
            check_full(column, self.path, "give it a value by coalesce(…), or mark the field as optional in the schema")
            there = _nonzero(self.of, column)
        values = column if there is None else column.filter(pa.array(there))
        pieces = [_tag(self.number, self.of), *_pieces(self.of, values, self.path)]
        return pieces if there is None else [spread_rows(joined_rows(pieces, len(values)), there)]


@dataclass(frozen=True)
class Repeated:
    """A field with any number of values; if ``packed``, all numbers share one tag."""

    path: str
    number: int
    of: ValueType
    packed: bool

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        check_full(column, self.path, f"it would be an empty array in Protobuf: coalesce({self.path}, array())")
        values, counts = elements(column)
        check_full(values, f"{self.path}[]", f"remove nulls: filter({self.path}, x -> x IS NOT NULL)")
        if not self.packed:
            items = joined_rows([_tag(self.number, self.of), *_pieces(self.of, values, self.path)], len(values))
            return [grouped_rows(items, counts)]
        some = counts > 0
        packs = grouped_rows(joined_rows(_pieces(self.of, values, self.path), len(values)), counts[some])
        written = joined_rows([_tag(self.number), *_prefixed(packs)], len(packs))
        return [spread_rows(written, some)]


@dataclass(frozen=True)
class Map:
    """A map: any number of messages of a key (1) and a value (2)."""

    path: str
    number: int
    keys: ValueType
    values: ValueType

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        check_full(column, self.path, f"it would be an empty map in Protobuf: coalesce({self.path}, map())")
        keys, values, counts = entries(column)
        check_full(values, f"{self.path}[]", f"remove nulls: map_filter({self.path}, (k, v) -> v IS NOT NULL)")
        parts = [_tag(1, self.keys), *_pieces(self.keys, keys, self.path)]
        parts += [_tag(2, self.values), *_pieces(self.values, values, self.path)]
        items = joined_rows([_tag(self.number), *_prefixed(joined_rows(parts, len(keys)))], len(keys))
        return [grouped_rows(items, counts)]


def _tag(number: int, kind: ValueType = "bytes") -> bytes:
    wire_type = _WIRE_TYPES.get(kind, _LENGTH) if isinstance(kind, str) else _LENGTH
    written: bytes = _varints(np.array([number << _TAG_BITS | wire_type], np.int64))[0].as_py()
    return written


def _varints(numbers: Int64Array) -> Any:
    """Negative numbers are written as the 64-bit numbers with the same bits: ten bytes."""
    return varint_rows(Varints.of_unsigned(numbers.view(np.uint64)))


def _prefixed(content: ArrowColumn) -> list[Piece]:
    return [_varints(binary_layout(content).lengths), content]


def _of_numbers(*fields: Int64Array) -> list[Piece]:
    """A message of integers without presence, numbered from 1."""
    pieces = [
        Single("", number, "int64", presence=False).pieces(pa.array(field)) for number, field in enumerate(fields, 1)
    ]
    return _prefixed(joined_rows([piece for parts in pieces for piece in parts], len(fields[0])))
