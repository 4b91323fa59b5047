"""A bad row: how it is named, how the bad rows among many are found, and what is kept of it."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

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
#: True for a row that no other of its key supersedes.
WINS: Final = "_2pc_wins"

#: Bytes of a row's identity.
IDENTITY_BYTES: Final = 16
#: Characters of a reason: PostgreSQL may quote the row in it.
_REASON_CHARACTERS_MAX: Final = 2_000


@dataclass(frozen=True)
class RefusedRow:
    """A row that an output refused. Can be pickled.

    Attributes:
        identity: the same for equal rows of a batch, see `row_identity`; a fingerprint until the row is looked up.
        number: tells equal rows apart, within one job of Spark.
        output: which output refused it.
        reason: what it said.
        sqlstate: PostgreSQL's code; '' where it was not asked.
    """

    identity: bytes
    number: int
    output: str
    reason: str
    sqlstate: str = ""

    @classmethod
    def of(cls, identity: bytes, number: int, output: str, error: DataError) -> RefusedRow:
        """The row that was refused with ``error``."""
        sqlstate = error.sqlstate if isinstance(error, ConstraintError) else ""
        return cls(identity, number, output, _reason(error)[:_REASON_CHARACTERS_MAX], sqlstate)


def _reason(error: DataError) -> str:
    """What is wrong with the row, without what its batch would need to hear."""
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
        identity: theirs.
        occurrences: how many of them are left out.
        output: the first that refused one.
        reason: what it said.
        sqlstate: PostgreSQL's code; '' where it was not asked.
        row: the row as JSON.
        equal_rows: how many of them the batch has in all; None where that was not counted.
        fingerprint: theirs; None where it was not asked for.
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
        """True where no equal row stays in the batch."""
        return self.occurrences == self.equal_rows

    def __str__(self) -> str:
        code = f" [{self.sqlstate}]" if self.sqlstate else ""
        times = f"{self.occurrences} times " if self.occurrences > 1 else ""
        return f"{times}{self.row}, refused by {self.output}: {self.reason}{code}"


@dataclass(frozen=True)
class LookedUpRow:
    """What the batch itself says of equal rows.

    Attributes:
        fingerprint: theirs.
        identity: theirs.
        equal_rows: how many there are.
        row: the row as JSON.
    """

    fingerprint: int
    identity: bytes
    equal_rows: int
    row: str


class BadRows(Mapping[bytes, BadRow]):
    """The bad rows of one batch by their identity. Never changed: `with_refused` makes others.

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
        """How many rows are left out."""
        return sum(row.occurrences for row in self.values())

    def with_refused(self, lanes: Iterable[Iterable[RefusedRow]]) -> BadRows:
        """These and more: of rows in which these are left out already.

        Args:
            lanes: what was refused in each; there a row may stand several times, for several reasons, and counts once.
                Jobs number rows in ways of their own, so of equal rows that several lanes refuse, as many are bad as
                the lane says that refuses most.
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
        """The same rows with what the batch says of them."""
        by_identity = {found.identity: found for found in looked_up}
        return BadRows(
            replace(row, equal_rows=found.equal_rows, row=found.row, fingerprint=found.fingerprint)
            if (found := by_identity.get(row.identity))
            else row
            for row in self.values()
        )


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


Refusal = TypeVar("Refusal")


def find_refused(count: int, attempt: Callable[[int, int], Refusal | None], *, most: int) -> list[tuple[int, Refusal]]:
    """Try all rows, halves of what is refused, and so on; each row that is taken is kept once.

    One bad row among n costs at most 3n rows of tries: those of the whole, of its halves, and of the halves on the way
    to it.

    Args:
        count: the rows, numbered from 0.
        attempt: tries the rows from its first argument to below its second; None where all were taken and kept, else
            the refusal, and nothing of them was kept.
        most: look no further when more than so many are refused.

    Returns:
        The rows that are refused by themselves on top of those before them, in order, and why.
    """
    search = _Search(attempt, most)
    search.over(0, count, refused=False)
    return search.found


def try_again(
    refused: list[tuple[int, Refusal]], attempt: Callable[[int, int], Refusal | None]
) -> list[tuple[int, Refusal]]:
    """Try refused rows once more, each on top of all that were kept since, until no more of them is taken.

    A row may refer to one that came behind it.

    Args:
        refused: from `find_refused`.
        attempt: the same.
    """
    while refused:
        again = ((row, attempt(row, row + 1)) for row, _ in refused)
        still = [(row, refusal) for row, refusal in again if refusal is not None]
        if len(still) == len(refused):
            return still
        refused = still
    return refused


class _Search(Generic[Refusal]):
    def __init__(self, attempt: Callable[[int, int], Refusal | None], most: int) -> None:
        self._attempt = attempt
        self._most = most
        self.found: list[tuple[int, Refusal]] = []

    def over(self, start: int, stop: int, *, refused: bool) -> bool:
        """Search in a range.

        Args:
            start: its first row.
            stop: the row behind its last.
            refused: the range is known to be refused, on top of what is kept: it need not be tried as a whole.

        Returns:
            True where all of it was kept.
        """
        if start == stop or len(self.found) > self._most:
            return True
        single = stop - start == 1
        # One row alone is always tried: the refusal of a range that it was a part of may name another.
        if single or not refused:
            refusal = self._attempt(start, stop)
            if refusal is None:
                return True
            if single:
                self.found.append((start, refusal))
                return False
        middle = (start + stop) // 2
        kept = self.over(start, middle, refused=False)
        # Where the first half was kept, the whole was refused for the second.
        self.over(middle, stop, refused=kept)
        return False
