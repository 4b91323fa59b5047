"""PostgreSQL's side of a check: the questions to the database, in transactions that change nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import text

from jdbc_state import SqlStateStore, StoreSettings
from jdbc_state.database_kind import DatabaseKind
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.table.catalog import read_target, table_oid

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


#: PostgreSQL itself.
PLAIN = DatabaseKind("PostgreSQL", "")


@dataclass(frozen=True)
class TableFacts:
    """One table.

    Attributes:
        name: as the user wrote it.
        there: whether it can be written by its kind.
        refusal: why it cannot be used, as the job would say; None where it can.
        columns: how many.
        may_insert: whether the role has INSERT.
        created: whether the first batch makes it.
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
        problem: why it could not be asked; then nothing else is known. '' where it could.
        remedy: what to do about that.
        version: of the server, for people.
        kind: what it is.
        version_number: the same as PostgreSQL counts it: 180001 is 18.1.
        role: the connected one.
        standby: whether it is one, which can only be read.
        read_only: whether transactions of this role only read unless they say otherwise.
        fsync: whether it flushes what it commits.
        may_make_state: whether the role may make tables in the schema of the state table; None: no such schema.
        state_there: whether there is a state table.
        state_ready: whether this version's driver can start with it.
        state_lines: what was found there.
        state_remedies: commands and statements that make it ready.
        tables: the targets.
        dead_letters: the table of bad rows; None where the sink has none.
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


def look_at_database(options: SinkOptions) -> DatabaseFacts:
    """Ask the database of a sink."""
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
        store.database.check_kind()
        version, version_number, role, standby, read_only, fsync, may_make = connection.execute(
            _SERVER, {"schema": options.state_schema}
        ).one()
        tables = tuple(_table(connection, lane.rows) for lane in options.lanes if lane.rows is not None)
        dead_letters = None if options.bad_rows == "fail" else _dead_letters(connection, letters)
    state = store.check_schema()
    return DatabaseFacts(
        version=version,
        kind=store.database.kind or PLAIN,
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
