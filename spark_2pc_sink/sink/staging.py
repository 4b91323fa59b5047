"""Staging tables: where a task puts its rows when they are too many to pass through the driver.

A task fills one table on a short connection of its own (`StagingTable`), in one transaction, so that other
transactions see all of it or nothing. The driver moves the rows into the target and drops the table in the
transaction that decides (`database`). Tables of attempts that were given up are dropped later, by name
(`drop_leftover_staging`).

The tables are unlogged: rows are written once and read once, and a crash of the server empties them. So their rows
are counted before they are believed, and a count that differs throws the attempt away.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql
from sqlalchemy import make_url

from spark_2pc_sink.errors import BatchRetryError, DatabaseUnreachableError, LocalProtocolError
from spark_2pc_sink.sink.columns import ColumnPlan
from spark_2pc_sink.sink.copy_stream import HEADER, TRAILER, copy_streams
from spark_2pc_sink.sink.database_errors import refused_rows
from spark_2pc_sink.sink.identifiers import TableName, identifiers
from spark_2pc_sink.sink.target import changed_column, driver_connection

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: Encoded rows that a task gathers before it sends them by one COPY: a few of them fit any executor, and the cost of
#: a COPY more is lost in the time that so many bytes take.
FLUSH_BYTES = 8 * 1024 * 1024
#: Leftover tables dropped by one call: each takes a few places in the server's lock table, which has 6400 by default
#: (max_locks_per_transaction x max_connections) for all sessions together.
LEFTOVERS_MAX = 500

_NAME = re.compile(r"_2pc_stage_(?P<owner>[0-9a-f]{10})_(?P<generation>\d+)_(?P<attempt>\d+)_(?P<task>\d+)")
_OWNER_CHARACTERS = 10


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
        return f"_2pc_stage_{self.owner}_{self.generation}_{self.attempt}_{self.task}"


@dataclass(frozen=True)
class StagedRows:
    """A task's receipt: the table that it filled, and how many rows it put there."""

    table: TableName
    rows: int


@dataclass(frozen=True)
class StagingSession:
    """How a task connects.

    Attributes:
        database: SQLAlchemy URL, postgresql+psycopg2; not shown, for its password.
        application_name: what pg_stat_activity shows, and by which a newer driver ends this session.
        connect_timeout_s: bound of the connection's start.
        lock_timeout_ms: bound of each wait for a lock.
        statement_timeout_ms: bound of each COPY; 0 for none.
        idle_in_transaction_timeout_ms: bound of each wait for Spark's next rows; 0 for none.
    """

    database: str = field(repr=False)
    application_name: str
    connect_timeout_s: int
    lock_timeout_ms: int
    statement_timeout_ms: int
    idle_in_transaction_timeout_ms: int

    def connect(self) -> psycopg2.extensions.connection:
        """A connection of its own, in a transaction that has these bounds.

        They are set for the transaction only: a session's settings would outlive it behind PgBouncer.

        Raises:
            DatabaseUnreachableError: none could be made, also because the server has no connection left.
        """
        url = make_url(self.database)
        arguments, keywords = url.get_dialect()().create_connect_args(url)
        keywords.update(client_encoding="utf8", connect_timeout=self.connect_timeout_s)
        try:
            connection: psycopg2.extensions.connection = psycopg2.connect(*arguments, **keywords)
        except psycopg2.OperationalError as error:
            raise DatabaseUnreachableError(operation="connect for staging", detail=str(error).strip()) from error
        settings = {
            "application_name": self.application_name,
            "lock_timeout": str(self.lock_timeout_ms),
            "statement_timeout": str(self.statement_timeout_ms),
            "idle_in_transaction_session_timeout": str(self.idle_in_transaction_timeout_ms),
        }
        try:
            with connection.cursor() as cursor:
                for name, value in settings.items():
                    cursor.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))
        except BaseException:
            connection.close()
            raise
        return connection


class StagingTable:
    """Fills one staging table; a context manager that leaves nothing behind unless `commit` was reached.

    ``write`` takes what a `CopyEncoder` returns, in order, and ``commit`` what its ``finish`` returns. At most
    `FLUSH_BYTES` and one more piece are held in memory. The rows are sent by several COPY commands of one transaction,
    since psycopg2 reads the source of one COPY itself, and would need a thread beside it while Spark's rows arrive.

    Args:
        session: how to connect.
        plan: with which the rows are encoded.
        name: of the table, never used before.
        schema: where to create it.
        flush_bytes: see `FLUSH_BYTES`.
    """

    def __init__(
        self,
        session: StagingSession,
        plan: ColumnPlan,
        *,
        name: StagingName,
        schema: str,
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        self._session = session
        self._plan = plan
        self._table = TableName(name=str(name), schema=schema)
        self._flush_bytes = flush_bytes
        self._connection: psycopg2.extensions.connection | None = None
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._begun = False
        self._rows = 0

    def __enter__(self) -> StagingTable:
        """Connect and create the table.

        Raises:
            DatabaseUnreachableError: no connection could be made.
            BatchRetryError: there is a table of this name, or the target is not what it was when it was planned.
        """
        self._connection = self._session.connect()
        try:
            with self._connection.cursor() as cursor:
                # Creating it locks the target against ALTER TABLE until this transaction ends.
                cursor.execute(staging_ddl(self._plan, sql.SQL("UNLOGGED"), self._table, sql.SQL("")))
                check_unchanged(cursor, self._plan)
        except psycopg2.errors.DuplicateTable as error:
            self._close()
            raise BatchRetryError(reason=f"staging table {self._table} is there already") from error
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
            ConstraintError: PostgreSQL refused a row's form, such as text that is no JSON.
        """
        if not self._begun and data:
            if not data.startswith(HEADER):
                raise LocalProtocolError(operation="write", state="begun", rule="a stream begins with its header")
            data = data[len(HEADER) :]
            self._begun = True
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._flush_bytes:
            self._flush()

    def commit(self, tail: bytes) -> StagedRows:
        """Take what the encoder's ``finish`` returned, commit, and close the connection.

        Raises:
            ConstraintError: PostgreSQL refused a row's form.
            LocalProtocolError: ``tail`` is not the end of the stream.
        """
        if not tail.endswith(TRAILER):
            raise LocalProtocolError(operation="commit", state="begun", rule="a stream ends with its trailer")
        self.write(tail[: -len(TRAILER)])
        self._flush()
        connection = self._open()
        connection.commit()
        self._close()
        return StagedRows(table=self._table, rows=self._rows)

    def _flush(self) -> None:
        stream = [HEADER, *self._pieces, TRAILER]
        self._pieces, self._held_bytes = [], 0
        with self._open().cursor() as cursor, refused_rows(self._plan.table):
            self._rows += copy_streams(cursor, self._table, self._plan.copied_names, [stream])

    def _open(self) -> psycopg2.extensions.connection:
        if self._connection is None:
            raise LocalProtocolError(operation="write", state="closed", rule="rows go in between enter and commit")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def owner_of(transactional_id: str) -> str:
    """The ten hexadecimal digits that stand for a transactional id in the names of its staging tables."""
    return hashlib.sha256(transactional_id.encode()).hexdigest()[:_OWNER_CHARACTERS]


def staging_ddl(
    plan: ColumnPlan, persistence: sql.Composable, table: TableName, options: sql.Composable
) -> sql.Composable:
    """``CREATE … TABLE`` with the columns that a task encodes, of the target's own types and collations."""
    order: sql.Composable = sql.SQL("")
    if plan.order is not None:
        order = sql.SQL(", NULL::{} AS {}").format(
            sql.SQL(plan.order.target.type_name), sql.Identifier(plan.order.name)
        )
    return sql.SQL("CREATE {} TABLE {} {} AS SELECT {}{} FROM {} WITH NO DATA").format(
        persistence, table.identifier, options, identifiers(plan.names), order, plan.table.identifier
    )


def check_unchanged(cursor: psycopg2.extensions.cursor, plan: ColumnPlan) -> None:
    """Refuse when the target's columns are no longer those of the plan. The transaction holds a lock on it.

    Raises:
        BatchRetryError: someone has altered the table. Planned again, the batch may fit it.
    """
    changed = changed_column(cursor, plan.table, (column.target for column in plan.columns))
    if changed is not None:
        raise BatchRetryError(reason=f"the table was altered after the batch was planned: column {changed}")


def check_present(cursor: psycopg2.extensions.cursor, staged: Sequence[StagedRows]) -> None:
    """Refuse when a staging table is gone.

    Raises:
        BatchRetryError: one is; a newer driver has dropped it as a leftover, or a person did.
    """
    if not staged:
        return
    cursor.execute(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE pg_catalog.to_regclass(name) IS NULL LIMIT 1",
        ([str(stage.table) for stage in staged],),
    )
    gone = cursor.fetchone()
    if gone is not None:
        raise BatchRetryError(reason=f"staging table {gone[0]} of this batch is gone")


def check_count(cursor: psycopg2.extensions.cursor, stage: StagedRows) -> None:
    """Refuse when a staging table has not the rows that its task put there.

    Raises:
        BatchRetryError: it has not: the server crashed in between, and unlogged tables come back empty.
    """
    cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(stage.table.identifier))
    found = cursor.fetchone()
    if found != (stage.rows,):
        raise BatchRetryError(
            reason=f"staging table {stage.table} has {found[0] if found else 0} rows and its task put {stage.rows} "
            "there: the server has crashed and emptied it"
        )


def drop_staging(cursor: psycopg2.extensions.cursor, staged: Sequence[StagedRows]) -> None:
    """Drop staging tables in the cursor's transaction."""
    if staged:
        tables = sql.SQL(", ").join(stage.table.identifier for stage in staged)
        cursor.execute(sql.SQL("DROP TABLE {}").format(tables))


def drop_leftover_staging(
    connection: Connection, *, schema: str, transactional_id: str, generation: int, attempt: int = 0
) -> tuple[TableName, ...]:
    """Drop the staging tables that older transactions of a sink left, and name them.

    Args:
        connection: inside a transaction of its own, with a lock_timeout: a table may be in use for a moment.
        schema: where staging tables are created.
        transactional_id: the sink's; tables of others are left alone.
        generation: the claim in force.
        attempt: the transaction within it that is next; tables of this one and later ones are left alone.

    Returns:
        What was dropped: at most `LEFTOVERS_MAX` tables; so many mean that there may be more.
    """
    prefix = f"_2pc_stage_{owner_of(transactional_id)}_"
    with driver_connection(connection).cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND pg_catalog.left(c.relname, %s) = %s AND c.relkind = 'r' ORDER BY c.relname",
            (schema, len(prefix), prefix),
        )
        parsed = [StagingName.parse(name) for (name,) in cursor.fetchall()]
        leftovers = tuple(
            TableName(name=str(name), schema=schema)
            for name in parsed
            if name is not None and (name.generation, name.attempt) < (generation, attempt)
        )[:LEFTOVERS_MAX]
        drop_staging(cursor, [StagedRows(table, 0) for table in leftovers])
    return leftovers
