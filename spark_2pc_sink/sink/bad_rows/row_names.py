"""The names of rows: which rows of a batch some are. As columns: there are millions, and few are looked at."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY_BYTES
from spark_2pc_sink.sink.bad_rows.row_identity import IDENTITY, NUMBER, WINS
from spark_2pc_sink.wire.arrow_layout import binary_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Rows, bytes of an identity, and bytes of the rows themselves.
_SIZES: Final = struct.Struct("!qqq")
_NUMBER: Final = np.dtype(np.int64)


@dataclass(frozen=True)
class RowNames:
    """The names of some rows, in order.

    Attributes:
        identities: of each row its identity or its fingerprint, see `row_identity`; all of one length.
        numbers: of each what tells it from equal rows, see `RefusedRow`; native integers of 64 bits.
        wins: of each a byte, 0 where another row of its key supersedes it.
    """

    identities: bytes
    numbers: bytes
    wins: bytes

    @classmethod
    def of(cls, batch: Any) -> RowNames:
        """The names of the rows of an Arrow batch that has the columns of `row_identity`."""
        numbers = batch.column(NUMBER).to_numpy(zero_copy_only=False)
        wins = batch.column(WINS).to_numpy(zero_copy_only=False)
        return cls(_fixed(batch.column(IDENTITY)), numbers.tobytes(), wins.tobytes())

    def __len__(self) -> int:
        return len(self.wins)

    def __getitem__(self, row: int) -> tuple[bytes, int]:
        """Identity and number of a row."""
        identity = self.identities[row * self._width : (row + 1) * self._width]
        return identity, int(np.frombuffer(self.numbers, _NUMBER)[row])

    def between(self, start: int, stop: int) -> RowNames:
        """Those of the rows from ``start`` to below ``stop``."""
        return RowNames(
            self.identities[start * self._width : stop * self._width],
            self.numbers[start * _NUMBER.itemsize : stop * _NUMBER.itemsize],
            self.wins[start:stop],
        )

    def only(self, rows: Sequence[int]) -> RowNames:
        """Those of some rows."""
        parts = [self.between(row, row + 1) for row in rows]
        return RowNames(
            b"".join(part.identities for part in parts),
            b"".join(part.numbers for part in parts),
            b"".join(part.wins for part in parts),
        )

    @property
    def all_win(self) -> bool:
        """True where no row is superseded."""
        return 0 not in self.wins

    @property
    def winners(self) -> list[int]:
        """The places of those that are not."""
        return [row for row, wins in enumerate(self.wins) if wins]

    def packed(self, rows: bytes) -> bytes:
        """The names and their rows, as `unpack` reads them."""
        sizes = _SIZES.pack(len(self), self._width, len(rows))
        return b"".join((sizes, self.identities, self.numbers, self.wins, rows))

    @classmethod
    def unpack(cls, content: memoryview) -> Iterator[tuple[RowNames, bytes]]:
        """The names in the content, which is what `packed` has made once or several times, each with its rows."""
        at = 0
        while at < len(content):
            count, width, row_bytes = _SIZES.unpack_from(content, at)
            lengths = (_SIZES.size, count * width, count * _NUMBER.itemsize, count, row_bytes)
            ends = [at + int(end) for end in np.cumsum(lengths)]
            identities, numbers, wins, rows = (bytes(content[begin:end]) for begin, end in pairwise(ends))
            yield cls(identities, numbers, wins), rows
            at = ends[-1]

    @property
    def _width(self) -> int:
        """Bytes of an identity."""
        return len(self.identities) // max(len(self), 1)


def fingerprint_bytes(fingerprint: int) -> bytes:
    """A fingerprint as `RowNames` has it."""
    return fingerprint.to_bytes(_NUMBER.itemsize, sys.byteorder, signed=True)


def fingerprint_of(name: bytes) -> int:
    """The other way."""
    return int.from_bytes(name, sys.byteorder, signed=True)


def _fixed(column: Any) -> bytes:
    """The values of a column, each with the same number of bytes."""
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        return bytes(column.to_numpy(zero_copy_only=False).tobytes())
    layout = binary_layout(column)
    begin = int(layout.starts[0]) if len(column) else 0
    return bytes(layout.data[begin : begin + len(column) * IDENTITY_BYTES].tobytes())
