"""Rows of one partition that do not fill a record batch yet. Pure.

A task gets its rows in Arrow batches whose size has nothing to do with record batches, so the rest of each is kept
and the next one is put behind it. What is kept is a slice and shares the memory of the columns it was cut from.
"""

from __future__ import annotations

from spark_2pc_sink.wire.record_rows import Rows


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
        for number, part in enumerate(rows.cut(self._bytes_max, begun=self.kept_bytes)):
            if number:
                full.extend(self.take())
            self._keep(part)
        return full

    def take(self) -> list[Rows]:
        """Return the kept rows as one batch, or nothing when there are none."""
        kept, self._kept, self.kept_bytes = self._kept, [], 0
        return [Rows.joined(kept)] if kept else []

    def _keep(self, rows: Rows) -> None:
        if len(rows):
            self._kept.append(rows)
            self.kept_bytes += rows.bytes_max
