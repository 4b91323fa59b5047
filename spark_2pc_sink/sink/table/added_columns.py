"""Added columns: those that a batch has and the table lacks, with ``schema_evolution="add_columns"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg2 import sql

from spark_2pc_sink.sink.table.catalog import driver_connection
from spark_2pc_sink.sink.table.create_table import sql_type
from spark_2pc_sink.sink.table.row_errors import refused_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.types import StructField
    from sqlalchemy import Connection

    from spark_2pc_sink.sink.table.catalog import TargetTable


def missing_columns(fields: Iterable[StructField], target: TargetTable) -> list[StructField]:
    """The columns of a batch that the table lacks.

    One that differs from a column of the table by nothing but case is none of them: somebody has written it otherwise,
    and a second column would get the values of the first.
    """
    known = {column.name.casefold() for column in target.columns}
    return [field for field in fields if field.name.casefold() not in known]


def add_columns(connection: Connection, fields: Sequence[StructField], target: TargetTable) -> None:
    """Add columns, of the types that `create_table_ddl` would give them; each may be null, as earlier rows lack it.

    Another sink may add them at the same time: then they are there.

    Args:
        connection: in a transaction of its own: ALTER TABLE keeps all others from the table until it ends, and waits
            for the transactions that use it, at most lock_timeout.
        fields: the columns.
        target: the table.

    Raises:
        ConfigurationError: a type without a counterpart; or the role does not own the table.
    """
    added = sql.SQL(", ").join(
        sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(
            sql.Identifier(field.name), sql.SQL(sql_type(field.name, field.dataType))
        )
        for field in fields
    )
    with driver_connection(connection).cursor() as cursor, refused_rows(target.table):
        cursor.execute(sql.SQL("ALTER TABLE {} {}").format(target.table.identifier, added))
