"""The shape of the table: its columns, the types below them, and the columns that name a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.names import TableName

if TYPE_CHECKING:
    from psycopg2.extensions import cursor as Cursor

_FIND = """
SELECT c.oid::bigint, n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s) AND c.relkind IN ('r', 'p')
"""

# A domain is a type on top of a type: its constraints are the table's business, what is stored is the type below.
_COLUMNS = """
WITH RECURSIVE layers AS (
  SELECT a.attnum, a.attname, a.atttypid AS type_id, a.atttypmod AS modifier, 0 AS depth,
         a.attgenerated <> '' AS generated, a.attidentity <> '' OR a.atthasdef AS filled, a.attcollation AS collation_id
  FROM pg_catalog.pg_attribute a WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT l.attnum, l.attname, t.typbasetype, t.typtypmod, l.depth + 1, l.generated, l.filled, l.collation_id
  FROM layers l JOIN pg_catalog.pg_type t ON t.oid = l.type_id WHERE t.typtype = 'd'
)
SELECT DISTINCT ON (l.attnum) l.attname, pg_catalog.format_type(l.type_id, l.modifier),
       CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname ELSE '' END,
       t.typelem <> 0 AND t.typlen = -1 AND t.typcategory = 'A', l.generated, l.filled,
       coalesce(pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.collname), '')
FROM layers l JOIN pg_catalog.pg_type t ON t.oid = l.type_id
LEFT JOIN pg_catalog.pg_collation c ON c.oid = l.collation_id AND NOT c.collisdeterministic
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
ORDER BY l.attnum, l.depth DESC
"""

_UNIQUE_KEYS = """
SELECT ARRAY(SELECT a.attname::text
             FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(attnum, position)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.position <= i.indnkeyatts ORDER BY k.position)
FROM pg_catalog.pg_index i
WHERE i.indrelid = %(table)s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indisprimary DESC, i.indexrelid
"""


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Attributes:
        name: as the catalogue spells it.
        type_name: of what is stored, as SQL, such as 'numeric(10,2)'; of a domain the type below it.
        base: ``pg_type.typname`` of it; '' for a type that is not built in.
        is_array: True for an array.
        generated: the table computes it.
        filled: the table fills it where a row leaves it out.
        loose_collation: as SQL, a collation by which other texts are equal too, such as those of another case; '' for
            none.
    """

    name: str
    type_name: str
    base: str
    is_array: bool = False
    generated: bool = False
    filled: bool = False
    loose_collation: str = ""


@dataclass(frozen=True)
class TableShape:
    """A table as the catalogue describes it.

    Attributes:
        table: with its schema.
        columns: in their order.
        unique_keys: columns of each unique key, the primary key first.
    """

    table: TableName
    columns: tuple[Column, ...]
    unique_keys: tuple[tuple[str, ...], ...] = ()

    def column(self, name: str) -> Column | None:
        """The column of exactly this name."""
        return next((column for column in self.columns if column.name == name), None)

    def key_among(self, names: Sequence[str]) -> tuple[str, ...]:
        """The first unique key that consists of these columns alone; () for none."""
        return next((key for key in self.unique_keys if set(key) <= set(names)), ())


def hides_rows(cursor: Cursor, table: TableName) -> str:
    """The role from which row-level security may hide rows of a table; '' where it hides none.

    Args:
        cursor: of any transaction.
        table: with its schema.
    """
    cursor.execute("SELECT current_user::text, pg_catalog.row_security_active(%s)", (str(table),))
    [(role, active)] = cursor.fetchall()
    return str(role) if active else ""


def read_shape(cursor: Cursor, table: str) -> TableShape:
    """Look a table up.

    Args:
        cursor: of any transaction.
        table: 'table' or 'schema.table', quoted as in SQL.

    Raises:
        ConfigurationError: there is none.
    """
    cursor.execute(_FIND, (str(TableName.parse(table)),))
    found = cursor.fetchone()
    if found is None:
        raise ConfigurationError(
            option="table",
            value=table,
            rule="there is no such table in the database",
            remedy="name it with its schema: 'schema.table'",
        )
    oid, schema, name = found
    cursor.execute(_COLUMNS, {"table": oid})
    columns = tuple(Column(*row) for row in cursor.fetchall())
    cursor.execute(_UNIQUE_KEYS, {"table": oid})
    keys = tuple(tuple(row[0]) for row in cursor.fetchall())
    return TableShape(TableName(name=name, schema=schema), columns, keys)
