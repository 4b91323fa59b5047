"""Spark SQL over the rows of a batch: the identity and the fingerprint of a row, and the JSON of a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.rows.text_guards import parts_of
from spark_2pc_sink.sink.spark_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_NULL: Final = "'~'"
_PLAIN: Final = "CAST({} AS STRING)"
_TEXT: Final = "hex(CAST({} AS BINARY))"
#: SQL for the text of a value by type class: unambiguous in every session, and without the encoding's structural
#: characters.
_FORMS: Final = (
    dict.fromkeys(("StringType", "CharType", "VarcharType"), _TEXT)
    | dict.fromkeys(("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType"), _PLAIN)
    | dict.fromkeys(("DoubleType", "DecimalType", "DateType", "TimestampNTZType", "TimeType", "NullType"), _PLAIN)
    | dict.fromkeys(("DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType"), _PLAIN)
    | {
        "BinaryType": "hex({})",
        "TimestampType": "CAST(unix_micros({}) AS STRING)",
        "VariantType": "hex(to_json({}))",
    }
)


#: Half of a SHA-256, in hexadecimal.
_IDENTITY_DIGITS: Final = 32
#: Types for which Spark has no hash.
_WITHOUT_FINGERPRINT: Final = frozenset({"MapType", "VariantType"})


def identity_sql(schema: StructType) -> str:
    """The identity of a row of this schema: hexadecimal digits of a SHA-256 over all its columns.

    Authors of rows cannot forge a row that is mistaken for a bad one. `_encoded` distinguishes null from an empty text
    and marks column boundaries; unlike a cast of a timestamp to text, it is independent of session settings, and it
    preserves bytes that are not valid text.

    Raises:
        ConfigurationError: values of a column's type cannot be told apart, or two columns have the same name.
    """
    names = schema.fieldNames()
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _refused(twice, "two columns of the batch have this name", "rename one of them before the sink")
    parts = [_encoded(quoted(field.name), field.dataType, field.name) for field in schema.fields]
    return f"left(sha2({_joined(parts)}, 256), {_IDENTITY_DIGITS})"


def fingerprint_sql(schema: StructType) -> str:
    """The fingerprint of a row of this schema, in hexadecimal. Maps are not included: Spark cannot hash them.

    Searches use it, since a SHA-256 of every row takes longer than writing it. Different rows may share a fingerprint,
    so it alone never marks a row as bad: the identities of the few matching rows are compared.
    """
    names = [
        quoted(field.name)
        for field in schema.fields
        if not any(type(part).__name__ in _WITHOUT_FINGERPRINT for part in parts_of(field.dataType))
    ]
    return f"hex(xxhash64({', '.join(names)}))" if names else "'0'"


def _joined(parts: list[str]) -> str:
    return f"concat_ws(',', {', '.join(parts)})" if parts else "''"


def _encoded(sql: str, kind: DataType, column: str, depth: int = 0) -> str:
    """Text of a value, or `_NULL`; other texts begin with an equals sign, and structures are enclosed in brackets."""
    text = _text(sql, kind, column, depth)
    return f"if(({sql}) IS NULL, {_NULL}, concat('=', {text}))"


def _text(sql: str, kind: DataType, column: str, depth: int) -> str:
    form = _FORMS.get(type(kind).__name__)
    if form is not None:
        return form.format(sql)
    if isinstance(kind, StructType):
        fields = [_encoded(f"{sql}.{quoted(part.name)}", part.dataType, column, depth) for part in kind.fields]
        return f"concat('(', {_joined(fields)}, ')')"
    if isinstance(kind, ArrayType):
        return _elements(sql, kind.elementType, column, depth)
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _elements(f"map_entries({sql})", entry, column, depth)
    rule = f"the sink cannot compare values of type {kind.simpleString()}"
    raise _refused(column, rule, "convert it before the sink, or leave it out")


def _elements(sql: str, kind: DataType, column: str, depth: int) -> str:
    element = f"_2pc_{depth}"
    encoded = f"transform({sql}, {element} -> {_encoded(element, kind, column, depth + 1)})"
    return f"concat('[', array_join({encoded}, ','), ']')"


def _refused(column: str, rule: str, remedy: str) -> ConfigurationError:
    rule = f"rows of the batch must be distinguishable, which column {column!r} prevents: {rule}"
    return refused("bad_rows", "dead_letter", rule, remedy)


#: SQL for the text of types that to_json cannot convert in every supported Spark version, truncates to milliseconds, or
#: converts depending on session settings, with which even a cast loses the era of a date.
_BY_TEXT: Final = dict.fromkeys(
    ("TimeType", "CalendarIntervalType", "DayTimeIntervalType", "YearMonthIntervalType"), "CAST({} AS STRING)"
) | {
    # Bytes, which jsonb cannot hold, in PostgreSQL's bytea format.
    "StringType": "if(is_valid_utf8({0}) AND NOT contains({0}, char(0)), {0}, "
    "concat(char(92), 'x', lower(hex(CAST({0} AS BINARY)))))",
    "DateType": "if({0} IS NULL, NULL, format_string(if(year({0}) BETWEEN 0 AND 9999, '%04d-%02d-%02d', "
    "'%+05d-%02d-%02d'), year({0}), month({0}), day({0})))",
    "TimestampNTZType": "replace(CAST({} AS STRING), ' ', 'T')",
}
_DAY: Final = 86_400_000_000
_TIME_OF_DAY: Final = f"CAST((unix_micros({{0}}) % {_DAY}) / 1000000BD AS DECIMAL(18, 6))"
_IN_UTC: Final = (
    f"(TIMESTAMP_NTZ'1970-01-01' + make_dt_interval(CAST(unix_micros({{0}}) DIV {_DAY} AS INT), 0, 0, {_TIME_OF_DAY}))"
)
_BY_TEXT["TimestampType"] = f"concat({_BY_TEXT['TimestampNTZType'].format(_IN_UTC)}, 'Z')"


def dead_letter_json(schema: StructType) -> str:
    """SQL for the lossless JSON of a whole row, including nulls."""
    parts = [f"{_shown(name, field.dataType)} AS {name}" for field in schema.fields for name in [quoted(field.name)]]
    return f"to_json(struct({', '.join(parts)}), map('ignoreNullFields', 'false'))"


def _shown(sql: str, kind: DataType, depth: int = 0) -> str:
    """SQL for a value that to_json converts without loss."""
    text = _BY_TEXT.get(type(kind).__name__)
    if text is not None:
        return text.format(sql)
    element = f"_2pc_{depth}"
    if isinstance(kind, StructType) and kind.fields:
        names = [quoted(part.name) for part in kind.fields]
        parts = (_shown(f"{sql}.{name}", part.dataType, depth) for name, part in zip(names, kind.fields, strict=True))
        made = ", ".join(f"{part} AS {name}" for part, name in zip(parts, names, strict=True))
        return f"if(({sql}) IS NULL, NULL, struct({made}))"
    if isinstance(kind, ArrayType):
        return f"transform({sql}, {element} -> {_shown(element, kind.elementType, depth + 1)})"
    if isinstance(kind, MapType):
        key = _shown_key(f"{element}.key", kind.keyType, depth + 1)
        value = _shown(f"{element}.value", kind.valueType, depth + 1)
        return f"map_from_entries(transform(map_entries({sql}), {element} -> struct({key}, {value})))"
    return sql


def _shown_key(sql: str, kind: DataType, depth: int) -> str:
    """SQL for a map key, for which to_json would use the text of Java's internal representation."""
    shown = _shown(sql, kind, depth)
    if isinstance(kind, (StructType, ArrayType)):
        return f"to_json({shown}, map('ignoreNullFields', 'false'))"
    return f"base64({sql})" if isinstance(kind, BinaryType) else shown
