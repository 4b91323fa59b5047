"""Versions of the tables: detect the version, and what to do if it is not this package's.

The version is detected from the columns and the primary key: the statements of this package need these. The table's
comment is lost by ``pg_dump --no-comments`` and missing from tables made by hand, so it only tells that a table has a
later version than this package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import Connection, Table, text

from jdbc_state.errors import StateStoreError
from jdbc_state.schema import FIGURES, MARK, VERSION, StateTables, quoted
from jdbc_state.settings import StoreSettings

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
    """An existing table."""

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
