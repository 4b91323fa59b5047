"""The sift of a table: finds the rows that PostgreSQL refuses, in a transaction that is rolled back.

Rows are written as a batch writes them: same code, same table, with its triggers, in one savepoint per try. Accepted
rows stay until the transaction ends, so each row is judged together with those before it: of two rows with one primary
key, the second is refused. Deferred constraints are checked at the end of each try.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_2pc_sink.errors import ConstraintError
from spark_2pc_sink.sink.bad_rows.bad_row import WINS, RefusedRow, find_refused, name_of, try_again, unpack_rows
from spark_2pc_sink.sink.rows.catalog import utf8_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection

    from spark_2pc_sink.sink.rows.table_copy import CopyBytes, TableRows


_COLUMNS: Final = struct.Struct("!h")
_LENGTH: Final = struct.Struct("!i")


class SiftedPart:
    """Some rows of a batch, encoded together for the table, with their names; any range of them can be copied.

    Row boundaries are located only when a part is requested: usually all rows are copied at once.
    """

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

    def between(self, start: int, stop: int) -> list[memoryview]:
        """The COPY bytes of the rows from ``start`` to below ``stop``."""
        if (start, stop) == (0, len(self)):
            return [self._rows]
        return [self._rows[self._begins[start] : self._begins[stop]]]

    def only(self, rows: Sequence[int]) -> SiftedPart:
        """A copy of some of the rows, which does not keep the others in memory."""
        chosen = (self._rows[self._begins[row] : self._begins[row + 1]] for row in rows)
        return SiftedPart(self.names.take(pa.array(rows, pa.int64())), b"".join(chosen))

    @cached_property
    def _begins(self) -> list[int]:
        """The offset of each row, and the end of the last one."""
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
    """Tries the rows of a batch part by part.

    Args:
        connection: in a transaction that will be rolled back.
        table: opens the table for the rows of one try.
        most: stop once more rows than this are refused.
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
        """Try the rows of a part, and keep the accepted ones.

        A superseded row only has to be readable by the database: it is never written to the table.

        Raises:
            DataError: the error is not about a single row, e.g. an upsert with a duplicate key.
        """
        winners = part.winners
        if len(winners) < len(part):
            unreadable = set(self._find(part, write=False))
            part = part.only([row for row in winners if row not in unreadable])
        self._find(part, write=True)

    def finish(self) -> None:
        """Retry refused rows now that all others are written: a foreign key may refer to a later row."""
        if self.too_many:
            return
        parts = [part for part, _ in self._refused]
        numbered = [(place, error) for place, (_, error) in enumerate(self._refused)]
        still = try_again(numbered, lambda place, _: self._try(parts[place].between(0, 1), 1, write=True))
        self._refused = [(parts[place], error) for place, error in still]

    def _find(self, part: SiftedPart, *, write: bool) -> list[int]:
        """Record the refused rows of a part; returns their positions in it."""
        found = find_refused(
            len(part),
            lambda start, stop: self._try(part.between(start, stop), stop - start, write=write),
            most=self._most - len(self._refused),
        )
        self._refused += [(part.only([row]), error) for row, error in found]
        return [row for row, _ in found]

    def _try(self, pieces: Sequence[CopyBytes], count: int, *, write: bool) -> ConstraintError | None:
        """Have the database parse rows, and write them; None if it accepted all, else the refusal, with none kept."""
        with utf8_connection(self._connection).cursor() as cursor:
            cursor.execute("SAVEPOINT _2pc_sift")
            try:
                rows = self._table(self._connection)
                rows.copy(pieces)
                if write:
                    rows.delete()
                    rows.write()
                    rows.finish(count)
                rows.forget()
            except ConstraintError as refusal:
                cursor.execute("ROLLBACK TO SAVEPOINT _2pc_sift; RELEASE SAVEPOINT _2pc_sift")
                return refusal
            cursor.execute("RELEASE SAVEPOINT _2pc_sift")
        return None
