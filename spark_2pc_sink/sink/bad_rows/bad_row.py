"""Bad rows: how they are named, found among many by their output, and described.

A table's are found by the sift: rows are written as a batch writes them, by the same code into the same table, with its
triggers, in a transaction that is rolled back, in one savepoint per try. Accepted rows stay until the transaction ends,
so each row is judged together with those before it: of two rows with one primary key, the second is refused. Deferred
constraints are checked at the end of each try.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import cached_property, partial
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

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_2pc_sink.sink.rows.table_copy import CopyBytes, TableRows


#: The columns that a sift adds to a batch. The first is an identity, or a fingerprint.
IDENTITY: Final = "_2pc_identity"
NUMBER: Final = "_2pc_number"
#: True for a row that no other row of its key supersedes.
WINS: Final = "_2pc_wins"

#: Maximum characters of a reason: PostgreSQL may quote the row in it.
_REASON_CHARACTERS_MAX: Final = 2_000


@dataclass(frozen=True)
class RefusedRow:
    """A row that an output refused."""

    #: Hexadecimal digits, the same for equal rows of a batch (`row_sql`); a fingerprint until the row is looked up.
    identity: str
    #: Tells equal rows apart, within one job of Spark.
    number: int
    output: str
    reason: str
    #: PostgreSQL's code; '' if PostgreSQL did not refuse it.
    sqlstate: str = ""

    @classmethod
    def of(cls, identity: str, number: int, output: str, error: DataError) -> RefusedRow:
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
    """Equal rows of a batch, of which some ``occurrences`` are left out of every output, with the first refusal."""

    identity: str
    occurrences: int
    output: str
    reason: str
    sqlstate: str = ""
    row: str = "{}"
    #: How many the whole batch has; None if not counted.
    equal_rows: int | None = None
    fingerprint: str | None = None

    @property
    def all_of_them(self) -> bool:
        """True if no equal row stays in the batch."""
        return self.occurrences == self.equal_rows

    @property
    def columns(self) -> dict[str, str | int]:
        """The columns of its dead letter that describe it, except the row itself."""
        return {name: getattr(self, name) for name in ("identity", "occurrences", "output", "reason", "sqlstate")}

    def __str__(self) -> str:
        code = f" [{self.sqlstate}]" if self.sqlstate else ""
        times = f"{self.occurrences} times " if self.occurrences > 1 else ""
        return f"{times}{self.row}, refused by {self.output}: {self.reason}{code}"


@dataclass(frozen=True)
class LookedUpRow:
    """Equal rows, looked up in the batch itself; ``row`` is JSON."""

    fingerprint: str
    identity: str
    equal_rows: int
    row: str


class BadRows(dict[str, BadRow]):
    """The bad rows of one batch by identity. Its methods return new values."""

    def __init__(self, rows: Iterable[BadRow] = ()) -> None:
        super().__init__((row.identity, row) for row in rows)

    @property
    def occurrences(self) -> int:
        return sum(row.occurrences for row in self.values())

    def with_refused(self, lanes: Iterable[Sequence[RefusedRow]]) -> BadRows:
        """Add rows of each lane that were refused after these had been left out.

        A row refused several times in a lane, for several reasons, counts once. Each job numbers rows in its own way,
        so if several lanes refuse equal rows, the largest count of one lane applies.
        """
        first: dict[str, RefusedRow] = {}
        bad: Counter[str] = Counter()
        for refused in lanes:
            for row in refused:
                first.setdefault(row.identity, row)
            bad |= Counter(identity for identity, _ in {(row.identity, row.number) for row in refused})
        more = dict(self)
        for identity, row in first.items():
            known = more.get(identity) or BadRow(identity, 0, row.output, row.reason, row.sqlstate)
            more[identity] = replace(known, occurrences=known.occurrences + bad[identity])
        return BadRows(more.values())

    def described(self, looked_up: Iterable[LookedUpRow]) -> BadRows:
        rows = dict(self)
        for found in looked_up:
            rows[found.identity] = replace(rows[found.identity], **asdict(found))
        return BadRows(rows.values())


def canonical_json(text: str) -> str:
    """The canonical form of a JSON text: the same for the text and for PostgreSQL's ``jsonb`` of it.

    ``jsonb`` orders the keys of an object, writes numbers without an exponent, and has no U+0000: it becomes U+FFFD, as
    invalid text does in to_json. Here keys are in code point order, since the order of ``jsonb`` is not guaranteed.
    """
    return _json(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def _json(value: Any) -> str:
    if isinstance(value, dict):
        members = {name.replace("\0", "\ufffd"): member for name, member in value.items()}
        return f"{{{','.join(f'{_json(name)}:{_json(members[name])}' for name in sorted(members))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, Decimal):
        # PostgreSQL's numeric has no negative zero, and keeps as many digits after the point as the text has.
        return format(value.copy_abs() if value.is_zero() else value, "f")
    if isinstance(value, str):
        value = value.replace("\0", "\ufffd")
    return json.dumps(value, ensure_ascii=False)


_ROW_BYTES: Final = struct.Struct("!q")


def name_of(names: Any, row: int) -> tuple[str, int]:
    """Identity, or fingerprint, and number of a row."""
    return names.column(IDENTITY)[row].as_py(), names.column(NUMBER)[row].as_py()


def pack_rows(names: Any, rows: bytes) -> bytes:
    """Rows after their names, for `unpack_rows`."""
    packed = pa.BufferOutputStream()
    with pa.ipc.new_stream(packed, names.schema) as stream:
        stream.write_batch(names)
    packed.write(_ROW_BYTES.pack(len(rows)))
    packed.write(rows)
    return bytes(packed.getvalue())


def unpack_rows(content: memoryview) -> Iterator[tuple[Any, bytes]]:
    """Unpack the concatenated results of `pack_rows`: names, each with their rows."""
    reader = pa.BufferReader(content)
    while reader.tell() < reader.size():
        [names] = pa.ipc.open_stream(reader)
        (row_bytes,) = _ROW_BYTES.unpack(reader.read(_ROW_BYTES.size))
        yield names, reader.read(row_bytes)


Item = TypeVar("Item")
Refusal = TypeVar("Refusal")


def find_refused(count: int, attempt: Callable[[int, int], Refusal | None], *, most: int) -> list[tuple[int, Refusal]]:
    """The rows that are refused individually on top of those before them, in order, with the reasons.

    All rows are tried, then halves of a refused range, and so on; each accepted row is kept once. One bad row among n
    costs at most 3n row tries: the whole, its halves, and the halves on the path to the row. ``attempt`` tries rows,
    numbered from 0, from its first argument to below its second: None if all were accepted and kept, else the refusal,
    with none kept. The search stops once more than ``most`` rows are refused.
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
    refused: list[tuple[Item, Refusal]], attempt: Callable[[Item], Refusal | None]
) -> list[tuple[Item, Refusal]]:
    """Retry refused rows until no more are accepted, on top of rows kept since: one may refer to a later one."""
    before: int | None = None
    while len(refused) != before:
        before = len(refused)
        again = ((row, attempt(row)) for row, _ in refused)
        refused = [(row, refusal) for row, refusal in again if refusal is not None]
    return refused


_COLUMNS: Final = struct.Struct("!h")
_LENGTH: Final = struct.Struct("!i")


class SiftedPart:
    """Some rows of a batch, encoded together for the table, with their names; any range of them can be copied."""

    def __init__(self, names: Any, rows: bytes) -> None:
        self.names: Any = names
        self._rows = memoryview(rows)

    def __len__(self) -> int:
        return int(self.names.num_rows)

    @property
    def winners(self) -> list[int]:
        """The positions of rows that are not superseded."""
        winners: list[int] = np.flatnonzero(self.names.column(WINS).to_numpy(zero_copy_only=False)).tolist()
        return winners

    def between(self, start: int, stop: int) -> memoryview:
        """The COPY bytes of the rows from ``start`` to below ``stop``."""
        whole = (start, stop) == (0, len(self))
        return self._rows if whole else self._rows[self._begins[start] : self._begins[stop]]

    def only(self, rows: Sequence[int]) -> SiftedPart:
        """A copy of some of the rows, which does not keep the others in memory."""
        chosen = (self._rows[self._begins[row] : self._begins[row + 1]] for row in rows)
        return SiftedPart(self.names.take(pa.array(rows, pa.int64())), b"".join(chosen))

    @cached_property
    def _begins(self) -> list[int]:
        """The offset of each row, and the end of the last; rarely needed, as usually all rows are copied at once."""
        at, begins = 0, [0]
        while at < len(self._rows):
            (columns,) = _COLUMNS.unpack_from(self._rows, at)
            at += _COLUMNS.size
            for _ in range(columns):
                (length,) = _LENGTH.unpack_from(self._rows, at)
                at += _LENGTH.size + max(length, 0)
            begins.append(at)
        return begins


class TableSift:
    """Tries the rows of a batch part by part, until more than ``most`` are refused.

    ``connection`` is in a transaction that will be rolled back; ``table`` opens the table for the rows of one try.
    """

    def __init__(
        self, connection: Connection, table: Callable[[Connection], TableRows], *, output: str, most: int
    ) -> None:
        self._connection = connection
        self._table = table
        self._output = output
        self._most = most
        # Each as its own part: it is retried at the end.
        self._refused: list[tuple[SiftedPart, ConstraintError]] = []

    @property
    def refused(self) -> list[RefusedRow]:
        return [RefusedRow.of(*name_of(part.names, 0), self._output, error) for part, error in self._refused]

    @property
    def too_many(self) -> bool:
        return len(self._refused) > self._most

    def copy(self, pieces: Iterable[CopyBytes]) -> None:
        """Try the rows that search tasks have sent, until too many are refused."""
        for piece in pieces:
            for names, rows in unpack_rows(piece):
                if not self.too_many:
                    self.take(SiftedPart(names, rows))

    def take(self, part: SiftedPart) -> None:
        """Try the rows of a part, and keep the accepted ones; raises errors that are not about a single row.

        A superseded row only has to be readable by the database: it is never written to the table.
        """
        winners = part.winners
        if len(winners) < len(part):
            unreadable = set(self._find(part, write=False))
            part = part.only([row for row in winners if row not in unreadable])
        self._find(part, write=True)

    def finish(self) -> None:
        if not self.too_many:
            self._refused = try_again(self._refused, lambda part: self._try(part, 0, 1, write=True))

    def _find(self, part: SiftedPart, *, write: bool) -> list[int]:
        """Record the refused rows of a part; returns their positions in it."""
        attempt = partial(self._try, part, write=write)
        found = find_refused(len(part), attempt, most=self._most - len(self._refused))
        self._refused += [(part.only([row]), error) for row, error in found]
        return [row for row, _ in found]

    def _try(self, part: SiftedPart, start: int, stop: int, *, write: bool) -> ConstraintError | None:
        """Have the database parse rows, and write them; None if it accepted all, else the refusal, with none kept."""
        with closing(self._connection.connection.cursor()) as cursor:
            cursor.execute("SAVEPOINT _2pc_sift")
            try:
                rows = self._table(self._connection)
                rows.copy([part.between(start, stop)])
                if write:
                    rows.delete()
                    rows.write()
                    rows.finish(stop - start)
                rows.forget()
            except ConstraintError as refusal:
                cursor.execute("ROLLBACK TO SAVEPOINT _2pc_sift; RELEASE SAVEPOINT _2pc_sift")
                return refusal
            cursor.execute("RELEASE SAVEPOINT _2pc_sift")
        return None
