"""The statements that create a table for a batch, and columns that it lacks (``schema_evolution="add_columns"``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, DecimalType, StructField

from spark_2pc_sink.options.names import TableName, quote_identifier
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.rows.catalog import utf8_connection
from spark_2pc_sink.sink.rows.refused_rows import refused_rows
from spark_2pc_sink.sink.rows.type_mapping import COMPLEX_TYPES, SCALAR_TYPES, columns_with
from spark_2pc_sink.sink.spark_sql import quoted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_2pc_sink.sink.rows.catalog import TargetTable


#: Columns that every table has (PostgreSQL's manual, 5.6).
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_COLUMNS_MAX = 1_600


def create_table_ddl(
    fields: Iterable[StructField], table: str, *, upsert_keys: Sequence[str] = (), primary_key: Sequence[str] = ()
) -> str:
    """``CREATE TABLE IF NOT EXISTS`` for the columns of a batch.

    The upsert keys become the primary key, or else the given one. A column is NOT NULL if the batch's schema says so,
    and if it is a key. Maps, structs, variants and arrays of these become jsonb, other arrays arrays.

    Raises:
        ConfigurationError: a type without a counterpart, an invalid PostgreSQL name, or too many columns.
    """
    fields = list(fields)
    _check_columns([field.name for field in fields])
    keys = upsert_keys or primary_key
    missing = set(keys) - {field.name for field in fields}
    if missing:
        rule = f"{min(missing)!r} is not among the columns that are written"
        remedy = f"the columns are {', '.join(field.name for field in fields)}"
        raise refused("upsert_keys" if upsert_keys else "primary_key", list(keys), rule, remedy)
    lines = []
    for field in fields:
        null = "" if field.nullable and field.name not in keys else " NOT NULL"
        lines.append(f"{quote_identifier(field.name)} {sql_type(field.name, field.dataType)}{null}")
    if keys:
        lines.append(f"PRIMARY KEY ({', '.join(map(quote_identifier, keys))})")
    return f"CREATE TABLE IF NOT EXISTS {TableName.parse(table)} (\n  " + ",\n  ".join(lines) + "\n)"


def _check_columns(names: Sequence[str]) -> None:
    own = next((name for name in names if name in _SYSTEM_COLUMNS), None)
    if own is not None:
        remedy = f"give it another name in the table, as with columns={{'source_{own}': '{own}', …}}"
        raise refused("columns", own, "every PostgreSQL table has a system column of this name", remedy)
    if len(names) > _COLUMNS_MAX:
        remedy = "choose some with columns=…, or combine several into a struct, which becomes jsonb"
        raise refused("columns", len(names), f"a PostgreSQL table can have at most {_COLUMNS_MAX} columns", remedy)


def sql_type(name: str, spark_type: DataType) -> str:
    """The PostgreSQL type that holds each value of a Spark type; ``name`` is the column in an error."""
    if isinstance(spark_type, DecimalType):
        return f"numeric({spark_type.precision},{spark_type.scale})"
    if isinstance(spark_type, ArrayType) and type(spark_type.elementType).__name__ in SCALAR_TYPES:
        return f"{sql_type(name, spark_type.elementType)}[]"
    if type(spark_type).__name__ in COMPLEX_TYPES:
        return "jsonb"
    if type(spark_type).__name__ not in SCALAR_TYPES:
        converted = columns_with(name, f"cast({quoted(name)} as string)")
        rule = f"PostgreSQL has no type for {spark_type.simpleString()}"
        raise refused("columns", name, rule, f"convert it, for example with {converted}, or leave it out")
    return SCALAR_TYPES[type(spark_type).__name__][0]


def missing_columns(fields: Iterable[StructField], target: TargetTable) -> list[StructField]:
    """The columns of a batch that the table lacks, except those that differ from one only in case.

    These are presumably spelling mistakes, and a second column would get the values of the first.
    """
    known = {column.name.casefold() for column in target.columns}
    return [field for field in fields if field.name.casefold() not in known]


def add_columns(connection: Connection, fields: Sequence[StructField], target: TargetTable) -> None:
    """Add columns, with the types of `create_table_ddl`; each is nullable, because earlier rows lack it.

    ALTER TABLE blocks all others from the table until the transaction ends, and waits up to lock_timeout for those that
    use it. Columns added concurrently by another sink are accepted.

    Raises:
        ConfigurationError: a type without a counterpart, or the role does not own the table.
    """
    added = (
        f"ADD COLUMN IF NOT EXISTS {quote_identifier(field.name)} {sql_type(field.name, field.dataType)}"
        for field in fields
    )
    with utf8_connection(connection).cursor() as cursor, refused_rows(target.table):
        cursor.execute(f"ALTER TABLE {target.table} {', '.join(added)}")
