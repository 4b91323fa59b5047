"""The mapping of Spark types to PostgreSQL types, with the conversion and the checks of each value.

`RULES` has the type pairs known to both sides. Three principles determine it: a pair is accepted if every value fits;
if only some fit, it is accepted and each value is checked; and if a value would change its meaning (an assumed time
zone, a floating-point number made decimal), it is refused with the expression that makes the meaning explicit.

Types that Spark lacks are written as text, parsed by the type's input function. If a type's binary form is its text, it
is copied (an enum); otherwise it is copied as text and cast by the database.

Spark types are looked up by class name, since some exist only in newer releases (TimeType).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType

from spark_2pc_sink.options.names import IDENTIFIER_BYTES_MAX, quote_identifier
from spark_2pc_sink.sink.rows.catalog import TargetColumn, TargetTable
from spark_2pc_sink.sink.rows.copy_encoder import Encoding, Storage
from spark_2pc_sink.sink.rows.row_sql import TEXTS, json_sql
from spark_2pc_sink.sink.rows.value_checks import (
    DATE_DAYS_MAX,
    DATE_DAYS_MIN,
    TIMESTAMP_MICROSECONDS_MIN,
    UUID_TEXT,
    Check,
    DecimalRange,
    JsonWithoutNul,
    TextLength,
    TextPattern,
    TextWithoutNul,
    ValidText,
    WholeMultiple,
    WholeNumberRange,
)

#: Spark SQL types whose values are stored unchanged in a column of the given pg_type.typname. Text fits other types.
SPARK_COUNTERPARTS = {
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
}
#: Spark types of composite values: a column stores them as JSON, and arrays of scalars also as an array.
COMPLEX_TYPES = ("ArrayType", "MapType", "StructType", "VariantType")
JSON_COLUMNS = ("json", "jsonb")
_MICROSECOND_DIGITS = 6
_NANOSECOND_DIGITS = 9
_INT64_MAX = 2**63 - 1
# Bits and decimal digits that each of Spark's integers may need.
INTEGERS = {"ByteType": (8, 3), "ShortType": (16, 5), "IntegerType": (32, 10), "LongType": (64, 19)}
_INTEGER_COLUMNS = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
_TEXT_COLUMNS = ("text", "varchar", "bpchar")
#: Intervals that Spark cannot pass to a Python task, or pgpq cannot encode, to the Spark SQL of their text.
_INTERVAL_TEXTS = {
    "YearMonthIntervalType": "concat(cast(cast({0} as interval month) as int), ' months')",
    "CalendarIntervalType": "cast({0} as string)",
}
# PostgreSQL's timestamp.h: the type modifier of an interval is the set of its fields and its precision.
_ALL_FIELDS = 0x7FFF
_YEARS, _SECONDS = 1 << 2, 1 << 12
_PRECISION_BITS = 16

Rule: TypeAlias = "Callable[[DataType, TargetColumn], Storage | None]"

#: Spark's scalar types by class: the PostgreSQL type that holds each value, and the Arrow type in which Spark passes it
#: to a Python task (ArrowUtils.toArrowType), None if it cannot, or if it depends on the type's parameters. Texts and
#: bytes may also arrive as large_ variants (spark.sql.execution.arrow.useLargeVarTypes), timestamps with any zone.
SCALAR_TYPES: dict[str, tuple[str, Any]] = {
    "BooleanType": ("boolean", pa.bool_()),
    "ByteType": ("smallint", pa.int8()),
    "ShortType": ("smallint", pa.int16()),
    "IntegerType": ("integer", pa.int32()),
    "LongType": ("bigint", pa.int64()),
    "FloatType": ("real", pa.float32()),
    "DoubleType": ("double precision", pa.float64()),
    "DecimalType": ("numeric", None),
    "StringType": ("text", pa.string()),
    "CharType": ("text", pa.string()),
    "VarcharType": ("text", pa.string()),
    "BinaryType": ("bytea", pa.binary()),
    "DateType": ("date", pa.date32()),
    "TimestampType": ("timestamptz", pa.timestamp("us", tz="UTC")),
    "TimestampNTZType": ("timestamp", pa.timestamp("us")),
    "TimeType": ("time", pa.time64("ns")),
    "DayTimeIntervalType": ("interval", pa.duration("us")),
    "YearMonthIntervalType": ("interval", None),
    "CalendarIntervalType": ("interval", None),
}


def arrow_type(spark_type: DataType) -> Any | None:
    """The Arrow type of a scalar, or of an array of scalars; None for any other type."""
    if isinstance(spark_type, DecimalType):
        return pa.decimal128(spark_type.precision, spark_type.scale)
    if isinstance(spark_type, ArrayType):
        element = None if isinstance(spark_type.elementType, ArrayType) else arrow_type(spark_type.elementType)
        return None if element is None else pa.list_(element)
    return SCALAR_TYPES.get(type(spark_type).__name__, ("", None))[1]


def is_json(spark_type: DataType, column: TargetColumn) -> bool:
    """Whether a value can only be stored as JSON."""
    return type(spark_type).__name__ in COMPLEX_TYPES and not column.is_array


def storage_of(spark_type: DataType, column: TargetColumn) -> Storage | None:
    """How a value of Spark is stored in a column; None if it cannot be."""
    if is_json(spark_type, column):
        return JSON_STORAGE.get(column.base_type)
    given = spark_type.elementType if isinstance(spark_type, ArrayType) and column.is_array else spark_type
    kind = type(given).__name__
    if kind in TEXTS and column.is_array and (given is spark_type or column.base_type in JSON_COLUMNS):
        return _CAST
    rule = RULES.get((kind, column.base_type))
    if rule is None and kind in TEXTS and column.base_type not in SPARK_COUNTERPARTS:
        rule = _text if column.reads_text else _CAST
    if rule is None or (column.is_array and given is spark_type):
        return None
    return rule if isinstance(rule, Storage) else rule(given, column)


def in_arrow(sql: str, spark_type: DataType, column: TargetColumn) -> tuple[str, Any | None]:
    """The Spark SQL of a value in the form that tasks encode for a column, and its Arrow type; None if it has none."""
    if is_json(spark_type, column):
        return json_sql(sql, spark_type), pa.string()
    kind = type(spark_type).__name__
    if kind in _INTERVAL_TEXTS:
        return _INTERVAL_TEXTS[kind].format(sql), pa.string()
    if isinstance(spark_type, ArrayType) and type(spark_type.elementType).__name__ in _INTERVAL_TEXTS:
        element = _INTERVAL_TEXTS[type(spark_type.elementType).__name__].format("element")
        return f"transform({sql}, element -> {element})", pa.list_(pa.string())
    return sql, arrow_type(spark_type)


#: How JSON text is stored in a json or jsonb column.
_JSON_CHECKS = (ValidText("it is not valid UTF-8, or a text in it is not"), TextWithoutNul(), JsonWithoutNul())
JSON_STORAGE = {"json": Storage(checks=_JSON_CHECKS), "jsonb": Storage(checks=_JSON_CHECKS, encoding=Encoding.JSONB)}


_AS_IT_IS = Storage()
_CAST = Storage(checks=(ValidText(), TextWithoutNul()), cast=True)
_UUID = Storage(checks=(ValidText(), UUID_TEXT), encoding=Encoding.UUID)
_FLOAT4, _FLOAT8 = Storage(wire=pa.float32()), Storage(wire=pa.float64())
_DATE = Storage(checks=(WholeNumberRange(DATE_DAYS_MIN, DATE_DAYS_MAX),))
_ONE_BYTE = Storage(checks=(ValidText(), TextPattern("^[\\x01-\\x7f]$", '"char" holds one ASCII character')))


def _integer(bits: int, wire: Any) -> Storage:
    limit = 2 ** (wire.bit_width - 1)
    return Storage(wire=wire, checks=(WholeNumberRange(-limit, limit - 1),) if bits > wire.bit_width else ())


def _decimal_as_integer(wire: Any) -> Storage:
    limit = 2 ** (wire.bit_width - 1)
    return Storage(wire=wire, checks=(DecimalRange(Decimal(-limit), Decimal(limit - 1), 0),))


def _integer_as_numeric(spark_type: DataType, column: TargetColumn) -> Storage | None:
    _, digits = INTEGERS[type(spark_type).__name__]
    precision, scale = column.precision_and_scale or (digits, 0)
    if scale < 0:
        return None  # numeric(5,-2) rounds to hundreds
    high = 10 ** max(precision - scale, 0) - 1
    checks = (WholeNumberRange(-high, high),) if precision - scale < digits else ()
    return Storage(wire=pa.decimal128(digits, 0), checks=checks)


def _decimal(spark_type: DataType, column: TargetColumn) -> Storage | None:
    limits = column.precision_and_scale
    if limits is None or not isinstance(spark_type, DecimalType):
        return Storage()
    precision, scale = limits
    if scale < 0:
        return None
    if precision - scale >= spark_type.precision - spark_type.scale and scale >= spark_type.scale:
        return Storage()
    # From text, and negated by copy: arithmetic of decimal.Decimal rounds to 28 digits.
    high = Decimal(f"{10**precision - 1}E-{scale}")
    return Storage(checks=(DecimalRange(high.copy_negate(), high, scale),))


def _text(_: DataType, column: TargetColumn) -> Storage:
    checks: tuple[Check, ...] = (ValidText(), TextWithoutNul())
    if column.characters_max is not None:
        checks += (TextLength(column.characters_max),)
    return Storage(checks=checks)


def _cast_time(_: DataType, column: TargetColumn) -> Storage | None:
    """A text with a fractional second that PostgreSQL would round to the column's precision."""
    fields, digits = _interval_limits(column)
    if fields != _ALL_FIELDS:
        return None
    exact = TextPattern(rf"^[^.]*(\.\d{{0,{digits}}}0*(\D.*)?)?$", "{} would round its fraction")
    return Storage(checks=(ValidText(), TextWithoutNul(), exact), cast=True)


def _timestamp(_: DataType, column: TargetColumn) -> Storage:
    return Storage(checks=(WholeNumberRange(TIMESTAMP_MICROSECONDS_MIN, _INT64_MAX), *_fraction(column)))


def _fraction(column: TargetColumn, unit_digits: int = _MICROSECOND_DIGITS) -> tuple[Check, ...]:
    _, kept = _interval_limits(column)
    return (WholeMultiple(10 ** (unit_digits - kept)),) if kept < _MICROSECOND_DIGITS else ()


def _interval_limits(column: TargetColumn) -> tuple[int, int]:
    """Interval fields, as bits, and fraction digits; for another type with a fraction, all fields and its digits.

    PostgreSQL drops only units finer than the finest of the fields.
    """
    if column.type_modifier < 0:
        return _ALL_FIELDS, _MICROSECOND_DIGITS
    fields = column.type_modifier >> _PRECISION_BITS if column.base_type == "interval" else _ALL_FIELDS
    return fields, min(column.type_modifier & 0xFFFF, _MICROSECOND_DIGITS)


#: (class of the Spark type, pg_type.typname) to how one is stored in the other.
RULES: dict[tuple[str, str], Storage | Rule] = {
    ("BooleanType", "bool"): _AS_IT_IS,
    **{
        (integer, column): _integer(bits, wire)
        for integer, (bits, _) in INTEGERS.items()
        for column, wire in _INTEGER_COLUMNS.items()
    },
    **{(integer, "numeric"): _integer_as_numeric for integer in INTEGERS},
    # The integers that a float's mantissa (24 bits) and a double's (53 bits) hold exactly.
    **{(integer, "float4"): _FLOAT4 for integer in ("ByteType", "ShortType")},
    **{(number, "float8"): _FLOAT8 for number in ("ByteType", "ShortType", "IntegerType", "FloatType")},
    ("FloatType", "float4"): _AS_IT_IS,
    ("DoubleType", "float8"): _AS_IT_IS,
    ("DecimalType", "numeric"): _decimal,
    **{("DecimalType", column): _decimal_as_integer(wire) for column, wire in _INTEGER_COLUMNS.items()},
    **{(text, column): _text for text in TEXTS for column in _TEXT_COLUMNS},
    **{(text, column): _cast_time for text in TEXTS for column in ("time", "timetz", "interval")},
    **{
        (text, column): storage
        for text in TEXTS
        for column, storage in (JSON_STORAGE | {"uuid": _UUID, "char": _ONE_BYTE}).items()
    },
    ("BinaryType", "bytea"): _AS_IT_IS,
    ("DateType", "date"): _DATE,
    ("TimestampType", "timestamptz"): _timestamp,
    ("TimestampNTZType", "timestamp"): _timestamp,
    # Spark's TIME has at most six digits: the cast from nanoseconds is exact.
    ("TimeType", "time"): lambda _, column: Storage(wire=pa.time64("us"), checks=_fraction(column, _NANOSECOND_DIGITS)),
    ("DayTimeIntervalType", "interval"): lambda _, column: (
        Storage(checks=_fraction(column)) if _interval_limits(column)[0] & _SECONDS else None
    ),
    ("YearMonthIntervalType", "interval"): lambda _, column: (
        None if _interval_limits(column)[0] == _YEARS else Storage(cast=True)
    ),
    ("CalendarIntervalType", "interval"): _cast_time,
}


_TIMES = ("DateType", "TimestampType", "TimestampNTZType")
_NUMBERS = ("BooleanType", *INTEGERS, "FloatType", "DoubleType", "DecimalType")
_ROUNDING = "a binary fraction has no exact decimal value"
_ZONE = "only one of the two types has a time zone"
# Why these pairs are not converted implicitly: (class of the Spark type, pg_type.typname).
_REASONS = {
    ("FloatType", "numeric"): _ROUNDING,
    ("DoubleType", "numeric"): _ROUNDING,
    ("DoubleType", "float4"): "digits would be lost",
    ("IntegerType", "float4"): "not every integer is a real",
    ("LongType", "float8"): "not every bigint is a double precision",
    ("TimestampType", "timestamp"): _ZONE,
    ("TimestampNTZType", "timestamptz"): _ZONE,
    ("DateType", "timestamp"): "a date has no time of day",
    ("DateType", "timestamptz"): "a date has no time of day and no time zone",
}


def retyped(target: TargetTable, column: TargetColumn, to: str, source_sql: str) -> str:
    """How to make a table hold values of a type: the statement that changes the column's type, or adds another one."""
    name = quote_identifier(column.name)
    if column.retype_blocker:
        other = _free_name(target, column.name, to.strip("[]"))
        return (
            f"PostgreSQL cannot change the column's type ({column.retype_blocker}), so add another one, ALTER TABLE "
            f"{target.altered} ADD COLUMN {quote_identifier(other)} {to}, and write to it with "
            + columns_with(other, source_sql)
        )
    # A default has no cast to jsonb, even if there is one for the column's values.
    free = f"ALTER COLUMN {name} DROP DEFAULT, " if to == "jsonb" and column.has_default else ""
    using = f" USING to_jsonb({name})" if to == "jsonb" else ""
    return f"ALTER TABLE {target.altered} {free}ALTER COLUMN {name} TYPE {to}{using}"


def _free_name(target: TargetTable, name: str, suffix: str) -> str:
    """A name for another column, within PostgreSQL's length limit."""
    short = name.encode()[: IDENTIFIER_BYTES_MAX - len(suffix) - 1].decode(errors="ignore")
    taken = f"{short}_{suffix}"
    return taken if target.column(taken) is None else _free_name(target, short[:-1], suffix)


def conversion(name: str, spark_type: DataType, target: TargetTable, column: TargetColumn, source_sql: str) -> str:
    """How to make a column of the batch, with this Spark SQL, match one of the table."""
    of_column = spark_type.elementType if isinstance(spark_type, ArrayType) and column.is_array else spark_type
    kind, value = type(of_column).__name__, source_sql if of_column is spark_type else "element"
    reason, alter = "values are not converted implicitly", "or alter the column"
    if column.is_array and of_column is spark_type and storage_of(ArrayType(spark_type), column) is not None:
        reason, converted = "the column holds arrays", value
    elif kind in COMPLEX_TYPES and column.base_type not in (*_TEXT_COLUMNS, *JSON_COLUMNS):
        return f"use jsonb: {retyped(target, column, 'jsonb', source_sql)}"
    elif kind in COMPLEX_TYPES:
        converted = f"to_json({value})"
    elif column.base_type == "interval" and ("Interval" in kind or kind in TEXTS):
        full = "interval[]" if column.is_array else "interval"
        return f"the column drops fields that values of the batch may have: {retyped(target, column, full, source_sql)}"
    elif column.base_type not in SPARK_COUNTERPARTS:
        reason, converted = "the column takes text in PostgreSQL's format", f"cast({value} as string)"
    else:
        reason = _REASONS.get((kind, column.base_type), reason)
        to = SPARK_COUNTERPARTS[column.base_type]
        castable = _TIMES if to in ("date", "timestamp", "timestamp_ntz") else () if to == "binary" else _NUMBERS
        if to != "string" and kind not in (*TEXTS, "NullType", *castable):
            return f"{reason}: convert it with an expression of type {to} over {value}, {alter}"
        converted = f"cast({value} as {to})"
    if of_column is not spark_type:
        converted = f"transform({source_sql}, element -> {converted})"
    elif column.is_array:
        converted = f"array({converted})"
    return f"{reason}: convert it with {columns_with(name, converted)}, {alter}"


def columns_with(name: str, expression: str) -> str:
    """The option with this column; dots stand in for the others, which it also has to name."""
    return f"columns={{{name!r}: {expression!r}, ...}}"
