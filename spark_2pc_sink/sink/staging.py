"""Staging tables: where a task puts its rows when they are too many to pass through the driver's memory.

A task fills one table on a short connection of its own (`StagingTable`), part by part: a part is a complete COPY
BINARY stream, as bytes, in a row and a transaction of its own. The driver copies each part into the target as soon as
it is there, while the task still runs, and drops the table in the transaction that decides (`StagedParts`). Tables of
attempts that were given up are dropped later, by name (`drop_leftover_staging`).

The tables are unlogged: parts are written once and read once, and a crash of the server empties them. So what was
read is compared with the account of the task, and an attempt of which something is missing is thrown away.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql
from sqlalchemy import make_url

from spark_2pc_sink.errors import BatchRetryError, DatabaseUnreachableError, LocalProtocolError
from spark_2pc_sink.sink.copy_stream import HEADER, TRAILER, Stream, copy_streams
from spark_2pc_sink.sink.identifiers import TableName
from spark_2pc_sink.sink.target import driver_connection

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: Bytes of a part: a few of them fit any executor and the driver, and the cost of a transaction more is lost in the
#: time that so many bytes take.
PART_BYTES = 8 * 1024 * 1024
#: Leftover tables dropped by one call: each takes a few places in the server's lock table, which has 6400 by default
#: (max_locks_per_transaction x max_connections) for all sessions together.
LEFTOVERS_MAX = 500

_STAGE = "_2pc_stage_"
_NAME = re.compile(rf"{_STAGE}(?P<owner>[0-9a-f]{{10}})_(?P<generation>\d+)_(?P<attempt>\d+)_(?P<task>\d+)")
_OWNER_CHARACTERS = 10
# Of a row in COPY BINARY: the number of its columns, and each with its length before it.
_THREE = struct.pack("!h", 3)
_INT4 = struct.Struct("!ii")
_INT8 = struct.Struct("!iq")
_LENGTH = struct.Struct("!i")


@dataclass(frozen=True)
class StagingName:
    """Whose rows a staging table has.

    No two tables ever have the same name, so that what a slow task of an abandoned attempt commits late is never
    taken for the rows of a newer one: within a generation, ``attempt`` counts transactions and does not start again.

    Attributes:
        owner: ten hexadecimal digits that stand for the transactional id, see `owner_of`.
        generation: the claim under which the batch runs.
        attempt: the transaction within the claim.
        task: the Spark partition.
    """

    owner: str
    generation: int
    attempt: int
    task: int

    @classmethod
    def parse(cls, text: str) -> StagingName | None:
        """The parts of a table's name, or None for a table that is not ours."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        return cls(found["owner"], int(found["generation"]), int(found["attempt"]), int(found["task"]))

    def __str__(self) -> str:
        return f"{_STAGE}{self.owner}_{self.generation}_{self.attempt}_{self.task}"


@dataclass(frozen=True)
class StagingSession:
    """How a task connects.

    Attributes:
        database: SQLAlchemy URL, postgresql+psycopg2; not shown, for its password.
        application_name: what pg_stat_activity shows, and by which a newer driver ends this session.
        connect_timeout_s: bound of the connection's start.
        lock_timeout_ms: bound of each wait for a lock.
        statement_timeout_ms: bound of each COPY; 0 for none.
    """

    database: str = field(repr=False)
    application_name: str
    connect_timeout_s: int
    lock_timeout_ms: int
    statement_timeout_ms: int

    def connect(self) -> psycopg2.extensions.connection:
        """A connection of its own.

        Raises:
            DatabaseUnreachableError: none could be made, also because the server has no connection left.
        """
        url = make_url(self.database)
        arguments, keywords = url.get_dialect()().create_connect_args(url)
        keywords.update(
            client_encoding="utf8", connect_timeout=self.connect_timeout_s, application_name=self.application_name
        )
        try:
            connection: psycopg2.extensions.connection = psycopg2.connect(*arguments, **keywords)
        except psycopg2.OperationalError as error:
            raise DatabaseUnreachableError(operation="connect for staging", detail=str(error).strip()) from error
        return connection

    def bound(self, cursor: psycopg2.extensions.cursor) -> None:
        """Begin a transaction that has these bounds; a session's settings would outlive it behind PgBouncer."""
        cursor.execute(
            "SET LOCAL lock_timeout = %s; SET LOCAL statement_timeout = %s",
            (self.lock_timeout_ms, self.statement_timeout_ms),
        )


class StagingTable:
    """Fills one staging table; a context manager that closes the connection.

    ``write`` takes what a `CopyEncoder` returns, in order, and ``finish`` what its ``finish`` returns. At most
    `PART_BYTES` and one more piece are held in memory.

    Args:
        session: how to connect.
        name: of the table, never used before.
        schema: where to create it.
        run: tells the runs of one source apart.
        part_bytes: see `PART_BYTES`.
    """

    def __init__(
        self, session: StagingSession, *, name: StagingName, schema: str, run: int, part_bytes: int = PART_BYTES
    ) -> None:
        self._session = session
        self._table = TableName(name=str(name), schema=schema)
        self._run = run
        self._part_bytes = part_bytes
        self._connection: psycopg2.extensions.connection | None = None
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._begun = False
        self.parts = 0

    def __enter__(self) -> StagingTable:
        """Connect and create the table.

        Raises:
            DatabaseUnreachableError: no connection could be made.
            BatchRetryError: there is a table of this name.
        """
        self._connection = self._session.connect()
        try:
            with self._transaction() as cursor:
                # Stored as it is: what is read once, a moment later, is not worth compressing.
                cursor.execute(
                    sql.SQL(
                        "CREATE UNLOGGED TABLE {table} (part integer, run bigint, stream bytea); "
                        "ALTER TABLE {table} ALTER stream SET STORAGE EXTERNAL"
                    ).format(table=self._table.identifier)
                )
        except psycopg2.errors.DuplicateTable as error:
            self._close()
            raise BatchRetryError(
                reason=f"staging table {self._table} is there already: its source ran again"
            ) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def write(self, data: bytes) -> None:
        """Take the next output of the encoder.

        Raises:
            LocalProtocolError: it is the first, and has no header.
        """
        if not self._begun and data:
            if not data.startswith(HEADER):
                raise LocalProtocolError(operation="write", state="begun", rule="a stream begins with its header")
            data = data[len(HEADER) :]
            self._begun = True
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._part_bytes:
            self._flush()

    def finish(self, tail: bytes) -> None:
        """Take what the encoder's ``finish`` returned; all parts are committed then.

        Raises:
            LocalProtocolError: ``tail`` is not the end of the stream.
        """
        if not tail.endswith(TRAILER):
            raise LocalProtocolError(operation="finish", state="begun", rule="a stream ends with its trailer")
        self.write(tail[: -len(TRAILER)])
        if self._held_bytes:
            self._flush()

    def _flush(self) -> None:
        part = [HEADER, *self._pieces, TRAILER]
        fields = (_INT4.pack(4, self.parts), _INT8.pack(8, self._run), _LENGTH.pack(sum(map(len, part))))
        self._pieces, self._held_bytes = [], 0
        with self._transaction() as cursor:
            copy_streams(cursor, self._table, ("part", "run", "stream"), [[HEADER, _THREE, *fields, *part, TRAILER]])
        self.parts += 1

    @contextmanager
    def _transaction(self) -> Iterator[psycopg2.extensions.cursor]:
        connection = self._connection
        if connection is None:
            raise LocalProtocolError(operation="write", state="closed", rule="rows go in between enter and exit")
        with connection.cursor() as cursor:
            self._session.bound(cursor)
            yield cursor
        connection.commit()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class StagedParts:
    """What the tasks of one attempt have staged, read in the transaction that decides, also while they go on.

    Args:
        connection: of that transaction, READ COMMITTED: each statement sees what was committed before it.
        schema: of the tables.
        owner: see `owner_of`.
        generation: the claim.
        attempt: the transaction within it.

    Attributes:
        taken: of each source the run and how many parts were read.
    """

    def __init__(self, connection: Connection, *, schema: str, owner: str, generation: int, attempt: int) -> None:
        self._connection = driver_connection(connection)
        self._schema = schema
        self._prefix = f"{_STAGE}{owner}_{generation}_{attempt}_"
        self.taken: dict[int, tuple[int, int]] = {}

    def arrived(self) -> Iterator[Stream]:
        """Parts that were not there before, one in memory at a time.

        Raises:
            BatchRetryError: a table has vanished: a newer driver has dropped it as a leftover, or a person did.
        """
        for name in self._names():
            while (part := self._read(name)) is not None:
                run, stream = part
                self.taken[name.task] = (run, self.taken.get(name.task, (run, 0))[1] + 1)
                yield stream

    def drop(self) -> None:
        """Drop the tables."""
        if self.taken:
            with self._connection.cursor() as cursor:
                drop_tables(cursor, [self._table(name) for name in self._names()])

    def _names(self) -> list[StagingName]:
        with self._connection.cursor() as cursor:
            return staging_names(cursor, self._schema, self._prefix)

    def _read(self, name: StagingName) -> tuple[int, Stream] | None:
        """The next part of a table."""
        _, number = self.taken.get(name.task, (0, 0))
        query = sql.SQL("COPY (SELECT run, stream FROM {} WHERE part = {}) TO STDOUT (FORMAT binary)").format(
            self._table(name).identifier, sql.Literal(number)
        )
        answer = BytesIO()
        try:
            with self._connection.cursor() as cursor:
                cursor.copy_expert(query, answer)
        except psycopg2.errors.UndefinedTable as error:
            raise BatchRetryError(reason=f"staging table {name} of this batch is gone") from error
        rows = answer.getbuffer()[len(HEADER) : -len(TRAILER)]
        if not rows:
            return None
        _, run = _INT8.unpack_from(rows, len(_THREE))
        return run, [rows[len(_THREE) + _INT8.size + _LENGTH.size :]]

    def _table(self, name: StagingName) -> TableName:
        return TableName(name=str(name), schema=self._schema)


def owner_of(transactional_id: str) -> str:
    """The ten hexadecimal digits that stand for a transactional id in the names of its staging tables."""
    return hashlib.sha256(transactional_id.encode()).hexdigest()[:_OWNER_CHARACTERS]


def staging_names(cursor: psycopg2.extensions.cursor, schema: str, prefix: str) -> list[StagingName]:
    """The staging tables whose names begin like this."""
    cursor.execute(
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND pg_catalog.left(c.relname, %s) = %s AND c.relkind = 'r' ORDER BY c.relname",
        (schema, len(prefix), prefix),
    )
    parsed = [StagingName.parse(name) for (name,) in cursor.fetchall()]
    return [name for name in parsed if name is not None]


def drop_tables(cursor: psycopg2.extensions.cursor, tables: Sequence[TableName]) -> None:
    """Drop tables in the cursor's transaction."""
    if tables:
        cursor.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(table.identifier for table in tables)))


def drop_leftover_staging(
    connection: Connection, *, schema: str, transactional_id: str, generation: int
) -> tuple[TableName, ...]:
    """Drop the staging tables that older claims of a sink left, and name them.

    Args:
        connection: inside a transaction of its own, with a lock_timeout: a table may be in use for a moment.
        schema: where staging tables are created.
        transactional_id: the sink's; tables of others are left alone.
        generation: the claim in force; its own tables are left alone.

    Returns:
        What was dropped: at most `LEFTOVERS_MAX` tables; so many mean that there may be more.
    """
    with driver_connection(connection).cursor() as cursor:
        leftovers = tuple(
            TableName(name=str(name), schema=schema)
            for name in staging_names(cursor, schema, f"{_STAGE}{owner_of(transactional_id)}_")
            if name.generation < generation
        )[:LEFTOVERS_MAX]
        drop_tables(cursor, leftovers)
    return leftovers
