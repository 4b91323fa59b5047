"""A bad row, and the bad rows of a batch: what is left out of it, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_2pc_sink.errors import (
    ConstraintError,
    DataError,
    RecordRefusedError,
    RecordTooLargeError,
    UnstorableValueError,
)

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
