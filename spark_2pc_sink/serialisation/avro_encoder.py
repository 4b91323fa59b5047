"""The Avro encoder: encodes Arrow columns in Avro 1.11's binary encoding, all rows at once.

It follows a schema that `avro_schema` has compared with the columns' types, and expects nothing else. The concatenated
pieces of a row are its encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_2pc_sink.serialisation.serialiser import (
    check_full,
    elements,
    entries,
    floats,
    integers,
    joined_path,
    text_bytes,
    without_nulls,
)
from spark_2pc_sink.wire.arrow_layout import (
    ArrowColumn,
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
        return _pieces(self.schema, column, "")


def null_branch(union: Sequence[Any]) -> int | None:
    """The index of null in a union; None without one."""
    return next((place for place, branch in enumerate(union) if branch in _NULLS), None)


def _pieces(schema: Any, column: ArrowColumn, path: str) -> list[Piece]:
    """The pieces of each row's encoding; nulls are refused except in a union, of null and one type."""
    if not isinstance(schema, list):
        check_full(column, path, "give it a value by coalesce(…), or make the field a union with null")
        return _values(schema, column, path)
    null = null_branch(schema) or 0
    values, there = without_nulls(column)
    written = _values(schema[1 - null], values, path)
    if there is None:
        return [_BRANCHES[1 - null], *written]
    branches = fixed_rows(np.where(there, _BRANCHES[1 - null][0], _BRANCHES[null][0]).astype(np.uint8))
    return [branches, spread_rows(joined_rows(written, len(values)), there)]


def _values(schema: Any, column: ArrowColumn, path: str) -> list[Piece]:
    """The pieces of values, without nulls."""
    described = schema if isinstance(schema, dict) else {"type": schema}
    return _ENCODINGS[described["type"]](described, column, path)


def _record(schema: Mapping[str, Any], column: ArrowColumn, path: str) -> list[Piece]:
    pieces: list[Piece] = []
    for field in schema["fields"]:
        index = column.type.get_field_index(field["name"])
        if index < 0:
            # Its schema is a union with null.
            pieces.append(encode_varint(null_branch(field["type"]) or 0))
        else:
            pieces += _pieces(field["type"], column.field(index), joined_path(path, field["name"]))
    return pieces


def _array(schema: Mapping[str, Any], column: ArrowColumn, path: str) -> list[Piece]:
    values, counts = elements(column)
    return _block(_pieces(schema["items"], values, path), counts)


def _map(schema: Mapping[str, Any], column: ArrowColumn, path: str) -> list[Piece]:
    keys, values, counts = entries(column)
    return _block([*_prefixed(text_bytes(keys, path)), *_pieces(schema["values"], values, path)], counts)


def _block(pieces: Sequence[Piece], counts: Int64Array) -> list[Piece]:
    """All items of a row in one block, after their number; an empty row has only the end marker."""
    items = joined_rows(pieces, int(counts.sum()))
    some = counts > 0
    numbers = spread_rows(varint_rows(Varints.of(counts[some])), some)
    return [numbers, grouped_rows(items, counts), _END]


def _bytes(_: Mapping[str, Any], column: ArrowColumn, __: str) -> list[Piece]:
    """Bytes, or a decimal in two's complement, big-endian, of minimal length."""
    if not pa.types.is_decimal(column.type):
        return _prefixed(column.cast(pa.large_binary()))
    # Arrow's decimals are little-endian.
    rows = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, _DECIMAL_BYTES)
    matrix = rows[column.offset : column.offset + len(column), ::-1]
    negative = matrix[:, :1] >> 7
    spare = np.logical_and.accumulate(matrix[:, :-1] == negative * 0xFF, axis=1)
    # A leading byte is redundant if it repeats the sign, and the next one begins with the sign too.
    needed = np.ones(matrix.shape, bool)
    needed[:, :-1] = ~(spare & (matrix[:, 1:] >> 7 == negative))
    return [varint_rows(Varints.of(needed.sum(axis=1, dtype=np.int64))), chosen_rows(matrix, needed)]


def _prefixed(content: ArrowColumn) -> list[Piece]:
    return [varint_rows(Varints.of(binary_layout(content).lengths)), content]


def _integers(_: Mapping[str, Any], column: ArrowColumn, __: str) -> list[Piece]:
    return [varint_rows(Varints.of(integers(column)))]


_ENCODINGS: Final[Mapping[str, Callable[[Mapping[str, Any], ArrowColumn, str], list[Piece]]]] = {
    "record": _record,
    "array": _array,
    "map": _map,
    "string": lambda _, column, path: _prefixed(text_bytes(column, path)),
    "bytes": _bytes,
    "boolean": lambda _, column, __: [fixed_rows(integers(column).astype(np.uint8))],
    "int": _integers,
    "long": _integers,
    "float": lambda _, column, __: [fixed_rows(floats(column, "<f4"))],
    "double": lambda _, column, __: [fixed_rows(floats(column, "<f8"))],
}
