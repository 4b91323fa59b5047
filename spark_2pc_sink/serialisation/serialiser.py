"""The serialiser of a record's key or value: an Arrow column is encoded for Confluent's deserializers.

Each encoding is prefixed by a zero byte and the schema's id, for Protobuf also by the message's indexes in its file
(Confluent, "Wire format"). The encoders of both formats take apart columns, and refuse values, by the functions here.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.wire.arrow_layout import ArrowColumn, BoolArray, Int64Array, Piece, joined_rows, spread_rows
from spark_2pc_sink.wire.batch_format import encode_varint


@dataclass
class NotEncodableError(Exception):
    """A value that the schema cannot represent.

    Attributes:
        path: path of the field, with points between names.
        rule: requirement of the schema or its format.
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
        remedy: '' if a cast to a type that the format has is enough.
    """

    path: str
    rule: str
    remedy: str = ""


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
    """The keys and values of all maps, sorted by key within each map, and the number of entries of each map.

    Maps are unordered, and a replayed batch must be encoded to the same bytes.
    """
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


def header(schema_id: int, indexes: Sequence[int] | None = None) -> bytes:
    """The prefix of each encoding; ``indexes`` are Protobuf's, None for Avro."""
    begun = struct.pack(">bI", 0, schema_id)
    if indexes is None:
        return begun
    if tuple(indexes) == (0,):
        # The most common indexes, [0], are encoded as an empty list.
        return begun + encode_varint(0)
    return begun + b"".join(map(encode_varint, [len(indexes), *indexes]))
