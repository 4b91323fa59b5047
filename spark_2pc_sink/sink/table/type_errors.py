"""The errors of column types: what the column is, what the table has, and what to write instead."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.table.catalog import TargetColumn
from spark_2pc_sink.sink.table.identifiers import TableName, quote_identifier
from spark_2pc_sink.sink.table.type_mapping import COMPLEX_TYPES, JSON_COLUMNS, SPARK_COUNTERPARTS

_TAKE_JSON = ("text", "varchar", "bpchar", *JSON_COLUMNS)
_TIMES = ("DateType", "TimestampType", "TimestampNTZType")
_NUMBERS = ("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType")
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


def incompatible(
    name: str, spark_type: DataType, table: TableName, column: TargetColumn, made_of: str
) -> ConfigurationError:
    """A column of the batch, made of this Spark SQL, and one of the table that do not go together."""
    return ConfigurationError(
        option="columns",
        value=name,
        rule=f"the batch has {spark_type.simpleString()}, the table has {column.type_name}",
        remedy=_remedy(name, spark_type, table, column, made_of),
    )


def unsupported(name: str, spark_type: DataType, made_of: str) -> ConfigurationError:
    """A column of a type that has no counterpart in PostgreSQL, or that Spark cannot hand to Python."""
    return ConfigurationError(
        option="columns",
        value=name,
        rule=f"there is no way for {spark_type.simpleString()} into PostgreSQL",
        remedy=f"convert it, such as with {columns_with(name, f'cast({made_of} as string)')}, or leave it out",
    )


def _remedy(name: str, spark_type: DataType, table: TableName, column: TargetColumn, made_of: str) -> str:
    alter = f"ALTER TABLE {table} ALTER COLUMN {quote_identifier(column.name)} TYPE"
    of_column = spark_type.elementType if isinstance(spark_type, ArrayType) and column.is_array else spark_type
    kind, value = type(of_column).__name__, made_of if of_column is spark_type else "element"
    if kind in COMPLEX_TYPES and column.base_type not in _TAKE_JSON:
        return f"make the column jsonb, which takes it: {alter} jsonb USING to_jsonb({quote_identifier(column.name)})"
    if kind in COMPLEX_TYPES:
        reason, converted = "say that its JSON is meant", f"to_json({value})"
    elif column.base_type == "interval" and "Interval" in kind:
        return f"the column drops fields that the batch has; alter it: {alter} interval"
    elif column.base_type in SPARK_COUNTERPARTS:
        reason = _REASONS.get((kind, column.base_type), "they are not converted silently; say that you want it")
        to = SPARK_COUNTERPARTS[column.base_type]
        converted = f"cast({value} as {to})" if _has_cast(kind, to) else f"expression that makes {to} of {value}"
    else:
        reason, converted = "it takes text as PostgreSQL reads it; say how", f"cast({value} as string)"
    if of_column is not spark_type:
        converted = f"transform({made_of}, element -> {converted})"
    elif column.is_array:
        converted = f"array({converted})"
    return f"{reason} with {columns_with(name, converted)}, or alter the column"


def _has_cast(kind: str, to: str) -> bool:
    """Whether Spark casts a type, by its class, to one of `SPARK_COUNTERPARTS`, and it means something."""
    if to == "string" or kind in ("StringType", "CharType", "VarcharType", "NullType"):
        return True
    return kind in (_TIMES if to in ("date", "timestamp", "timestamp_ntz") else () if to == "binary" else _NUMBERS)


def columns_with(name: str, expression: str) -> str:
    """The option with this column; the dots stand for the others, which it has to name too."""
    return f"columns={{{name!r}: {expression!r}, ...}}"
