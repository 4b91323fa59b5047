"""The frame of PostgreSQL's COPY BINARY format, and how several streams become one COPY.

A stream is a header of 19 bytes (signature, flags, length of an extension that does not exist), rows, and a trailer
of two bytes (PostgreSQL's documentation, COPY, "Binary Format"). Rows name neither table nor columns, so the rows of
many streams, each made in its own task, can follow one another behind one header.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.sink.table.identifiers import TableName, identifiers

#: Signature, flags 0, header extension of 0 bytes.
HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
#: A row with -1 columns.
TRAILER = b"\xff\xff"

#: How much psycopg2 is given at a time: bounds the copy that it and libpq make of what they send. Measured with 93 MB,
#: sizes from 8 KiB to 8 MiB are equally fast, so this is a size that no process notices.
READ_BYTES = 256 * 1024


#: One complete stream, whole or in the pieces in which a `CopyEncoder` returned it: header in the first, trailer in the
#: last. A piece is anything that has the buffer protocol, such as bytes or a pyarrow.Buffer.
Stream = Sequence[Any]


class CopyReader:
    """What ``copy_expert`` reads: the rows of all streams behind one header, in front of one trailer.

    Args:
        streams: complete streams; those without any byte are passed over. Taken one at a time and never put together.
    """

    def __init__(self, streams: Iterable[Stream]) -> None:
        self._slices = _slices(streams)
        self._failure: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        """What :meth:`read` raised: psycopg2 passes on no more than its text, as a canceled query."""
        return self._failure

    def read(self, size: int = READ_BYTES) -> bytes:
        """The next bytes, at most `READ_BYTES` of them; empty at the end. ``size`` is what psycopg2 would like.

        Raises:
            LocalProtocolError: a stream has no header or no trailer.
        """
        del size  # psycopg2 takes what it is given
        try:
            return next(self._slices, b"")
        except Exception as error:
            self._failure = error
            raise


def copy_streams(
    cursor: psycopg2.extensions.cursor, table: TableName, columns: Sequence[str], streams: Iterable[Stream]
) -> int:
    """Copy the rows of all streams into a table by one command, and say how many there were.

    Raises:
        LocalProtocolError: a stream has no header or no trailer.
        psycopg2.Error: PostgreSQL refused a row, or the connection failed.
    """
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(table.identifier, identifiers(columns))
    reader = CopyReader(streams)
    source: Any = reader  # of a file's methods, COPY FROM calls read() only
    try:
        cursor.copy_expert(statement, source, READ_BYTES)
    except psycopg2.Error:
        if reader.failure is not None:
            raise reader.failure from None
        raise
    return cursor.rowcount


def rows_only(stream: Stream) -> list[memoryview]:
    """The pieces of a complete stream without its header and trailer; none for a stream without any byte.

    Raises:
        LocalProtocolError: it has no header or no trailer, for instance because ``CopyEncoder.finish`` was left out.
    """
    pieces = [view for view in (memoryview(piece).cast("B") for piece in stream) if len(view)]
    if not pieces:
        return []
    if pieces[0][: len(HEADER)] != HEADER or pieces[-1][-len(TRAILER) :] != TRAILER:
        raise LocalProtocolError(
            operation="copy",
            state=f"a stream of {sum(map(len, pieces))} bytes without header or trailer",
            rule="it is what a CopyEncoder gave from its first encode() to its finish(), nothing left out",
        )
    pieces[0] = pieces[0][len(HEADER) :]
    pieces[-1] = pieces[-1][: -len(TRAILER)]
    return pieces


def _slices(streams: Iterable[Stream]) -> Iterator[bytes]:
    yield HEADER
    for stream in streams:
        for rows in rows_only(stream):
            for start in range(0, len(rows), READ_BYTES):
                yield bytes(rows[start : start + READ_BYTES])
    yield TRAILER
