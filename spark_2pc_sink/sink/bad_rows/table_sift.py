"""The sift of a table: which rows PostgreSQL refuses, found in a transaction that is rolled back.

Rows are written as a batch writes them, by the same code, into the same table, with its triggers, in a savepoint for
each try. What is taken stays until the transaction ends, so that a row is judged beside those before it: of two rows
with one primary key, the second is refused. A deferred constraint is checked at the end of each try.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg2 import sql

from spark_2pc_sink.errors import ConstraintError, LocalProtocolError
from spark_2pc_sink.sink.bad_rows.bad_row import RefusedRow, RowNames, find_refused, try_again
from spark_2pc_sink.sink.table.catalog import driver_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.table.table_writer import Rows, TableRows


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


_SAVEPOINT: Final = sql.Identifier("_2pc_sift")


@dataclass(frozen=True)
class SiftedPart:
    """Some rows of a batch, encoded for the table, and which rows they are.

    Attributes:
        rows: one behind the other.
        names: of each row.
    """

    rows: CopyRows
    names: RowNames

    @classmethod
    def all_of(cls, sent: memoryview) -> Iterator[SiftedPart]:
        """The parts in what a task has sent, each as `RowNames.packed` made it."""
        for names, rows in RowNames.unpack(sent):
            yield cls(CopyRows(rows, len(names)), names)

    def only(self, rows: Sequence[int]) -> SiftedPart:
        """Some of the rows."""
        return SiftedPart(self.rows.only(rows), self.names.only(rows))


class TableSift:
    """Tries the rows of a batch part by part.

    Args:
        connection: of a transaction that will be rolled back.
        table: opens the table for the rows of one try.
        output: what refused rows say of it.
        most: look no further when more rows than these are refused.
    """

    def __init__(
        self, connection: Connection, table: Callable[[Connection], TableRows], *, output: str, most: int
    ) -> None:
        self._connection = connection
        self._table = table
        self._output = output
        self._most = most
        # Each as a part of its own: it is tried once more at the end.
        self._refused: list[tuple[SiftedPart, ConstraintError]] = []

    @property
    def refused(self) -> list[RefusedRow]:
        """The rows that were refused so far."""
        return [RefusedRow.of(*part.names[0], self._output, error) for part, error in self._refused]

    @property
    def too_many(self) -> bool:
        """True where no further part need be tried."""
        return len(self._refused) > self._most

    def take(self, part: SiftedPart) -> None:
        """Try the rows of a part, and keep those that are taken.

        Of a superseded row nothing is asked but that the database can read it: its table never gets it.

        Raises:
            DataError: it is about no single row, such as a key that an upsert has twice.
        """
        if not part.names.all_win:
            unreadable = set(self._find(part, self._read))
            part = part.only([row for row in part.names.winners if row not in unreadable])
        self._find(part, self._write)

    def finish(self) -> None:
        """Try refused rows once more, now that all others are there: a foreign key may name a row that came later."""
        if self.too_many:
            return
        parts = [part for part, _ in self._refused]
        numbered = [(place, error) for place, (_, error) in enumerate(self._refused)]
        still = try_again(numbered, lambda place, _: self._write(parts[place].rows.between(0, 1), 1))
        self._refused = [(parts[place], error) for place, error in still]

    def _find(self, part: SiftedPart, attempt: Callable[[Sequence[Rows], int], ConstraintError | None]) -> list[int]:
        """Keep the refused rows of a part in mind; their places in it."""
        found = find_refused(
            len(part.names),
            lambda start, stop: attempt(part.rows.between(start, stop), stop - start),
            most=self._most - len(self._refused),
        )
        self._refused += [(part.only([row]), error) for row, error in found]
        return [row for row, _ in found]

    def _read(self, pieces: Sequence[Rows], count: int) -> ConstraintError | None:
        """Have the database read rows; None where it could."""
        del count

        def read(rows: TableRows) -> None:
            rows.copy(pieces)

        return self._try(read)

    def _write(self, pieces: Sequence[Rows], count: int) -> ConstraintError | None:
        """Write rows; None where all were taken, else the refusal, and nothing of them is there."""

        def write(rows: TableRows) -> None:
            rows.copy(pieces)
            rows.delete()
            rows.write()
            rows.finish(count)

        return self._try(write)

    def _try(self, what: Callable[[TableRows], None]) -> ConstraintError | None:
        with driver_connection(self._connection).cursor() as cursor:
            cursor.execute(sql.SQL("SAVEPOINT {}").format(_SAVEPOINT))
            try:
                rows = self._table(self._connection)
                what(rows)
                rows.forget()
            except ConstraintError as refusal:
                cursor.execute(sql.SQL("ROLLBACK TO SAVEPOINT {0}; RELEASE SAVEPOINT {0}").format(_SAVEPOINT))
                return refusal
            cursor.execute(sql.SQL("RELEASE SAVEPOINT {}").format(_SAVEPOINT))
        return None
