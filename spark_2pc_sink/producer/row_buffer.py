"""Rows of one partition that do not fill a record batch yet. Pure.

A task gets its rows in Arrow batches whose size has nothing to do with record batches, so the rest of each is kept
and the next one is put behind it. What is kept is a slice and shares the memory of the columns it was cut from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_2pc_sink.wire.arrow_layout import ArrowColumn, Int64Array, as_binary, as_one_array
from spark_2pc_sink.wire.arrow_records import OFFSET_DELTA_BYTES_MORE, record_sizes, split_rows


@dataclass(frozen=True)
class Rows:
    """Some rows as binary columns of equal length.

    Args:
        key: nullable, or None for no keys at all.
        value: nullable.
        headers: nullable, or None for none.
        sizes: an upper bound of each encoded record, in bytes.
    """

    key: ArrowColumn | None
    value: ArrowColumn
    headers: ArrowColumn | None
    sizes: Int64Array

    @classmethod
    def of(cls, key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None) -> Rows:
        """Normalise columns as callers have them.

        Raises:
            LocalProtocolError: a type that is not bytes, or different lengths.
            UnstorableValueError: a header without a key.
        """
        key = None if key is None else as_binary(key, "key")
        value = as_binary(value, "value")
        headers = None if headers is None else as_one_array(headers)
        return cls(key, value, headers, record_sizes(key, value, headers) + OFFSET_DELTA_BYTES_MORE)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Several, at least one, of the same `layout`, one behind the other."""
        first = parts[0]
        if len(parts) == 1:
            return first
        return cls(
            None if first.key is None else pa.concat_arrays([part.key for part in parts]),
            pa.concat_arrays([part.value for part in parts]),
            None if first.headers is None else pa.concat_arrays([part.headers for part in parts]),
            np.concatenate([part.sizes for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.value)

    @property
    def size_bytes(self) -> int:
        """Bytes that the rows take at most once encoded."""
        return int(self.sizes.sum())

    @property
    def layout(self) -> tuple[object, object, object]:
        """Rows can be put behind each other when this is equal."""
        return (
            None if self.key is None else self.key.type,
            self.value.type,
            None if self.headers is None else self.headers.type,
        )

    def slice(self, start: int, stop: int) -> Rows:
        """The rows from ``start`` up to ``stop``."""
        count = stop - start
        return Rows(
            None if self.key is None else self.key.slice(start, count),
            self.value.slice(start, count),
            None if self.headers is None else self.headers.slice(start, count),
            self.sizes[start:stop],
        )


class RowBuffer:
    """Collects rows until they fill a record batch.

    Args:
        bytes_max: bytes of records in one batch, before compression.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: list[Rows] = []
        self.kept_bytes = 0

    def add(self, rows: Rows) -> list[Rows]:
        """Take rows, and return those that fill batches, in order; one element for each batch."""
        full: list[Rows] = []
        if self._kept and self._kept[0].layout != rows.layout:
            full.extend(self.take())
        if self._kept:
            fitting = int(np.searchsorted(np.cumsum(rows.sizes), self._bytes_max - self.kept_bytes, side="right"))
            self._keep(rows.slice(0, fitting))
            rows = rows.slice(fitting, len(rows))
            if len(rows):
                full.extend(self.take())
        if len(rows):
            ranges = split_rows(rows.sizes, self._bytes_max)
            full.extend(rows.slice(start, stop) for start, stop in ranges[:-1])
            self._keep(rows.slice(*ranges[-1]))
        return full

    def take(self) -> list[Rows]:
        """Return the kept rows as one batch, or nothing when there are none."""
        kept, self._kept, self.kept_bytes = self._kept, [], 0
        return [Rows.joined(kept)] if kept else []

    def _keep(self, rows: Rows) -> None:
        if len(rows):
            self._kept.append(rows)
            self.kept_bytes += rows.size_bytes
