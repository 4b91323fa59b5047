"""A bad row: how it is named, how bad rows are found among many, and its stored details."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from spark_2pc_sink.errors import (
    ConstraintError,
    DataError,
    RecordRefusedError,
    RecordTooLargeError,
    UnstorableValueError,
)
from spark_2pc_sink.wire.arrow_layout import binary_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


#: The columns that a sift adds to a batch. The first is an identity, or a fingerprint.
IDENTITY: Final = "_2pc_identity"
NUMBER: Final = "_2pc_number"
#: True for a row that no other row of its key supersedes.
WINS: Final = "_2pc_wins"

#: Bytes of a row's identity.
IDENTITY_BYTES: Final = 16
#: Maximum characters of a reason: PostgreSQL may quote the row in it.
_REASON_CHARACTERS_MAX: Final = 2_000


@dataclass(frozen=True)
class RefusedRow:
    """A row that an output refused.

    Attributes:
        identity: the same for equal rows of a batch, see `row_sql`; a fingerprint until the row is looked up.
        number: tells equal rows apart, within one job of Spark.
        output: the output that refused it.
        sqlstate: PostgreSQL's code; '' if PostgreSQL did not refuse it.
    """

    identity: bytes
    number: int
    output: str
    reason: str
    sqlstate: str = ""

    @classmethod
    def of(cls, identity: bytes, number: int, output: str, error: DataError) -> RefusedRow:
        sqlstate = error.sqlstate if isinstance(error, ConstraintError) else ""
        return cls(identity, number, output, _reason(error)[:_REASON_CHARACTERS_MAX], sqlstate)


def _reason(error: DataError) -> str:
    """The rule that the row breaks, without advice for the whole batch."""
    if isinstance(error, ConstraintError):
        return error.detail
    if isinstance(error, UnstorableValueError):
        return f"column {error.column!r}: {error.value} cannot be stored: {error.rule}"
    if isinstance(error, RecordRefusedError):
        return error.reason
    if isinstance(error, RecordTooLargeError):
        return f"its record has {error.record_bytes} bytes: {error.limit}"
    return str(error)


@dataclass(frozen=True)
class BadRow:
    """Equal rows of a batch that are left out of every output.

    Attributes:
        occurrences: number of rows left out.
        output: the first output that refused one.
        sqlstate: PostgreSQL's code; '' if PostgreSQL did not refuse it.
        row: the row as JSON.
        equal_rows: number of equal rows in the whole batch; None if not counted.
        fingerprint: None if not requested.
    """

    identity: bytes
    occurrences: int
    output: str
    reason: str
    sqlstate: str = ""
    row: str = "{}"
    equal_rows: int | None = None
    fingerprint: int | None = None

    @property
    def all_of_them(self) -> bool:
        """True if no equal row stays in the batch."""
        return self.occurrences == self.equal_rows

    def __str__(self) -> str:
        code = f" [{self.sqlstate}]" if self.sqlstate else ""
        times = f"{self.occurrences} times " if self.occurrences > 1 else ""
        return f"{times}{self.row}, refused by {self.output}: {self.reason}{code}"


@dataclass(frozen=True)
class LookedUpRow:
    """Equal rows, looked up in the batch itself; ``row`` is JSON."""

    fingerprint: int
    identity: bytes
    equal_rows: int
    row: str


class BadRows(Mapping[bytes, BadRow]):
    """The bad rows of one batch by identity. Immutable: `with_refused` returns a new value.

    Args:
        rows: each identity once.
    """

    def __init__(self, rows: Iterable[BadRow] = ()) -> None:
        self._rows = {row.identity: row for row in rows}

    def __getitem__(self, identity: bytes) -> BadRow:
        return self._rows[identity]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def occurrences(self) -> int:
        return sum(row.occurrences for row in self.values())

    def with_refused(self, lanes: Iterable[Iterable[RefusedRow]]) -> BadRows:
        """Add rows refused after these had been left out.

        Args:
            lanes: refused rows of each lane. A row refused several times in a lane, for several reasons, counts once.
                Each job numbers rows in its own way, so if several lanes refuse equal rows, the largest count of
                one lane applies.
        """
        first: dict[bytes, RefusedRow] = {}
        bad: dict[bytes, int] = {}
        for refused in lanes:
            numbers: dict[bytes, set[int]] = {}
            for row in refused:
                numbers.setdefault(row.identity, set()).add(row.number)
                first.setdefault(row.identity, row)
            for identity, found in numbers.items():
                bad[identity] = max(len(found), bad.get(identity, 0))
        more = dict(self._rows)
        for identity, row in first.items():
            known = more.get(identity) or BadRow(identity, 0, row.output, row.reason, row.sqlstate)
            more[identity] = replace(known, occurrences=known.occurrences + bad[identity])
        return BadRows(more.values())

    def described(self, looked_up: Iterable[LookedUpRow]) -> BadRows:
        """The same rows with details looked up in the batch."""
        by_identity = {found.identity: found for found in looked_up}
        return BadRows(
            replace(row, equal_rows=found.equal_rows, row=found.row, fingerprint=found.fingerprint)
            if (found := by_identity.get(row.identity))
            else row
            for row in self.values()
        )


#: Number of rows, bytes of an identity, and bytes of the rows themselves.
_SIZES: Final = struct.Struct("!qqq")
_NUMBER: Final = np.dtype(np.int64)


@dataclass(frozen=True)
class RowNames:
    """The names of some rows, in order.

    Attributes:
        identities: identity or fingerprint of each row, all of one length.
        numbers: number that tells each row from equal ones, see `RefusedRow`; native 64-bit integers.
        wins: one byte per row, 0 if another row of its key supersedes it.
    """

    identities: bytes
    numbers: bytes
    wins: bytes

    @classmethod
    def of(cls, batch: Any) -> RowNames:
        """The names of the rows of an Arrow batch, by its columns `IDENTITY`, `NUMBER` and `WINS`."""
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
        """The rows from ``start`` to below ``stop``."""
        return RowNames(
            self.identities[start * self._width : stop * self._width],
            self.numbers[start * _NUMBER.itemsize : stop * _NUMBER.itemsize],
            self.wins[start:stop],
        )

    def only(self, rows: Sequence[int]) -> RowNames:
        parts = [self.between(row, row + 1) for row in rows]
        return RowNames(
            b"".join(part.identities for part in parts),
            b"".join(part.numbers for part in parts),
            b"".join(part.wins for part in parts),
        )

    @property
    def all_win(self) -> bool:
        return 0 not in self.wins

    @property
    def winners(self) -> list[int]:
        """The positions of rows that are not superseded."""
        return [row for row, wins in enumerate(self.wins) if wins]

    def packed(self, rows: bytes) -> bytes:
        """The names and their rows, for `unpack`."""
        sizes = _SIZES.pack(len(self), self._width, len(rows))
        return b"".join((sizes, self.identities, self.numbers, self.wins, rows))

    @classmethod
    def unpack(cls, content: memoryview) -> Iterator[tuple[RowNames, bytes]]:
        """Unpack the concatenated results of `packed`: names, each with their rows."""
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
    """Encode a fingerprint as in `RowNames`."""
    return fingerprint.to_bytes(_NUMBER.itemsize, sys.byteorder, signed=True)


def fingerprint_of(name: bytes) -> int:
    """Decode `fingerprint_bytes`."""
    return int.from_bytes(name, sys.byteorder, signed=True)


def _fixed(column: Any) -> bytes:
    """The values of a column, all of the same width in bytes."""
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        return bytes(column.to_numpy(zero_copy_only=False).tobytes())
    layout = binary_layout(column)
    begin = int(layout.starts[0]) if len(column) else 0
    return bytes(layout.data[begin : begin + len(column) * IDENTITY_BYTES].tobytes())


Refusal = TypeVar("Refusal")


def find_refused(count: int, attempt: Callable[[int, int], Refusal | None], *, most: int) -> list[tuple[int, Refusal]]:
    """Try all rows, then halves of a refused range, and so on; each accepted row is kept once.

    One bad row among n costs at most 3n row tries: the whole, its halves, and the halves on the path to the row.

    Args:
        count: number of rows; they are numbered from 0.
        attempt: tries rows from its first argument to below its second; None if all were accepted and kept, else the
            refusal, with none of them kept.
        most: stop once more rows than this are refused.

    Returns:
        The rows that are refused individually on top of those before them, in order, with the reasons.
    """
    found: list[tuple[int, Refusal]] = []

    def keep(start: int, stop: int, *, refused: bool) -> bool:
        """Whether all of a range was kept. If it is known to be ``refused``, it is not tried as a whole."""
        if start == stop or len(found) > most:
            return True
        single = stop - start == 1
        # A single row is always tried: the refusal of a larger range may name another row.
        if single or not refused:
            refusal = attempt(start, stop)
            if refusal is None:
                return True
            if single:
                found.append((start, refusal))
                return False
        middle = (start + stop) // 2
        kept = keep(start, middle, refused=False)
        # If the first half was kept, the refusal of the whole applies to the second.
        keep(middle, stop, refused=kept)
        return False

    keep(0, count, refused=False)
    return found


def try_again(
    refused: list[tuple[int, Refusal]], attempt: Callable[[int, int], Refusal | None]
) -> list[tuple[int, Refusal]]:
    """Retry refused rows on top of all rows kept since, until no more of them is accepted.

    A row may refer to one that arrived after it.
    """
    while refused:
        again = ((row, attempt(row, row + 1)) for row, _ in refused)
        still = [(row, refusal) for row, refusal in again if refusal is not None]
        if len(still) == len(refused):
            return still
        refused = still
    return refused
