"""The serialiser of a record's key or value: Arrow columns are encoded, all rows at once, for Confluent's readers.

Each encoding is prefixed by a zero byte and the schema's id, for Protobuf also by the message's indexes in its file
(Confluent, "Wire format"). The encoders follow a schema that `avro_schema` or `protobuf_schema` has compared with the
columns' types, and expect nothing else. The concatenated pieces of a row are its encoding. This is all that tasks load.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.wire.arrow_layout import (
    ArrowColumn,
    BoolArray,
    Int64Array,
    Piece,
    Varints,
    binary_layout,
    chosen_rows,
    fixed_rows,
    grouped_rows,
    joined_rows,
    spread_rows,
    varint_rows,
)
from spark_2pc_sink.wire.batch_format import encode_varint


@dataclass
class NotEncodableError(Exception):
    """A value that the schema cannot represent."""

    #: Path of the field, with points between names.
    path: str
    #: Requirement of the schema or its format.
    rule: str
    remedy: str
    #: Number of the row in its column; -1 if unknown.
    row: int = -1


@dataclass
class NoSchemaError(Exception):
    """A type that the format or the given schema cannot represent."""

    #: Path of the field, with points between names; '' for the whole.
    path: str
    rule: str
    #: '' if a cast to a type that the format has is enough.
    remedy: str = ""

    @property
    def sentence(self) -> str:
        return f"field {self.path!r}: {self.rule}" if self.path else self.rule


def joined_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def without_nulls(column: ArrowColumn) -> tuple[ArrowColumn, BoolArray | None]:
    """The non-null values, and their positions; None if there are no nulls."""
    if column.null_count == 0:
        return column, None
    return column.drop_null(), np.asarray(column.is_valid())


def check_full(column: ArrowColumn, path: str, remedy: str) -> None:
    if column.null_count:
        raise NotEncodableError(path, "the schema does not allow null", remedy)


def integers(column: ArrowColumn) -> Int64Array:
    """Integers of a column of integers or booleans; for dates, days since 1970; for timestamps, microseconds."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    numbers: Int64Array = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def text_bytes(column: ArrowColumn, path: str) -> ArrowColumn:
    """The bytes of texts; refuses one that is not UTF-8, which Spark does not check, and readers would refuse."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        rule, remedy = "the text is not valid UTF-8", "repair it before the sink, or declare the column as binary"
        raise NotEncodableError(path, rule, remedy) from error
    return column.cast(pa.large_binary())


def elements(column: ArrowColumn) -> tuple[ArrowColumn, Int64Array]:
    """The concatenated elements of all lists, and the number of elements of each list."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    return column.values.slice(offsets[0], offsets[-1] - offsets[0]), np.diff(offsets)


def entries(column: ArrowColumn) -> tuple[ArrowColumn, ArrowColumn, Int64Array]:
    """All maps' keys and values, sorted by key (a replay must give the same bytes), and each map's entry count."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    length, counts = offsets[-1] - offsets[0], np.diff(offsets)
    keys, values = column.keys.slice(offsets[0], length), column.items.slice(offsets[0], length)
    maps = np.repeat(np.arange(len(counts)), counts)
    order = pc.sort_indices(
        pa.table({"map": maps, "key": keys}), sort_keys=[("map", "ascending"), ("key", "ascending")]
    )
    return keys.take(order), values.take(order), counts


def floats(column: ArrowColumn, kind: str) -> npt.NDArray[Any]:
    """The numbers of a column of floats or doubles; ``kind`` is NumPy's name of the result type."""
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False).astype(kind)
    return numbers


class Encoder(Protocol):
    """A schema, or a field of a message. Can be pickled."""

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        """The pieces of each row's encoding."""


@dataclass(frozen=True)
class Serialiser:
    """Encodes the keys or the values of a batch, each after the header. Can be pickled."""

    header: bytes
    encoder: Encoder

    def encode(self, column: ArrowColumn) -> ArrowColumn:
        """The bytes of each row, as a large_binary array; null if the column is null."""
        try:
            return self._encoded(column)
        except NotEncodableError as error:
            first = bisect_left(range(len(column)), x=True, key=lambda row: self._refuses(column.slice(0, row + 1)))
            raise replace(error, row=first) from error

    def _encoded(self, column: ArrowColumn) -> Any:
        values, there = without_nulls(column)
        rows = joined_rows([self.header, *self.encoder.pieces(values)], len(values))
        if there is None:
            return rows
        return pc.if_else(pa.array(there), spread_rows(rows, there), pa.scalar(None, pa.large_binary()))

    def _refuses(self, column: ArrowColumn) -> bool:
        try:
            self._encoded(column)
        except NotEncodableError:
            return True
        return False


def header(schema_id: int, index: int | None = None) -> bytes:
    """The prefix of each encoding; ``index`` is that of Protobuf's message in its file, None for Avro."""
    # The indexes of the message are a list, in which [0], the most common one, is encoded as an empty list.
    indexes = [] if index is None else [0] if index == 0 else [1, index]
    return struct.pack(">bI", 0, schema_id) + b"".join(map(encode_varint, indexes))


# --- Avro 1.11's binary encoding -----------------------------------------------------------------------------------

_NULLS: Final = ("null", {"type": "null"})
#: The varints of the branches of a union of two.
_BRANCHES: Final = (encode_varint(0), encode_varint(1))
#: Ends the blocks of an array or a map.
_END = b"\0"
#: Bytes of a decimal in Arrow.
_DECIMAL_BYTES: Final = 16


@dataclass(frozen=True)
class AvroEncoder:
    """Encodes columns by a schema, a JSON value with all its names resolved. Can be pickled."""

    schema: Any

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return _avro_pieces(self.schema, column, "")


def null_branch(union: Sequence[Any]) -> int | None:
    """The index of null in a union; None without one."""
    return next((place for place, branch in enumerate(union) if branch in _NULLS), None)


def _avro_pieces(schema: Any, column: ArrowColumn, path: str) -> list[Piece]:
    """The pieces of each row's encoding; nulls are refused except in a union, of null and one type."""
    if not isinstance(schema, list):
        check_full(column, path, "give it a value by coalesce(…), or make the field a union with null")
        return _avro_values(schema, column, path)
    null = null_branch(schema) or 0
    values, there = without_nulls(column)
    written = _avro_values(schema[1 - null], values, path)
    if there is None:
        return [_BRANCHES[1 - null], *written]
    branches = fixed_rows(np.where(there, _BRANCHES[1 - null][0], _BRANCHES[null][0]).astype(np.uint8))
    return [branches, spread_rows(joined_rows(written, len(values)), there)]


def _avro_values(schema: Any, column: ArrowColumn, path: str) -> list[Piece]:
    described = schema if isinstance(schema, dict) else {"type": schema}
    return _ENCODINGS[described["type"]](described, column, path)


def _avro_record(schema: Mapping[str, Any], column: ArrowColumn, path: str) -> list[Piece]:
    pieces: list[Piece] = []
    for field in schema["fields"]:
        index = column.type.get_field_index(field["name"])
        if index < 0:
            # Its schema is a union with null.
            pieces.append(encode_varint(null_branch(field["type"]) or 0))
        else:
            pieces += _avro_pieces(field["type"], column.field(index), joined_path(path, field["name"]))
    return pieces


def _array(schema: Mapping[str, Any], column: ArrowColumn, path: str) -> list[Piece]:
    values, counts = elements(column)
    return _block(_avro_pieces(schema["items"], values, path), counts)


def _map(schema: Mapping[str, Any], column: ArrowColumn, path: str) -> list[Piece]:
    keys, values, counts = entries(column)
    return _block([*_avro_prefixed(text_bytes(keys, path)), *_avro_pieces(schema["values"], values, path)], counts)


def _block(pieces: Sequence[Piece], counts: Int64Array) -> list[Piece]:
    """All items of a row in one block, after their number; an empty row has only the end marker."""
    items = joined_rows(pieces, int(counts.sum()))
    some = counts > 0
    numbers = spread_rows(varint_rows(Varints.of(counts[some])), some)
    return [numbers, grouped_rows(items, counts), _END]


def _avro_bytes(_: Mapping[str, Any], column: ArrowColumn, __: str) -> list[Piece]:
    """Bytes, or a decimal in two's complement, big-endian, of minimal length."""
    if not pa.types.is_decimal(column.type):
        return _avro_prefixed(column.cast(pa.large_binary()))
    # Arrow's decimals are little-endian.
    rows = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, _DECIMAL_BYTES)
    matrix = rows[column.offset : column.offset + len(column), ::-1]
    negative = matrix[:, :1] >> 7
    spare = np.logical_and.accumulate(matrix[:, :-1] == negative * 0xFF, axis=1)
    # A leading byte is redundant if it repeats the sign, and the next one begins with the sign too.
    needed = np.ones(matrix.shape, bool)
    needed[:, :-1] = ~(spare & (matrix[:, 1:] >> 7 == negative))
    return [varint_rows(Varints.of(needed.sum(axis=1, dtype=np.int64))), chosen_rows(matrix, needed)]


def _avro_prefixed(content: ArrowColumn) -> list[Piece]:
    return [varint_rows(Varints.of(binary_layout(content).lengths)), content]


def _integers(_: Mapping[str, Any], column: ArrowColumn, __: str) -> list[Piece]:
    return [varint_rows(Varints.of(integers(column)))]


_ENCODINGS: Final[Mapping[str, Callable[[Mapping[str, Any], ArrowColumn, str], list[Piece]]]] = {
    "record": _avro_record,
    "array": _array,
    "map": _map,
    "string": lambda _, column, path: _avro_prefixed(text_bytes(column, path)),
    "bytes": _avro_bytes,
    "boolean": lambda _, column, __: [fixed_rows(integers(column).astype(np.uint8))],
    "int": _integers,
    "long": _integers,
    "float": lambda _, column, __: [fixed_rows(floats(column, "<f4"))],
    "double": lambda _, column, __: [fixed_rows(floats(column, "<f8"))],
}


# --- Protobuf: fields are ordered by number, as the runtimes write them, and map entries by key --------------------
# The kinds of fields are `Single`, `Repeated` and `Map`. The pieces of a field include its tags; a null omits the
# field, if the field can represent that.

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
    if not pa.types.is_decimal(column.type):
        content = text_bytes(column, path) if kind == "string" else column.cast(pa.large_binary())
    elif column.type.scale <= _PLAIN_SCALE_MAX:
        content = column.cast(pa.large_string()).cast(pa.large_binary())
    else:  # a string, also without an exponent
        content = pa.array([format(value, "f").encode() for value in column.to_pylist()], pa.large_binary())
    return _prefixed(content)


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
