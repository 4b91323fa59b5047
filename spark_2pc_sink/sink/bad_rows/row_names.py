"""The names of rows: which rows of a batch some are. As columns: there are millions, and few are looked at."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY_BYTES
from spark_2pc_sink.sink.bad_rows.row_identity import IDENTITY, NUMBER, WINS
from spark_2pc_sink.wire.arrow_layout import binary_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

_COUNT: Final = struct.Struct("!q")
_NUMBER: Final = np.dtype(np.int64)


@dataclass(frozen=True)
class RowNames:
    """The names of some rows, in order.

    Attributes:
        identities: of each row its identity, see `row_identity`.
        numbers: of each what tells it from equal rows, see `RefusedRow`; native integers of 64 bits.
        wins: of each a byte, 0 where another row of its key supersedes it.
    """

    identities: bytes
    numbers: bytes
    wins: bytes

    @classmethod
    def of(cls, batch: Any) -> RowNames:
        """The names of the rows of an Arrow batch that has the columns of `row_identity`."""
        layout = binary_layout(batch.column(IDENTITY))
        begin = int(layout.starts[0]) if len(batch) else 0
        identities = layout.data[begin : begin + len(batch) * IDENTITY_BYTES]
        numbers = batch.column(NUMBER).to_numpy(zero_copy_only=False)
        wins = batch.column(WINS).to_numpy(zero_copy_only=False)
        return cls(identities.tobytes(), numbers.tobytes(), wins.tobytes())

    def __len__(self) -> int:
        return len(self.wins)

    def __getitem__(self, row: int) -> tuple[bytes, int]:
        """Identity and number of a row."""
        identity = self.identities[row * IDENTITY_BYTES : (row + 1) * IDENTITY_BYTES]
        return identity, int(np.frombuffer(self.numbers, _NUMBER)[row])

    def between(self, start: int, stop: int) -> RowNames:
        """Those of the rows from ``start`` to below ``stop``."""
        return RowNames(
            self.identities[start * IDENTITY_BYTES : stop * IDENTITY_BYTES],
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

    def packed(self) -> list[bytes]:
        """Bytes that `unpack` finds in front of others."""
        return [_COUNT.pack(len(self)), self.identities, self.numbers, self.wins]

    @classmethod
    def unpack(cls, content: bytes) -> tuple[RowNames, bytes]:
        """The names that stand in front, and what is behind them."""
        (count,) = _COUNT.unpack_from(content)
        ends = np.cumsum([_COUNT.size, count * IDENTITY_BYTES, count * _NUMBER.itemsize, count]).tolist()
        columns = (content[begin:end] for begin, end in pairwise(ends))
        return cls(*columns), content[ends[-1] :]
