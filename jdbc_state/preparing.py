"""Creating, migrating and checking the tables, also if two drivers start for the first time simultaneously."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Table, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema, CreateTable, SetTableComment

from jdbc_state.errors import StateStoreError
from jdbc_state.schema import FIGURES, StateTables, as_sql, grant, grant_usage, quoted, sql_of
from jdbc_state.settings import StoreSettings
from jdbc_state.sqlstate import INSUFFICIENT_PRIVILEGE, describe, sqlstate_of
from jdbc_state.versions import FoundTable, find_table, making, migration, refusal

#: Two first starts can collide at most twice: once for the schema, once for each table. More is another fault.
CREATE_ATTEMPTS_MAX = 5
#: SQLSTATEs for the loser of such a race. CREATE checks first and creates then, so it can meet the unique indexes of
#: pg_namespace, pg_class and pg_type (23505), or a concurrent update of the catalogue (XX000).
_LOST_RACE = frozenset({"23505", "42P06", "42P07", "42710", "XX000"})

# Roles that may write the state row need to write the other tables with it, from the next claim on; so does its owner,
# if another role has made them.
_GRANTEES = text(
    "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS role, "
    "bool_or(privilege_type = 'UPDATE') AS writes "
    "FROM pg_class, aclexplode(coalesce(relacl, acldefault('r', relowner))) WHERE oid = to_regclass(:table) "
    "AND grantee <> (SELECT relowner FROM pg_class WHERE oid = to_regclass(:other)) GROUP BY grantee ORDER BY 1"
)
_MISSING_PRIVILEGES = text(
    "SELECT wanted FROM unnest(CAST(:wanted AS text[])) AS wanted "
    "WHERE NOT has_table_privilege(CAST(:role AS name), to_regclass(:table), wanted)"
)
# If the connected role may not use the schema, to_regclass raises an error that ends the transaction.
_CLOSED_TO = text(
    "SELECT role FROM unnest(ARRAY[current_user, CAST(:role AS name)]) WITH ORDINALITY AS asked (role, number), "
    "pg_namespace WHERE nspname = :schema AND NOT has_schema_privilege(role, oid, 'USAGE') ORDER BY number LIMIT 1"
)


@dataclass(frozen=True)
class SchemaReport:
    """Result of `check`.

    Attributes:
        there: whether there is a state table.
        ready: whether a driver of this version can start with the role.
        lines: findings, one sentence each.
        remedies: commands and statements that make it ready, one each.
    """

    there: bool
    ready: bool
    lines: tuple[str, ...]
    remedies: tuple[str, ...] = ()


def prepare(connection: Connection, settings: StoreSettings, *, where: str) -> FoundTable | None:
    """Create schema and tables if they are missing, and migrate an earlier state table to this version.

    Existing tables are not created again, so a role without CREATE privileges can use them. The connection is in
    autocommit mode, so that a lost race leaves no failed transaction.

    Returns:
        The history, wanted or not.

    Raises:
        StateStoreError: a table of that name is foreign, or of a version that this role cannot change.
    """
    tables = StateTables.named(settings)
    for table in tables.wanted(settings):
        found = find_table(connection, tables, table)
        if found is None:
            _create(connection, settings, table, where=where)
            found = find_table(connection, tables, table)
            if table is not tables.state:
                _grant_as_state(connection, tables, table)
        if found is not None and table is tables.state and found.version == 1 and found.owned:
            # The defaults are constants, so the table is not rewritten (PostgreSQL 11).
            _run(
                connection,
                f"ALTER TABLE {found.name} ADD COLUMN IF NOT EXISTS topic_ids jsonb NOT NULL DEFAULT '{{}}', "
                "ADD COLUMN IF NOT EXISTS decision bigint NOT NULL DEFAULT 0; " + sql_of(SetTableComment(table)),
            )
        elif found is not None and (refused := refusal(found, tables, settings, where=where)) is not None:
            raise refused
        elif found is not None and found.later and found.owned:
            # This does not rewrite the table either.
            column = f"{FIGURES} jsonb NOT NULL DEFAULT '{{}}'"
            _run(connection, f"ALTER TABLE {found.name} ADD COLUMN IF NOT EXISTS {column}")
    return find_table(connection, tables, tables.history)


def migrate(connection: Connection, settings: StoreSettings, *, where: str) -> list[str]:
    """Migrate the tables of an earlier version, and create missing ones. Safe to run twice.

    Each step is one message, and so one transaction. Table locks are requested with the connection's lock_timeout;
    other drivers wait meanwhile, and then continue.

    Returns:
        What was done, one sentence each; empty for nothing.

    Raises:
        StateStoreError: see :func:`prepare`; or there is no state table.
    """
    tables = StateTables.named(settings)
    state = find_table(connection, tables, tables.state)
    if state is None:
        raise StateStoreError(
            operation=f"migration of table {quoted(tables.state)}",
            detail="it does not exist",
            remedies=("start the job: its first start creates it", making(settings)),
        )
    done = [f"added {state.lacks} to {state.name}"] if state.version == 1 and state.owned else []
    others = {table: find_table(connection, tables, table) for table in tables.wanted(settings)[1:]}
    prepare(connection, settings, where=where)
    for table, found in others.items():
        if found is None:
            done.append(f"created {quoted(table)}")
        elif found.later and found.owned:
            done.append(f"added column {', '.join(found.later)} to {quoted(table)}")
    for table in others:
        done += _grant_as_state(connection, tables, table)
    return done


def check(connection: Connection, settings: StoreSettings, *, role: str | None, where: str) -> SchemaReport:
    """Report the version, what is missing, and which privileges the role lacks; changes nothing."""
    tables = StateTables.named(settings)
    name = role or str(connection.scalar(text("SELECT current_user")))
    closed_to = connection.scalar(_CLOSED_TO, {"role": name, "schema": settings.state_schema})
    if closed_to is not None:
        opened = grant_usage(settings, as_sql(closed_to))
        line = f"{closed_to} lacks USAGE on schema {settings.state_schema}: {opened}"
        return SchemaReport(there=True, ready=False, lines=(line,), remedies=(opened,))
    found = {table: find_table(connection, tables, table) for table in tables.wanted(settings)}
    state = found[tables.state]
    lines, remedies, ready = [], [], True
    for table, one in found.items():
        if one is None:
            ready = False
            make = making(settings, role=name)
            command = make if state is None else migration(settings, role=state.owner, where=where)
            lines.append(f"{quoted(table)} does not exist: the first start of a job creates it, or {command}")
            remedies.append(command)
            continue
        refused = refusal(one, tables, settings, where=where)
        remedies += () if refused is None else refused.remedies
        version = "not a table of this package" if one.version is None else f"version {one.version}"
        why = "" if refused is None else ": " + "; ".join([refused.detail, *refused.remedies])
        lines.append(f"{one.name}: {version}, owned by {one.owner}{why}")
        if one.later:
            without = f"{one.name} lacks column {', '.join(one.later)}: batches are written, but without their times"
            lines.append(f"{without}. To add it: {migration(settings, role=one.owner, where=where)}")
        asked = {"wanted": list(tables.privileges(table)), "role": name, "table": quoted(table)}
        lacks = list(connection.scalars(_MISSING_PRIVILEGES, asked))
        if lacks:
            remedies.append(grant(table, lacks, as_sql(name)))
            lines.append(f"{name} lacks {', '.join(lacks)} on {one.name}: {remedies[-1]}")
        ready = ready and refused is None and not lacks
    return SchemaReport(state is not None, ready, tuple(lines), tuple(dict.fromkeys(remedies)))


def _run(connection: Connection, statement: str) -> None:
    """Send SQL unchanged: a % in a name does not begin a parameter."""
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _grant_as_state(connection: Connection, tables: StateTables, table: Table) -> list[str]:
    """Grant on another table the privileges that match those on the state table."""
    done = []
    for role, writes in connection.execute(_GRANTEES, {"table": quoted(tables.state), "other": quoted(table)}).all():
        wanted = tables.privileges(table) if writes else ("SELECT",)
        _run(connection, grant(table, wanted, role))
        done.append(f"granted {', '.join(wanted)} on {quoted(table)} to {role}")
    return done


def _create(connection: Connection, settings: StoreSettings, table: Table, *, where: str) -> None:
    attempt = 0
    while True:
        attempt += 1
        try:
            # CREATE SCHEMA IF NOT EXISTS needs the CREATE privilege even if the schema exists.
            if not inspect(connection).has_schema(settings.state_schema):
                connection.execute(CreateSchema(settings.state_schema, if_not_exists=True))
            # One message: a table never exists without its comment.
            _run(connection, f"{sql_of(CreateTable(table))}; {sql_of(SetTableComment(table))}")
        except DBAPIError as error:
            code = sqlstate_of(error)
            if code == INSUFFICIENT_PRIVILEGE:
                raise _may_not_create(settings, table, error, where=where) from error
            if code not in _LOST_RACE or attempt == CREATE_ATTEMPTS_MAX:
                raise
            if connection.scalar(text("SELECT to_regclass(:name)"), {"name": quoted(table)}) is None:
                continue
        return


def _may_not_create(settings: StoreSettings, table: Table, error: DBAPIError, *, where: str) -> StateStoreError:
    create = "or grant this role CREATE on the schema"
    remedies = (making(settings), create)
    if table.name == settings.records_table:
        by_hand = f"{sql_of(CreateTable(table))}; {sql_of(SetTableComment(table))}".replace("\n", " ")
        remedies = (f"run this with a role that has it, and grant this role its privileges: {by_hand}", create)
    elif table.name in (settings.history_table, settings.actions_table):
        without = (
            "or set history_batches=0: a decision is then lost with its state row, and the actions of operators are "
            "not recorded"
        )
        remedies = (migration(settings, role="OWNER", where=where), without)
    return StateStoreError(
        operation=f"creation of table {quoted(table)}",
        detail=f"it does not exist, and this role lacks the privilege to create it: {describe(error)}",
        sqlstate=INSUFFICIENT_PRIVILEGE,
        remedies=remedies,
    )
