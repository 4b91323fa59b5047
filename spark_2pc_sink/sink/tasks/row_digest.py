"""The digest of rows that go to a table and to no topic: it tells a batch from another that has come under its id.

It takes the place of the digest of records, and is made in the same way: a sum of one 128-bit hash for each row. Two
words for each column are hashed: whether there is a value, and 64 bits of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from spark_2pc_sink.wire.digest import content_digest

if TYPE_CHECKING:
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn

_WORD_BYTES = 8


def row_digest(table: str, rows: pa.RecordBatch) -> int:
    """The digest of rows for a table: 0 to 2^128 - 1.

    Args:
        table: as the user names it; the same rows in another table are others.
        rows: with the columns of the table.
    """
    words = np.column_stack([word for column in rows.columns for word in _words(column)])
    width = pa.binary(words.shape[1] * _WORD_BYTES)
    hashed = np.ascontiguousarray(words).tobytes()
    return content_digest(table, pa.Array.from_buffers(width, len(words), [None, pa.py_buffer(hashed)]))


def _words(column: ArrowColumn) -> list[Any]:
    """For each row whether there is a value, and 64 bits of it; those of a missing one are 0."""
    there = np.asarray(column.is_valid())
    return [there.astype(np.int64), np.where(there, _values(column), 0)]


def _values(column: ArrowColumn) -> Any:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        return column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        # Decimals, and arrays: equal ones of a type are shown alike.
        column = pa.array([repr(value).encode() for value in column.to_pylist()], pa.large_binary())
    texts = column.fill_null(b"").to_numpy(zero_copy_only=False).tolist()
    return np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts)).view(np.int64)
