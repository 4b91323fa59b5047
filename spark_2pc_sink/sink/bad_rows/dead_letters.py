"""The dead letters: a table of the bad rows of each batch, written in the transaction that decides it.

A replay reads here which rows were left out, so it splits the batch identically, whether Spark evaluates it again for
Kafka alone or only for comparison. It never searches again: the table, its constraints and the topic's limits may have
changed.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.schema import CreateTable

from jdbc_state.connections import Database
from jdbc_state.schema import TRANSACTIONAL_ID_CHARACTERS_MAX, sql_of
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.bad_rows.bad_row import BadRow, BadRows, canonical_json
from spark_2pc_sink.sink.rows.catalog import table_transaction

#: Required privileges on the table. DELETE: a rewritten batch replaces its earlier dead letters.
PRIVILEGES: Final = ("SELECT", "INSERT", "DELETE")
_FOUND: Final = sa.text("SELECT to_regclass(:table) IS NOT NULL")
_COLUMNS: Final = sa.text(
    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped"
)
_LACKING: Final = sa.text(
    "SELECT wanted FROM unnest(CAST(:privileges AS text[])) AS wanted "
    "WHERE NOT has_table_privilege(to_regclass(:table), wanted)"
)
#: Whether the role may create tables in the schema, and use it (null without it), and create schemas; and the role.
_MAY_CREATE: Final = sa.text(
    "SELECT (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = :schema), "
    "(SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = :schema), "
    "has_database_privilege(current_database(), 'CREATE'), current_user"
)


class DeadLetters:
    """The dead-letter table for one run of a query: each query counts batch ids from 0."""

    def __init__(self, options: SinkOptions, database: Database, query_id: str) -> None:
        self._options = options
        self._database = database
        self._query_id = query_id
        name = options.dead_letter_name
        self.table: sa.Table = sa.Table(
            name.name,
            sa.MetaData(schema=name.schema),
            sa.Column("transactional_id", sa.String(TRANSACTIONAL_ID_CHARACTERS_MAX), nullable=False),
            sa.Column("query_id", sa.Text, nullable=False),
            sa.Column("batch_id", sa.BigInteger, nullable=False),
            sa.Column("identity", sa.Text, nullable=False),
            sa.Column("occurrences", sa.BigInteger, nullable=False),
            *(sa.Column(text_column, sa.Text, nullable=False) for text_column in ("output", "reason", "sqlstate")),
            sa.Column("row", JSONB, nullable=False),
            sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
            sa.PrimaryKeyConstraint("transactional_id", "query_id", "batch_id", "identity"),
        )
        self._quoted = str(name)

    def prepare(self) -> None:
        """Create the table if it is missing, before the first batch; raises the `refusal` if there is one.

        The state tables already exist: both use the same schema, unless the user names another.
        """
        with table_transaction(self._database, self._options, "preparing the dead-letter table") as connection:
            if (refusal := self.refusal(connection)) is not None:
                raise refusal
            if not self.exists(connection):
                connection.execute(CreateTable(self.table, if_not_exists=True))

    def refusal(self, connection: sa.Connection) -> ConfigurationError | None:
        """Why the sink cannot start with the table; None if it can, including when it has to create it."""
        in_schema, usable, new_schema, user = connection.execute(_MAY_CREATE, {"schema": self.table.schema}).one()
        role = quote_identifier(user)
        # In a schema that the role may not use, looking up the table aborts the transaction.
        if usable is False or not self.exists(connection):
            makes_schema = in_schema is None and new_schema and self.table.schema == self._options.state_schema
            # The start creates the schema of the state table.
            return None if (usable and in_schema) or makes_schema else self._not_made(role, usable=usable)
        there = set(connection.execute(_COLUMNS, {"table": self._quoted}).scalars())
        missing = [column.name for column in self.table.columns if column.name not in there]
        if missing:
            rule = f"the table has no column {', '.join(missing)}: it belongs to another application"
            return self._refused(rule, "choose another dead_letter_table")
        asked = {"table": self._quoted, "privileges": list(PRIVILEGES)}
        if lacking := ", ".join(connection.execute(_LACKING, asked).scalars()):
            remedy = f"have its owner run: GRANT {lacking} ON {self._quoted} TO {role}"
            return self._refused(f"the role may not {lacking}", remedy)
        return None

    def _not_made(self, role: str, *, usable: bool | None) -> ConfigurationError:
        schema = quote_identifier(str(self.table.schema))
        statements = [
            *([f"CREATE SCHEMA {schema}"] if usable is None else []),
            *([] if usable else [f"GRANT USAGE ON SCHEMA {schema} TO {role}"]),
            " ".join(sql_of(CreateTable(self.table, if_not_exists=True)).split()),
            f"GRANT {', '.join(PRIVILEGES)} ON {self._quoted} TO {role}",
        ]
        why = {
            None: "it does not exist, and neither does its schema",
            False: "the role may not use its schema",
            True: "it does not exist, and the role may not create tables in its schema",
        }[usable]
        return self._refused(why, f"have its owner run: {'; '.join(statements)}")

    def exists(self, connection: sa.Connection) -> bool:
        return bool(connection.execute(_FOUND, {"table": self._quoted}).scalar())

    def read(self, batch_id: int) -> BadRows:
        """The bad rows of a decided batch; none if the table does not exist."""
        described = self.table.c["identity", "occurrences", "output", "reason", "sqlstate"]
        query: sa.Select[Any] = sa.select(*described, sa.cast(self.table.c.row, sa.Text))
        query = query.filter_by(**self._key(batch_id))
        with table_transaction(self._database, self._options, "reading the dead-letter table") as connection:
            if not self.exists(connection):
                return BadRows()
            found = connection.execute(query).all()
        return BadRows(BadRow(*row) for row in found)

    def write(self, connection: sa.Connection, batch_id: int, bad_rows: BadRows) -> None:
        """Write the dead letters of a batch, at least one, in the deciding transaction; earlier ones are replaced."""
        key = self._key(batch_id)
        connection.execute(sa.delete(self.table).filter_by(**key))
        # The row as text: SQLAlchemy would encode it as JSON a second time.
        lines = [key | row.columns | {"row": canonical_json(row.row)} for row in bad_rows.values()]
        connection.execute(sa.insert(self.table).values(row=sa.cast(sa.bindparam("row", type_=sa.Text), JSONB)), lines)

    def _key(self, batch_id: int) -> dict[str, str | int]:
        name = self._options.transactional_id
        return {"transactional_id": name, "query_id": self._query_id, "batch_id": batch_id}

    def _refused(self, rule: str, remedy: str) -> ConfigurationError:
        return refused("dead_letter_table", self._quoted, rule, remedy)
