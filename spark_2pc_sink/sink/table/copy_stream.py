"""The frame of PostgreSQL's COPY BINARY format, and how the rows of many tasks become one COPY.

A COPY is a header of 19 bytes (signature, flags, length of an extension that does not exist), rows, and a trailer of
two bytes (PostgreSQL's documentation, COPY, "Binary Format"). Rows name neither table nor columns, so the rows of many
tasks can follow one another after one header. Everything but `CopyReader` handles rows without the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from spark_2pc_sink.sink.table.copy_encoder import COPY_TRAILER
from spark_2pc_sink.sink.table.identifiers import TableName, identifiers

#: Signature, flags 0, header extension of 0 bytes.
HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)

#: How much psycopg2 is given at a time: bounds the copy that it and libpq make of what they send. Measured with 93 MB,
#: sizes from 8 KiB to 8 MiB are equally fast, so this is a size that no process notices.
READ_BYTES = 256 * 1024


#: COPY bytes of whole rows: anything that has the buffer protocol, such as bytes or a memoryview.
Rows = Any


class CopyReader:
    """What ``copy_expert`` reads: all rows after one header, and then the trailer.

    Args:
        pieces: COPY bytes of whole rows. Taken one at a time, when the one before has been read.
    """

    def __init__(self, pieces: Iterable[Rows]) -> None:
        self._slices = _slices(pieces)
        self._failure: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        """What :meth:`read` raised: psycopg2 passes on no more than its text, as a canceled query."""
        return self._failure

    def read(self, size: int = READ_BYTES) -> bytes:
        """The next bytes, at most `READ_BYTES` of them; empty at the end. ``size`` is what psycopg2 would like.

        Raises:
            Exception: what the iterable of pieces raises.
        """
        del size  # psycopg2 takes what it is given
        try:
            return next(self._slices, b"")
        except Exception as error:
            self._failure = error
            raise


def copy_rows(
    cursor: psycopg2.extensions.cursor, table: TableName, columns: Sequence[str], pieces: Iterable[Rows]
) -> int:
    """Copy rows into a table by one command, and return how many there were.

    Args:
        cursor: inside a transaction.
        table: where to.
        columns: what each row has.
        pieces: COPY bytes of whole rows.

    Raises:
        psycopg2.Error: PostgreSQL refused a row, or the connection failed.
        Exception: what the iterable of pieces raises.
    """
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(table.identifier, identifiers(columns))
    reader = CopyReader(pieces)
    source: Any = reader  # of a file's methods, COPY FROM calls read() only
    try:
        cursor.copy_expert(statement, source, READ_BYTES)
    except psycopg2.Error:
        if reader.failure is not None:
            raise reader.failure from None
        raise
    return cursor.rowcount


def _slices(pieces: Iterable[Rows]) -> Iterator[bytes]:
    yield HEADER
    for piece in pieces:
        rows = memoryview(piece).cast("B")
        for start in range(0, len(rows), READ_BYTES):
            yield bytes(rows[start : start + READ_BYTES])
    yield COPY_TRAILER
