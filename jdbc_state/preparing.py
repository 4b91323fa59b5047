"""Creating, migrating and checking the tables, also if two drivers start for the first time simultaneously.

A table's version is detected from its columns and its primary key: the statements of this package need these. The
comment is lost by ``pg_dump --no-comments`` and missing from tables made by hand, so it only tells that a table has a
later version than this package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import Connection, Table, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateColumn, CreateSchema, SetTableComment

from jdbc_state.errors import StateStoreError
from jdbc_state.schema import FIGURES, MARK, VERSION, StateTables, as_sql, creation, grant, grant_usage, quoted, sql_of
from jdbc_state.settings import StoreSettings
from jdbc_state.sqlstate import INSUFFICIENT_PRIVILEGE, describe, sqlstate_of

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


def prepare(connection: Connection, tables: StateTables, *, where: str) -> FoundTable | None:
    """Create schema and tables if they are missing, and add the columns that earlier ones lack.

    Existing tables are not created again, so a role without CREATE privileges can use them. The connection is in
    autocommit mode, so that a lost race leaves no failed transaction. Returns the history, wanted or not. A table that
    is wanted and foreign, or of a version that this role cannot change, is a StateStoreError.
    """
    for table in tables.wanted:
        found = find_table(connection, tables, table)
        if found is None:
            _create(connection, tables, table, where=where)
            found = find_table(connection, tables, table)
            if table is not tables.state:
                _grant_as_state(connection, tables, table)
        if found is not None and found.owned and found.addable:
            # The defaults are constants, so the table is not rewritten (PostgreSQL 11).
            added = [f"ADD COLUMN IF NOT EXISTS {sql_of(CreateColumn(table.c[name]))}" for name in found.addable]
            _run(connection, f"ALTER TABLE {found.name} {', '.join(added)}; {sql_of(SetTableComment(table))}")
        elif found is not None and (refused := refusal(found, tables, where=where)) is not None:
            raise refused
    return find_table(connection, tables, tables.history)


def migrate(connection: Connection, tables: StateTables, *, where: str) -> list[str]:
    """Migrate the tables of an earlier version, and create missing ones. Safe to run twice.

    Each step is one message, and so one transaction. Table locks are requested with the connection's lock_timeout;
    other drivers wait meanwhile, and then continue. Returns what was done, one sentence each.
    """
    before = {table: find_table(connection, tables, table) for table in tables.wanted}
    if before[tables.state] is None:
        raise StateStoreError(
            operation=f"migration of table {quoted(tables.state)}",
            detail="it does not exist",
            remedies=("start the job: its first start creates it", making(tables.settings)),
        )
    prepare(connection, tables, where=where)
    done = []
    for table, found in before.items():
        if found is None:
            done.append(f"created {quoted(table)}")
        elif found.owned and found.addable:
            done.append(f"added {found.lacks} to {found.name}")
    for table in tables.wanted[1:]:
        done += _grant_as_state(connection, tables, table)
    return done


def check(connection: Connection, tables: StateTables, *, role: str | None, where: str) -> SchemaReport:
    """Report the version, what is missing, and which privileges the role lacks; changes nothing."""
    settings = tables.settings
    name = role or str(connection.scalar(text("SELECT current_user")))
    closed_to = connection.scalar(_CLOSED_TO, {"role": name, "schema": settings.state_schema})
    if closed_to is not None:
        opened = grant_usage(settings, as_sql(closed_to))
        line = f"{closed_to} lacks USAGE on schema {settings.state_schema}: {opened}"
        return SchemaReport(there=True, ready=False, lines=(line,), remedies=(opened,))
    found = {table: find_table(connection, tables, table) for table in tables.wanted}
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
        refused = refusal(one, tables, where=where)
        remedies += () if refused is None else refused.remedies
        version = "not a table of this package" if one.version is None else f"version {one.version}"
        why = "" if refused is None else ": " + "; ".join([refused.detail, *refused.remedies])
        lines.append(f"{one.name}: {version}, owned by {one.owner}{why}")
        if refused is None and one.lacks:
            without = f"{one.name} lacks {one.lacks}: batches are written, but without their times"
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


def _create(connection: Connection, tables: StateTables, table: Table, *, where: str) -> None:
    schema = tables.settings.state_schema
    attempt = 0
    while True:
        attempt += 1
        try:
            # CREATE SCHEMA IF NOT EXISTS needs the CREATE privilege even if the schema exists.
            if not inspect(connection).has_schema(schema):
                connection.execute(CreateSchema(schema, if_not_exists=True))
            _run(connection, creation(table))
        except DBAPIError as error:
            code = sqlstate_of(error)
            if code == INSUFFICIENT_PRIVILEGE:
                raise _may_not_create(tables, table, error, where=where) from error
            if code not in _LOST_RACE or attempt == CREATE_ATTEMPTS_MAX:
                raise
            if connection.scalar(text("SELECT to_regclass(:name)"), {"name": quoted(table)}) is None:
                continue
        return


def _may_not_create(tables: StateTables, table: Table, error: DBAPIError, *, where: str) -> StateStoreError:
    create = "or grant this role CREATE on the schema"
    if table is tables.state:
        remedies = (making(tables.settings), create)
    elif table is tables.records:
        by_hand = creation(table).replace("\n", " ")
        remedies = (f"run this with a role that has it, and grant this role its privileges: {by_hand}", create)
    else:
        without = (
            "or set history_batches=0: a decision is then lost with its state row, and the actions of operators are "
            "not recorded"
        )
        remedies = (migration(tables.settings, role="OWNER", where=where), without)
    return StateStoreError(
        operation=f"creation of table {quoted(table)}",
        detail=f"it does not exist, and this role lacks the privilege to create it: {describe(error)}",
        sqlstate=INSUFFICIENT_PRIVILEGE,
        remedies=remedies,
    )


#: The columns of the state table that version 2 has added.
ADDED_BY_2 = frozenset({"topic_ids", "decision"})
#: The primary key of the history in version 1.
_HISTORY_KEY_1 = frozenset({"prepared_transaction_state", "transactional_id"})

# Not SQLAlchemy's inspector: it caches statements for each engine ever made, and a process may run many queries
# sequentially.
_TABLE = text(
    "SELECT obj_description(oid, 'pg_class') AS remark, pg_get_userbyid(relowner) AS owner, "
    "pg_has_role(relowner, 'USAGE') AS owned FROM pg_class WHERE oid = to_regclass(:table)"
)
#: Name, and whether it is in the primary key.
_COLUMNS = text(
    "SELECT attname, coalesce(attnum = ANY (indkey), false) FROM pg_attribute LEFT JOIN pg_index "
    "ON indrelid = attrelid AND indisprimary WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped"
)


@dataclass(frozen=True)
class FoundTable:
    name: str
    #: None if it is not a table of this package, or incomplete.
    version: int | None
    owner: str
    #: Whether the connected role has the owner's privileges.
    owned: bool
    #: What it lacks of a table of this version, in words.
    lacks: str
    #: Missing columns that its owner may add.
    addable: tuple[str, ...] = ()


def find_table(connection: Connection, tables: StateTables, table: Table) -> FoundTable | None:
    name = quoted(table)
    about = connection.execute(_TABLE, {"table": name}).one_or_none()
    if about is None:
        return None
    columns = connection.execute(_COLUMNS, {"table": name}).all()
    there = {found for found, _ in columns}
    missing = [column.name for column in table.columns if column.name not in there]
    key = {found for found, in_key in columns if in_key}
    wanted_key = table.primary_key.columns.keys()
    lacks = [f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"] if missing else []
    if key != set(wanted_key):
        lacks.append(f"the primary key ({', '.join(wanted_key)})")
    version: int | None = None
    addable: tuple[str, ...] = ()
    if key == set(wanted_key) and set(missing) <= {FIGURES}:
        said = re.fullmatch(rf"{re.escape(MARK)}([0-9]{{1,9}})", about.remark or "")
        version = max(VERSION, int(said[1])) if said else VERSION
        addable = tuple(missing) if version == VERSION else ()
    elif table is tables.state and key == set(wanted_key) and set(missing) <= ADDED_BY_2:
        version, addable = 1, tuple(missing)
    elif table is tables.history and "decision" in missing and key == _HISTORY_KEY_1:
        version = 1
    return FoundTable(name, version, about.owner, about.owned, " and ".join(lacks), addable)


def refusal(found: FoundTable, tables: StateTables, *, where: str) -> StateStoreError | None:
    """Why a table cannot be used as it is, and the command that fixes it; None if it can be used."""
    if found.version == VERSION:
        return None
    remedies: tuple[str, ...] = ()
    if found.version is None:
        detail = (
            f"it exists and lacks {found.lacks}: it belongs to another application, or is incomplete. Choose "
            "another state_table, history_table or state_schema, or add what is missing"
        )
    elif found.version > VERSION:
        detail = (
            f"it has version {found.version}, and this package supports versions up to {VERSION}. Install the version "
            "of the package to which the table was migrated"
        )
    elif found.name == quoted(tables.history):
        detail = (
            "it is a history of version 1, and jobs of that version may still write to it. Choose another history_table"
        )
    else:
        detail = f"it has version {found.version}, this package needs version {VERSION}, and role {found.owner} owns it"
        remedies = (migration(tables.settings, role=found.owner, where=where),)
    return StateStoreError(operation=f"check of table {found.name}", detail=detail, remedies=remedies)


def migration(settings: StoreSettings, *, role: str, where: str) -> str:
    return settings.schema_help("migrate", _names(settings) | {"role": role, "where": where})


def making(settings: StoreSettings, *, role: str = "ROLE") -> str:
    """The remedy if there is no state table, and this role may not create one."""
    return settings.schema_help("make", _names(settings) | {"role": role})


def _names(settings: StoreSettings) -> dict[str, str]:
    names = ("state_schema", "state_table", "history_table")
    return {name: as_identifier(getattr(settings, name)) for name in names}


def as_identifier(name: str) -> str:
    """The name in the syntax of the options: quoted, if SQL would read it differently without quotes."""
    if re.fullmatch(r"[a-z_][a-z0-9_$]*", name):
        return name
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
