"""Schema of the state table, its history and its action log, as SQLAlchemy tables and as SQL.

The schema version is 2. Compatibility with programs of other versions:

* Version 1 of this package works with tables of version 2: the columns that it does not know have defaults. But its
  batches have no history lines. Before a job returns to version 1 for good, delete its lines: otherwise they become
  older than the row, and a later version would rebuild a lost row from an outdated one. The history of version 1 was
  another table (``kafka_transaction_history``), for audits only; it is left unchanged, and is not read here.
* This version adds two columns to a state table of version 1, and creates the history. The server needs a short lock
  and no rewrite of the table, while jobs of version 1 keep running. A job migrates the table if its own role owns it;
  otherwise its owner calls `SqlStateStore.migrate`.
* The tables of actions and of kept records were added later, within version 2: earlier releases ignore them.
* A table of a later version is refused with its version number, as its meaning is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.schema import CreateSchema, CreateTable, SchemaItem, SetTableComment

from jdbc_state.model import STATUSES
from jdbc_state.settings import StoreSettings

#: Length of the key, as in the schema that KIP-939 gives.
TRANSACTIONAL_ID_CHARACTERS_MAX = 255
VERSION = 2
#: How a table's comment states its version.
MARK = "spark_2pc_sink state, version "
#: The history column added within version 2: a driver that lacks it writes its lines without.
FIGURES = "figures"
#: Privileges that a driver needs on each table. An operator who only reads needs SELECT.
STATE_PRIVILEGES = ("SELECT", "INSERT", "UPDATE")
HISTORY_PRIVILEGES = (*STATE_PRIVILEGES, "DELETE")
#: Lines are inserted and trimmed, never changed.
ACTIONS_PRIVILEGES = ("SELECT", "INSERT", "DELETE")

_INSTANT = sa.DateTime(timezone=True)
#: Only for its quoting and type names. Not psycopg2's, which writes % as %%: the statements are for people, and for
#: PostgreSQL itself.
_DIALECT: sa.Dialect = PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]


class StateTables:
    """The tables of one store; ``wanted`` are those that its settings ask for, the state table first."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        metadata = sa.MetaData(schema=settings.state_schema)

        def table(name: str, *parts: SchemaItem) -> sa.Table:
            return sa.Table(name, metadata, *parts, comment=f"{MARK}{VERSION}")

        known = ", ".join(repr(status) for status in STATUSES)
        self.state: sa.Table = table(
            settings.state_table,
            *_row_columns(),
            sa.PrimaryKeyConstraint("transactional_id"),
            sa.CheckConstraint(f"status IN ({known})"),
        )
        self.history: sa.Table = table(
            settings.history_table,
            *_row_columns(),
            sa.Column("event", sa.Text, nullable=False),
            sa.Column(FIGURES, JSONB, nullable=False, server_default=sa.text("'{}'")),
            sa.PrimaryKeyConstraint("transactional_id", "decision"),
        )
        # The time is a part of the key: a sequence that was reset, as by a partial restore, must not fail a claim.
        self.actions: sa.Table = table(
            settings.actions_table,
            sa.Column("transactional_id", sa.String(TRANSACTIONAL_ID_CHARACTERS_MAX), nullable=False),
            sa.Column("at", _INSTANT, nullable=False),
            sa.Column("number", sa.BigInteger, sa.Identity(always=True), nullable=False),
            sa.Column("action", sa.Text, nullable=False),
            sa.Column("batch_id", sa.BigInteger),
            sa.Column("generation", sa.BigInteger),
            *(sa.Column(name, sa.Text, nullable=False) for name in ("role", "os_user", "host", "program")),
            sa.Column("reason", sa.Text),
            sa.Column("detail", JSONB, nullable=False),
            sa.PrimaryKeyConstraint("transactional_id", "at", "number"),
        )
        # One row for each transactional id: a decision replaces the previous one.
        self.records: sa.Table = table(
            settings.records_table,
            sa.Column("transactional_id", sa.String(TRANSACTIONAL_ID_CHARACTERS_MAX), nullable=False),
            sa.Column("batch_id", sa.BigInteger, nullable=False),
            sa.Column("partitions", JSONB, nullable=False),
            sa.Column("batches", sa.LargeBinary, nullable=False),
            sa.PrimaryKeyConstraint("transactional_id"),
        )
        audited = (self.history, self.actions) if settings.history_batches else ()
        kept = (self.records,) if settings.keep_records else ()
        self.wanted: tuple[sa.Table, ...] = (self.state, *audited, *kept)

    def privileges(self, table: sa.Table) -> tuple[str, ...]:
        return {self.history: HISTORY_PRIVILEGES, self.actions: ACTIONS_PRIVILEGES}.get(table, STATE_PRIVILEGES)


def quoted(table: sa.Table) -> str:
    return str(_DIALECT.identifier_preparer.format_table(table))


def ddl(settings: StoreSettings, *, role: str | None = None) -> str:
    """The statements that create the tables, to be run by another role.

    Args:
        settings: names, and whether there is a history.
        role: role that gets a driver's privileges, unquoted as in the catalogue; None to grant none.
    """
    tables = StateTables(settings)
    statements = [sql_of(CreateSchema(settings.state_schema, if_not_exists=True))]
    for table in tables.wanted:
        statements += [sql_of(CreateTable(table, if_not_exists=True)), sql_of(SetTableComment(table))]
    if role is not None:
        name = as_sql(role)
        statements.append(grant_usage(settings, name))
        statements += [grant(table, tables.privileges(table), name) for table in tables.wanted]
    return "\n".join(f"{statement};" for statement in statements)


def grant_usage(settings: StoreSettings, role: str) -> str:
    """The statement that opens the schema of the tables; ``role`` is quoted as in SQL."""
    return f"GRANT USAGE ON SCHEMA {as_sql(settings.state_schema)} TO {role}"


def as_sql(name: str) -> str:
    return _DIALECT.identifier_preparer.quote(name)


def sql_of(statement: sa.ClauseElement) -> str:
    return str(statement.compile(dialect=_DIALECT)).strip()


def creation(table: sa.Table) -> str:
    """The statements that create a table. Send them as one message: a table then never exists without its comment."""
    return f"{sql_of(CreateTable(table))}; {sql_of(SetTableComment(table))}"


def grant(table: sa.Table, privileges: Sequence[str], role: str) -> str:
    """The statement that grants; ``role`` is quoted as in SQL."""
    return f"GRANT {', '.join(privileges)} ON {quoted(table)} TO {role}"


def _row_columns() -> list[sa.Column[Any]]:
    """Columns added by version 2 are last, with defaults: a migrated table looks like a new one, also to version 1."""
    return [
        sa.Column("transactional_id", sa.String(TRANSACTIONAL_ID_CHARACTERS_MAX), nullable=False),
        sa.Column("prepared_transaction_state", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("settled", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("query_id", sa.Text),
        sa.Column("run_id", sa.Text),
        sa.Column("batch_id", sa.BigInteger),
        sa.Column("cluster_id", sa.Text),
        sa.Column("row_count", sa.BigInteger, nullable=False),
        sa.Column("record_count", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("kafka_offsets", JSONB, nullable=False),
        sa.Column("claimed_at", _INSTANT, nullable=False),
        sa.Column("decided_at", _INSTANT),
        sa.Column("settled_at", _INSTANT),
        sa.Column("topic_ids", JSONB, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("decision", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    ]
