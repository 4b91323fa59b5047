"""The two tables, and how they come to be: also when two drivers start for the first time at the same moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Dialect,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    inspect,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema, CreateTable, DDLElement

from jdbc_state.model import STATUSES
from jdbc_state.settings import StoreSettings
from spark_2pc_sink.errors import StateStoreError

#: Length of the key, as in the schema that KIP-939 gives.
TRANSACTIONAL_ID_CHARACTERS_MAX = 255
#: Two first starts can cross at most twice: once for the schema, once for each table. More is another fault.
CREATE_ATTEMPTS_MAX = 5
#: What the loser of such a race is told. CREATE … IF NOT EXISTS looks first and creates then, so it can meet the
#: unique indexes of pg_namespace, pg_class and pg_type (23505), or a concurrent update of the catalogue (XX000).
_LOST_RACE = frozenset({"23505", "42P06", "42P07", "42710", "XX000"})

#: Only for its rules of quoting and its spelling of types.
_DIALECT: Dialect = PGDialect_psycopg2()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class StateTables:
    """Both tables for one pair of names.

    Attributes:
        state: one row for each sink.
        history: copies of the row by number, see `jdbc_state.history`.
    """

    state: Table
    history: Table

    @classmethod
    def named(cls, settings: StoreSettings) -> StateTables:
        """The tables under the names of ``settings``."""
        metadata = MetaData(schema=settings.state_schema)
        known = ", ".join(repr(status) for status in STATUSES)
        state = Table(
            settings.state_table,
            metadata,
            *_row_columns(),
            PrimaryKeyConstraint("transactional_id"),
            CheckConstraint(f"status IN ({known})"),
        )
        history = Table(
            settings.history_table,
            metadata,
            *_row_columns(),
            Column("event", Text, nullable=False),
            PrimaryKeyConstraint("transactional_id", "decision"),
        )
        return cls(state, history)

    def wanted(self, settings: StoreSettings) -> tuple[Table, ...]:
        """The tables that this store needs."""
        return (self.state, self.history) if settings.history_batches else (self.state,)


def quoted(table: Table) -> str:
    """The table's full name as SQL."""
    return str(_DIALECT.identifier_preparer.format_table(table))


def ddl(settings: StoreSettings) -> str:
    """The statements that make the tables, for those who run them with a role of their own."""
    tables = StateTables.named(settings).wanted(settings)
    statements: list[DDLElement] = [CreateSchema(settings.state_schema, if_not_exists=True)]
    statements += [CreateTable(table, if_not_exists=True) for table in tables]
    return "\n".join(f"{str(statement.compile(dialect=_DIALECT)).strip()};" for statement in statements)


def create_missing(connection: Connection, settings: StoreSettings) -> bool:
    """Make schema and tables unless they are there, then check their columns.

    A role that may not create anything can use tables that are there: nothing is created that exists.

    Args:
        connection: in autocommit mode, so that a lost race leaves no failed transaction behind.
        settings: the names.

    Returns:
        Whether there is a history, wanted or not.

    Raises:
        StateStoreError: a table of that name is not ours.
        sqlalchemy.exc.DBAPIError: the database refused.
    """
    tables = StateTables.named(settings)
    for table in tables.wanted(settings):
        if not _exists(connection, table):
            _create(connection, settings, table)
        _check_columns(connection, table)
    return _exists(connection, tables.history)


def _create(connection: Connection, settings: StoreSettings, table: Table) -> None:
    for _ in range(CREATE_ATTEMPTS_MAX - 1):
        try:
            _create_once(connection, settings, table)
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) not in _LOST_RACE:
                raise
        else:
            return
    _create_once(connection, settings, table)


def _create_once(connection: Connection, settings: StoreSettings, table: Table) -> None:
    # CREATE SCHEMA IF NOT EXISTS asks for the right to create one even when it is there.
    if not inspect(connection).has_schema(settings.state_schema):
        connection.execute(CreateSchema(settings.state_schema, if_not_exists=True))
    connection.execute(CreateTable(table, if_not_exists=True))


def _exists(connection: Connection, table: Table) -> bool:
    return connection.scalar(text("SELECT to_regclass(:name)"), {"name": quoted(table)}) is not None


#: Name, and whether it is in the primary key. Not SQLAlchemy's inspector: it remembers statements for each engine that
#: ever was, and a process may run many queries one after the other.
_COLUMNS = text(
    "SELECT attname, coalesce(attnum = ANY (indkey), false) FROM pg_attribute LEFT JOIN pg_index "
    "ON indrelid = attrelid AND indisprimary WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped"
)


def _check_columns(connection: Connection, table: Table) -> None:
    found = connection.execute(_COLUMNS, {"table": quoted(table)}).all()
    there = {name for name, _ in found}
    missing = [column.name for column in table.columns if column.name not in there]
    key = [name for name, in_key in found if in_key]
    wanted_key = [column.name for column in table.primary_key.columns]
    if missing or sorted(key) != sorted(wanted_key):
        lacks = f"columns {', '.join(missing)}" if missing else f"the primary key ({', '.join(wanted_key)})"
        raise StateStoreError(
            operation=f"check of table {quoted(table)}",
            detail=f"it exists and lacks {lacks}: it is another application's, or of another version. Choose another "
            "state_table or state_schema, or add what is missing",
        )


def _row_columns() -> list[Column[Any]]:
    """What version 2 added stands last, with defaults: so a migrated table looks like a new one, to version 1 too."""
    return [
        Column("transactional_id", String(TRANSACTIONAL_ID_CHARACTERS_MAX), nullable=False),
        Column("prepared_transaction_state", Text, nullable=False),
        Column("status", Text, nullable=False),
        Column("settled", Text, nullable=False),
        Column("generation", BigInteger, nullable=False),
        Column("query_id", Text),
        Column("run_id", Text),
        Column("batch_id", BigInteger),
        Column("cluster_id", Text),
        Column("row_count", BigInteger, nullable=False),
        Column("record_count", BigInteger, nullable=False),
        Column("digest", Text, nullable=False),
        Column("kafka_offsets", JSONB, nullable=False),
        Column("claimed_at", _instant(), nullable=False),
        Column("decided_at", _instant()),
        Column("settled_at", _instant()),
        Column("topic_ids", JSONB, nullable=False, server_default=text("'{}'")),
        Column("decision", BigInteger, nullable=False, server_default=text("0")),
    ]


def _instant() -> DateTime:
    return DateTime(timezone=True)
