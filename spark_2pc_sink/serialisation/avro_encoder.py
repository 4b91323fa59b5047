"""The Avro encoder: encodes Arrow columns in Avro 1.11's binary encoding, all rows at once.

Each class here is one kind of schema. The concatenated ``pieces`` of a row are its encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_2pc_sink.serialisation.columns import (
    check_full,
    decimal_bytes,
    elements,
    entries,
    floats,
    integers,
    text_bytes,
    without_nulls,
)
from spark_2pc_sink.wire.arrow_layout import ArrowColumn, Int64Array, Varints, binary_layout
from spark_2pc_sink.wire.batch_format import encode_varint
from spark_2pc_sink.wire.row_bytes import (
    Piece,
    chosen_rows,
    fixed_rows,
    grouped_rows,
    joined_rows,
    spread_rows,
    varint_rows,
)

#: Ends the blocks of an array or a map.
_END = b"\0"


class AvroEncoder(Protocol):
    """Encodes the columns of one schema. Can be pickled."""

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        """The pieces of each row's encoding. The column has no nulls, except for `Optional` and `Required`."""


@dataclass(frozen=True)
class AvroInteger:
    """An int or a long; also dates and timestamps in microseconds."""

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return [varint_rows(Varints.of(integers(column)))]


@dataclass(frozen=True)
class Fixed:
    """A boolean, a float or a double; ``kind`` is NumPy's name of the number type."""

    kind: str

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        if pa.types.is_boolean(column.type):
            return [fixed_rows(integers(column).astype(np.uint8))]
        return [fixed_rows(floats(column, self.kind))]


@dataclass(frozen=True)
class AvroBytes:
    """A string (``text``) or bytes."""

    path: str
    text: bool

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        content = text_bytes(column, self.path) if self.text else column.cast(pa.large_binary())
        return [varint_rows(Varints.of(binary_layout(content).lengths)), content]


@dataclass(frozen=True)
class Decimal:
    """A decimal in bytes: two's complement, big-endian, of minimal length."""

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        matrix = decimal_bytes(column)
        negative = matrix[:, :1] >> 7
        spare = np.logical_and.accumulate(matrix[:, :-1] == negative * 0xFF, axis=1)
        # A leading byte is redundant if it repeats the sign, and the next one begins with the sign too.
        needed = np.ones(matrix.shape, bool)
        needed[:, :-1] = ~(spare & (matrix[:, 1:] >> 7 == negative))
        return [varint_rows(Varints.of(needed.sum(axis=1, dtype=np.int64))), chosen_rows(matrix, needed)]


@dataclass(frozen=True)
class Optional:
    """A union of a type and null, which may be the first branch or the second."""

    of: AvroEncoder
    null_first: bool = True

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        null, value = (encode_varint(number) for number in ((0, 1) if self.null_first else (1, 0)))
        values, there = without_nulls(column)
        if there is None:
            return [value, *self.of.pieces(values)]
        branches = fixed_rows(np.where(there, value[0], null[0]).astype(np.uint8))
        return [branches, spread_rows(joined_rows(self.of.pieces(values), len(values)), there)]


@dataclass(frozen=True)
class Required:
    path: str
    of: AvroEncoder

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        check_full(column, self.path, "give it a value by coalesce(…), or make the field a union with null")
        return self.of.pieces(column)


@dataclass(frozen=True)
class Absent:
    """A field without a column: its encoded null."""

    content: bytes

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        del column
        return [self.content]


@dataclass(frozen=True)
class AvroRecord:
    """A record: the column of each field, None if there is none, in the order of the schema."""

    fields: tuple[tuple[str | None, AvroEncoder], ...]

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        return [
            piece
            for name, encoder in self.fields
            for piece in encoder.pieces(column if name is None else column.field(name))
        ]


@dataclass(frozen=True)
class Array:
    items: AvroEncoder

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        values, counts = elements(column)
        return _block(self.items.pieces(values), counts)


@dataclass(frozen=True)
class AvroMap:
    """A map; its keys are strings."""

    keys: AvroEncoder
    values: AvroEncoder

    def pieces(self, column: ArrowColumn) -> list[Piece]:
        keys, values, counts = entries(column)
        return _block([*self.keys.pieces(keys), *self.values.pieces(values)], counts)


def _block(pieces: Sequence[Piece], counts: Int64Array) -> list[Piece]:
    """All items of a row in one block, after their number; an empty row has only the end marker."""
    items = joined_rows(pieces, int(counts.sum()))
    some = counts > 0
    numbers = spread_rows(varint_rows(Varints.of(counts[some])), some)
    return [numbers, grouped_rows(items, counts), _END]
