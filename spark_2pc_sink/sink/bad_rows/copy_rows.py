"""The rows in COPY bytes, each by itself (PostgreSQL's documentation, COPY, "Binary Format", Tuples)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMNS: Final = struct.Struct("!h")
_LENGTH: Final = struct.Struct("!i")


class CopyRows:
    """Rows that were encoded together, and of which any range can be taken.

    Where rows begin is looked for when a part of them is asked for: mostly all rows are taken at once.

    Args:
        stream: COPY bytes of whole rows.
        count: how many rows it has.
    """

    def __init__(self, stream: bytes, count: int) -> None:
        self._stream = memoryview(stream)
        self._count = count
        self._begins: list[int] = []

    def __len__(self) -> int:
        return self._count

    def between(self, start: int, stop: int) -> list[memoryview]:
        """The COPY bytes of the rows from ``start`` to below ``stop``.

        Raises:
            LocalProtocolError: the stream does not have the rows that were promised.
        """
        if (start, stop) == (0, self._count):
            return [self._stream]
        begins = self._row_begins()
        return [self._stream[begins[start] : begins[stop]]]

    def only(self, rows: Sequence[int]) -> CopyRows:
        """A copy of some of the rows, which keeps none of the others in memory."""
        begins = self._row_begins()
        chosen = (self._stream[begins[row] : begins[row + 1]] for row in rows)
        return CopyRows(b"".join(chosen), len(rows))

    def _row_begins(self) -> list[int]:
        if not self._begins:
            self._begins = _row_begins(self._stream)
            if len(self._begins) != self._count + 1:
                raise LocalProtocolError(
                    operation="sift",
                    state=f"COPY bytes of {len(self._begins) - 1} rows",
                    rule=f"they have {self._count}, as the task says",
                )
        return self._begins


def _row_begins(stream: memoryview) -> list[int]:
    """Where each row begins, and where the last one ends."""
    at, end = 0, len(stream)
    begins = [at]
    while at < end:
        (columns,) = _COLUMNS.unpack_from(stream, at)
        at += _COLUMNS.size
        for _ in range(columns):
            (length,) = _LENGTH.unpack_from(stream, at)
            at += _LENGTH.size + max(length, 0)
        begins.append(at)
    return begins
