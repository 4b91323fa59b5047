"""Columns without nulls, decomposed for the encoders of both formats; and what these refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.wire.arrow_layout import ArrowColumn, BoolArray, Int64Array


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
    """Refuse a null."""
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
