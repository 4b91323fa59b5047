"""The staging tables: staged rows in the database, which is what driver and tasks of a cluster have in common.

A task fills one table on a short connection of its own (`_TableStore`), each part in a transaction of its own. The
driver reads each part by its number in the transaction that decides (`StagedTables`). Tables are dropped by name when
their attempt is over, each in a transaction of its own (`drop_ended_staging`): after the decision, which must not wait
for somebody who reads one of them. They are unlogged: a crash of the server empties them.

A part is cut into slices that fill a page each, wherever its rows end. As one value, the server would cut it into
pieces of 2 KB itself (TOAST), four times as many, each by its own way into the table and its index.
"""

from __future__ import annotations

import hashlib
import re
import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql
from sqlalchemy import MetaData, Table, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import DropTable

from jdbc_state.connections import ANSWER_GRACE_MS, UNTIMED, connect_alone
from jdbc_state.encryption import check_encrypted
from jdbc_state.sqlstate import describe, sqlstate_of
from jdbc_state.watchdog import Watchdog
from spark_2pc_sink.errors import BatchRetryError, DatabaseUnreachableError, LocalProtocolError
from spark_2pc_sink.sink.contract.row_transfer import StagedParts
from spark_2pc_sink.sink.table.catalog import driver_connection
from spark_2pc_sink.sink.table.copy_stream import HEADER, TRAILER, Stream, copy_streams
from spark_2pc_sink.sink.table.identifiers import TableName, identifiers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from sqlalchemy import Connection

    from spark_2pc_sink.options.common import CommonOptions
    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket

#: Tables that one call drops or tries to: somebody waits for it, and each is a transaction.
LEFTOVERS_MAX = 500
#: How long one table is waited for, and how many of them: a second in all. Who holds a lock on a staging table is
#: either done with it in a moment, or keeps it for as long as a backup takes.
DROP_LOCK_TIMEOUT_MS = 200
LOCKED_MAX = 5
#: Of the tables that were not dropped, for how many a message says why.
_REASONS_MAX = 3
_LOCK_NOT_AVAILABLE = "55P03"

_STAGE = "_2pc_stage_"
_NAME = re.compile(
    rf"{_STAGE}(?P<owner>[0-9a-f]{{10}})_(?P<generation>\d+)_(?P<attempt>\d+)_(?P<task>\d+)(?:_(?P<lane>\d+))?"
)
_OWNER_CHARACTERS = 10
#: With its row's header and the other columns, just below the 8160 bytes of a row that a page of 8 KiB takes.
SLICE_BYTES = 8096
_COLUMNS = ("part", "slice", "task_attempt", "payload")
# A row of them in COPY BINARY, up to the payload: how many columns, and each with its length before it.
_ROW = struct.Struct("!h ii ii iq i")


@dataclass(frozen=True)
class StagingName:
    """Whose rows a staging table has.

    No two tables ever have the same name, so that what a slow task of an abandoned attempt commits late is never
    taken for the rows of a newer one: within a generation, ``attempt`` counts transactions and does not start again.

    Attributes:
        owner: ten hexadecimal digits that stand for the sink, see `owner_of`.
        generation: the claim under which the batch runs.
        attempt: the transaction within the claim.
        task: the Spark partition.
        lane: of the rows; the name of the first does not have it.
    """

    owner: str
    generation: int
    attempt: int
    task: int
    lane: int = 0

    @classmethod
    def of(cls, owner: str, ticket: TransactionTicket, task: int, lane: int = 0) -> StagingName:
        """The name for a task of an attempt."""
        return cls(owner, ticket.generation, ticket.transaction, task, lane)

    @classmethod
    def parse(cls, text: str) -> StagingName | None:
        """The parts of a table's name, or None for a table that is not ours."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        numbers = (int(found[name] or 0) for name in ("generation", "attempt", "task", "lane"))
        return cls(found["owner"], *numbers)

    def __str__(self) -> str:
        lane = f"_{self.lane}" if self.lane else ""
        return f"{_STAGE}{self.owner}_{self.generation}_{self.attempt}_{self.task}{lane}"


@dataclass(frozen=True)
class StagingSession:
    """How a task connects.

    Attributes:
        database: SQLAlchemy URL, postgresql+psycopg2; not shown, for its password.
        application_name: what pg_stat_activity shows, and by which a newer driver ends this session.
        connect_timeout_s: bound of the connection's start.
        lock_timeout_ms: bound of each wait for a lock.
        statement_timeout_ms: bound of each COPY.
        password: asked in the task for each connection; see `StoreSettings.password`.
        require_tls: refuse a connection to another machine that has no TLS.
    """

    database: str = field(repr=False)
    application_name: str
    connect_timeout_s: int
    lock_timeout_ms: int
    statement_timeout_ms: int
    password: Callable[[], str] | None = field(default=None, repr=False)
    require_tls: bool = False

    @classmethod
    def of(cls, options: CommonOptions, application_name: str) -> StagingSession:
        """What tasks need of a sink's options."""
        return cls(
            database=options.database,
            application_name=application_name,
            connect_timeout_s=options.connect_timeout_s,
            lock_timeout_ms=options.lock_timeout_ms,
            statement_timeout_ms=options.statement_timeout_ms,
            password=options.password_source,
            require_tls=options.require_tls,
        )

    def connect(self) -> psycopg2.extensions.connection:
        """A connection of its own.

        Raises:
            DatabaseUnreachableError: none could be made, also because the server has no connection left.
            ConfigurationError: it has no TLS, and that is required.
        """
        try:
            connection = connect_alone(
                make_url(self.database),
                password=self.password,
                client_encoding="utf8",
                connect_timeout=self.connect_timeout_s,
                application_name=self.application_name,
            )
        except psycopg2.OperationalError as error:
            raise DatabaseUnreachableError(operation="connect for staging", detail=str(error).strip()) from error
        if self.require_tls:  # the driver has warned where that is all
            check_encrypted(connection, "the database", required=True)
        return connection

    def watched(self, connection: psycopg2.extensions.connection) -> Watchdog:
        """Bound a transaction of one COPY where the server cannot, because it is stopped."""
        return Watchdog(connection, self.statement_timeout_ms + ANSWER_GRACE_MS)

    def bound(self, cursor: psycopg2.extensions.cursor) -> None:
        """Begin a transaction that has these bounds; a session's settings would outlive it behind PgBouncer."""
        cursor.execute(
            f"SET LOCAL lock_timeout = %s; SET LOCAL statement_timeout = %s; {UNTIMED}",
            (self.lock_timeout_ms, self.statement_timeout_ms),
        )


@dataclass(frozen=True)
class TableStaging:
    """See `Staging`.

    Attributes:
        session: how a task connects.
        schema: of the tables.
        owner: see `owner_of`.
        ticket: of the attempt; with owner, lane and the number of an encode task it names a table.
        lane: of the rows.
        look_s: see `Staging`; each look is a query or two, and the batch waits for rows that nobody has seen yet.
        part_bytes: see `Staging`; large enough that the cost of one more transaction does not matter.
    """

    session: StagingSession
    schema: str
    owner: str
    ticket: TransactionTicket
    lane: int = 0
    look_s: float = 0.05
    part_bytes: int = 4 * 1024 * 1024

    def store(self, encode_task: int, task_attempt: int) -> _TableStore:
        """See `Staging.store`."""
        name = StagingName.of(self.owner, self.ticket, encode_task, self.lane)
        return _TableStore(self.session, name=name, schema=self.schema, task_attempt=task_attempt)

    def staged(self, connection: Connection) -> StagedTables:
        """See `Staging.staged`; the transaction is READ COMMITTED: each look sees what was committed before it."""
        return StagedTables(self.owner, self.ticket, connection, self.schema, self.lane)


class _TableStore:
    """Fills one staging table; a context manager that closes the connection.

    Args:
        session: how to connect.
        name: of the table, never used before.
        schema: where to create it.
        task_attempt: tells the attempts of one encode task apart.
    """

    def __init__(self, session: StagingSession, *, name: StagingName, schema: str, task_attempt: int) -> None:
        self._session = session
        self._table = TableName(name=str(name), schema=schema)
        self._task_attempt = task_attempt
        self._connection: psycopg2.extensions.connection | None = None

    def __enter__(self) -> _TableStore:
        """Connect and create the table.

        Raises:
            DatabaseUnreachableError: no connection could be made.
            BatchRetryError: there is a table of this name.
        """
        self._connection = self._session.connect()
        try:
            with self._transaction() as cursor:
                # In its row and as it is: what is read once, a moment later, is not worth compressing.
                cursor.execute(
                    sql.SQL(
                        "CREATE UNLOGGED TABLE {table} "
                        "(part integer, slice integer, task_attempt bigint, payload bytea); "
                        "ALTER TABLE {table} ALTER payload SET STORAGE PLAIN; "
                        "CREATE INDEX ON {table} (part)"
                    ).format(table=self._table.identifier)
                )
        except psycopg2.errors.DuplicateTable as error:
            self._close()
            raise BatchRetryError(
                reason=f"staging table {self._table} is there already: its encode task ran again"
            ) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def put(self, number: int, stream: Stream) -> None:
        """See `PartStore.put`."""
        rows = b"".join((HEADER, *_sliced(b"".join(stream), part=number, task_attempt=self._task_attempt), TRAILER))
        with self._transaction() as cursor:
            copy_streams(cursor, self._table, _COLUMNS, [[rows]])

    @contextmanager
    def _transaction(self) -> Iterator[psycopg2.extensions.cursor]:
        connection = self._connection
        if connection is None:
            raise LocalProtocolError(operation="write", state="closed", rule="rows go in between enter and exit")
        with self._session.watched(connection):
            with connection.cursor() as cursor:
                self._session.bound(cursor)
                yield cursor
            connection.commit()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class StagedTables(StagedParts):
    """See `StagedParts`. A table that vanishes was dropped as a leftover by a newer driver, or by a person.

    Args:
        owner: see `owner_of`.
        ticket: of the attempt.
        connection: of the transaction that decides.
        schema: of the tables.
        lane: of the rows.
    """

    def __init__(
        self, owner: str, ticket: TransactionTicket, connection: Connection, schema: str, lane: int = 0
    ) -> None:
        super().__init__()
        self._lane = lane
        self._connection = driver_connection(connection)
        self._schema = schema
        self._prefix = str(StagingName.of(owner, ticket, 0)).removesuffix("0")

    def _places(self) -> list[tuple[int, StagingName]]:
        with self._connection.cursor() as cursor:
            names = staging_names(cursor, self._schema, self._prefix)
        return [(name.task, name) for name in names if name.lane == self._lane]

    def _read(self, place: StagingName, number: int) -> tuple[int, Stream] | None:
        # Not ordered here: the server knows nothing about so new a table, and would rather sort than follow an index.
        query = sql.SQL("COPY (SELECT {} FROM {} WHERE part = {}) TO STDOUT (FORMAT binary)").format(
            identifiers(_COLUMNS), self._table(place).identifier, sql.Literal(number)
        )
        answer = BytesIO()
        try:
            with self._connection.cursor() as cursor:
                cursor.copy_expert(query, answer)
        except psycopg2.errors.UndefinedTable as error:
            raise BatchRetryError(reason=f"staging table {place} of this batch is gone") from error
        return _put_together(answer.getbuffer()[len(HEADER) : -len(TRAILER)])

    def _table(self, name: StagingName) -> TableName:
        return TableName(name=str(name), schema=self._schema)


def _sliced(payload: bytes, *, part: int, task_attempt: int) -> Iterator[bytes | memoryview]:
    """The rows of a part in COPY BINARY."""
    view = memoryview(payload)
    for number, begin in enumerate(range(0, len(view), SLICE_BYTES)):
        chunk = view[begin : begin + SLICE_BYTES]
        yield _ROW.pack(len(_COLUMNS), 4, part, 4, number, 8, task_attempt, len(chunk))
        yield chunk


def _put_together(rows: memoryview) -> tuple[int, Stream] | None:
    """The task attempt and the stream of a part, from its rows in any order; None for no rows."""
    slices: dict[int, memoryview] = {}
    task_attempt = at = 0
    while at < len(rows):
        _, _, _, _, number, _, task_attempt, length = _ROW.unpack_from(rows, at)
        at += _ROW.size
        slices[number] = rows[at : at + length]
        at += length
    return (task_attempt, [b"".join(slices[number] for number in range(len(slices)))]) if slices else None


def owner_of(transactional_id: str, *, state_schema: str, state_table: str) -> str:
    """The ten hexadecimal digits that stand for a sink in the names of its staging tables.

    A sink is a row of a state table. The same id beside another state table, of another Kafka cluster for instance, is
    another sink: generations of the two say nothing of each other.
    """
    # No name of PostgreSQL contains NUL.
    named = f"{state_schema}\0{state_table}\0{transactional_id}"
    return hashlib.sha256(named.encode()).hexdigest()[:_OWNER_CHARACTERS]


def staging_names(cursor: psycopg2.extensions.cursor, schema: str, prefix: str) -> list[StagingName]:
    """The staging tables whose names begin like this, found by the index of the catalog's names."""
    cursor.execute(
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname >= %s AND c.relname < %s AND c.relkind = 'r' ORDER BY c.relname",
        # Names are in the order of their bytes, whatever the database's collation.
        (schema, prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)),
    )
    parsed = [StagingName.parse(name) for (name,) in cursor.fetchall()]
    return [name for name in parsed if name is not None]


@dataclass(frozen=True)
class DroppedStaging:
    """The outcome of dropping staging tables that nobody needs any more.

    Attributes:
        dropped: these are gone.
        left: how many are still there, as far as one call looks.
        reasons: of the first of them, which and why.
    """

    dropped: tuple[TableName, ...]
    left: int
    reasons: tuple[str, ...]


def drop_ended_staging(connection: Connection, *, schema: str, owner: str, ended: tuple[int, int]) -> DroppedStaging:
    """Drop the staging tables of a sink's attempts that are over, each in a transaction of its own.

    Args:
        connection: on which each statement is a transaction and has a short lock_timeout; see `Database.requests`.
        schema: where staging tables are created.
        owner: see `owner_of`; tables of others are left alone.
        ended: generation and number of the last attempt that is over; number 0 for those of older claims only.

    Returns:
        What was dropped and what was not: of at most `LEFTOVERS_MAX` tables; so many mean that there may be more.

    Raises:
        SQLAlchemyError, psycopg2.Error: the connection broke.
    """
    with driver_connection(connection).cursor() as cursor:
        names = staging_names(cursor, schema, f"{_STAGE}{owner}_")
    over = [TableName(str(name), schema) for name in names if (name.generation, name.attempt) <= ended][:LEFTOVERS_MAX]
    dropped: list[TableName] = []
    reasons: list[str] = []
    locked = 0
    for table in over:
        try:
            # If it is there: a newer driver may have been quicker.
            connection.execute(DropTable(Table(table.name, MetaData(), schema=table.schema), if_exists=True))
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            # Somebody reads it (55P03), or it is another role's (42501), or a view was made of it (2BP01), ...
            reasons.append(f"{table}: {describe(error)}")
            locked += sqlstate_of(error) == _LOCK_NOT_AVAILABLE
            if locked == LOCKED_MAX:
                break
        else:
            dropped.append(table)
    return DroppedStaging(tuple(dropped), len(over) - len(dropped), tuple(reasons[:_REASONS_MAX]))
