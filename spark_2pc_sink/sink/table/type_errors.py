"""The errors of column types: what the column is, what the table has, and what to write instead."""

from __future__ import annotations

from pyspark.sql.types import DataType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.table.catalog import TargetColumn
from spark_2pc_sink.sink.table.type_mapping import COMPLEX_TYPES

# Spark SQL types whose values go into a column of the given pg_type.typname as they are.
_CASTS = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "numeric": "decimal(38,18)",
    "text": "string",
    "varchar": "string",
    "bpchar": "string",
    "json": "string",
    "jsonb": "string",
    "uuid": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "time": "time(6)",
    "interval": "interval day to second",
}
_ROUNDING = "a binary fraction has no exact decimal; say how many digits to keep"
_ZONE = "one has a time zone and the other has none; say that the session's zone is meant"
# Why these pairs are not converted without being asked: (class of the Spark type, pg_type.typname).
_REASONS = {
    ("FloatType", "numeric"): _ROUNDING,
    ("DoubleType", "numeric"): _ROUNDING,
    ("DoubleType", "float4"): "it would lose digits; say that you want that",
    ("IntegerType", "float4"): "not every integer is a real; say that you want the nearest",
    ("LongType", "float8"): "not every bigint is a double; say that you want the nearest",
    ("TimestampType", "timestamp"): _ZONE,
    ("TimestampNTZType", "timestamptz"): _ZONE,
    ("DateType", "timestamp"): "say that midnight is meant",
    ("DateType", "timestamptz"): "say that midnight in the session's zone is meant",
}


def incompatible(name: str, spark_type: DataType, column: TargetColumn, made_of: str) -> ConfigurationError:
    """A column of the batch, made of this Spark SQL, and one of the table that do not go together."""
    return ConfigurationError(
        option="columns",
        value=name,
        rule=f"the batch has {spark_type.simpleString()}, the table has {column.type_name}",
        remedy=_remedy(name, spark_type, column, made_of),
    )


def unsupported(name: str, spark_type: DataType, made_of: str) -> ConfigurationError:
    """A column of a type that has no counterpart in PostgreSQL, or that Spark cannot hand to Python."""
    return ConfigurationError(
        option="columns",
        value=name,
        rule=f"there is no way for {spark_type.simpleString()} into PostgreSQL",
        remedy=f"convert it, such as with {columns_with(name, f'cast({made_of} as string)')}, or leave it out",
    )


def _remedy(name: str, spark_type: DataType, column: TargetColumn, made_of: str) -> str:
    kind = type(spark_type).__name__
    if column.is_array:
        return "make the column jsonb, which takes any array, or convert the array's elements with transform()"
    if kind in COMPLEX_TYPES:
        return f"make the column jsonb, or write its JSON as text with {columns_with(name, f'to_json({made_of})')}"
    if column.base_type not in _CASTS:
        return "make the column one of the types that COPY BINARY can fill, such as text, or leave it out"
    reason = _REASONS.get((kind, column.base_type), "they are not converted silently; say that you want it")
    return f"{reason} with {columns_with(name, f'cast({made_of} as {_CASTS[column.base_type]})')}, or alter the column"


def columns_with(name: str, expression: str) -> str:
    """The option with this column; the dots stand for the others, which it has to name too."""
    return f"columns={{{name!r}: {expression!r}, ...}}"
