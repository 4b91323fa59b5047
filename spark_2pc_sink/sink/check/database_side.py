"""PostgreSQL's side of a check: read-only queries."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import text

from jdbc_state import SqlStateStore, StoreSettings
from jdbc_state.database_kind import PLAIN, DatabaseKind
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.rows.catalog import read_target, table_oid

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.options.outputs import Rows

_SERVER = text(
    "SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS integer), "
    "current_user, pg_catalog.pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', "
    "current_setting('fsync') = 'on', has_schema_privilege(current_user, oid, 'CREATE') "
    "FROM (SELECT (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = :schema) AS oid) AS named"
)
_MAY_INSERT = text("SELECT has_table_privilege(:table, 'INSERT')")


@dataclass(frozen=True)
class TableFacts:
    """One table.

    Attributes:
        name: as written by the user.
        there: whether a writable kind of table exists.
        refusal: why it cannot be used, as the job would report it; None if it can.
        created: whether the first batch creates it.
    """

    name: str
    there: bool = True
    refusal: ConfigurationError | None = None
    columns: int = 0
    may_insert: bool = True
    created: bool = False


@dataclass(frozen=True)
class DatabaseFacts:
    """The database, as the role of the job sees it.

    Attributes:
        problem: why it could not be queried, in which case all else is unknown; '' if it could.
        version_number: PostgreSQL's numeric version: 180001 is 18.1.
        read_only: whether this role's transactions are read-only by default.
        fsync: whether commits are flushed to disk.
        may_make_state: whether the role may create tables in the state table's schema; None if there is no such schema.
        state_there: whether a state table exists.
        state_ready: whether this version's driver can start with it.
        state_lines: description of the state table.
        state_remedies: commands and statements that make it ready.
        dead_letters: the dead-letter table; None if the sink has none.
    """

    problem: str = ""
    remedy: str = "correct the URL, or start the server"
    version: str = ""
    kind: DatabaseKind = PLAIN
    version_number: int = 0
    role: str = ""
    standby: bool = False
    read_only: bool = False
    fsync: bool = True
    may_make_state: bool | None = True
    state_there: bool = True
    state_ready: bool = True
    state_lines: tuple[str, ...] = ()
    state_remedies: tuple[str, ...] = ()
    tables: tuple[TableFacts, ...] = ()
    dead_letters: TableFacts | None = None


def query_database(options: SinkOptions) -> DatabaseFacts:
    with closing(SqlStateStore(options.database, StoreSettings(**options.store_settings()))) as store:
        try:
            return _ask(store, options, DeadLetters(options, store.database, query_id=""))
        except StateStoreError as error:
            return DatabaseFacts(problem=str(error))
        except ConfigurationError as error:
            return DatabaseFacts(problem=error.rule, remedy=error.remedy)


def _ask(store: SqlStateStore, options: SinkOptions, letters: DeadLetters) -> DatabaseFacts:
    with store.database.transaction(
        "check of the database",
        lock_timeout_ms=options.lock_timeout_ms,
        statement_timeout_ms=options.statement_timeout_ms,
    ) as connection:
        kind = store.database.check_kind()
        version, version_number, role, standby, read_only, fsync, may_make = connection.execute(
            _SERVER, {"schema": options.state_schema}
        ).one()
        tables = tuple(_table(connection, lane.rows) for lane in options.lanes if lane.rows is not None)
        dead_letters = None if options.bad_rows == "fail" else _dead_letters(connection, letters)
    state = store.check_schema()
    return DatabaseFacts(
        version=version,
        kind=kind,
        version_number=version_number,
        role=role,
        standby=standby,
        read_only=read_only,
        fsync=fsync,
        may_make_state=may_make,
        state_there=state.there,
        state_ready=state.ready,
        state_lines=state.lines,
        state_remedies=state.remedies,
        tables=tables,
        dead_letters=dead_letters,
    )


def _dead_letters(connection: Connection, letters: DeadLetters) -> TableFacts:
    refusal = letters.refusal(connection)
    there = refusal is None and letters.exists(connection)
    return TableFacts(str(letters.table), there=there, refusal=refusal, created=refusal is None and not there)


def _table(connection: Connection, rows: Rows) -> TableFacts:
    there = False
    try:
        there = table_oid(connection, rows.table) is not None
        if not there and rows.create_table:
            return TableFacts(rows.table, there=False, created=True)
        target = read_target(connection, rows.table, upsert=rows.mode != "append")
    except ConfigurationError as error:
        return TableFacts(rows.table, there=there, refusal=error)
    may = bool(connection.execute(_MAY_INSERT, {"table": str(target.table)}).scalar())
    return TableFacts(rows.table, columns=len(target.columns), may_insert=may)
