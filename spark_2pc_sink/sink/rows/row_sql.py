"""Spark SQL over the rows of a batch, by type: their JSON; the identity of a row, and its JSON as a dead letter.

JSON is guarded against invalid UTF-8 in text, which ``to_json`` replaces silently. A cast from binary turns any bytes
into a string. In a text column such a value is refused when it is encoded; inside a struct, a map or an array it
reaches Python as U+FFFD, and two keys of a map may have become one. So the SQL that builds JSON is extended: only if
the result contains that character, Spark examines the texts from which it was built, and prepends an invalid byte if
one of them is not UTF-8. The checks of text then refuse the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.spark_sql import quoted

#: Spark types whose values are texts.
TEXTS: Final = ("StringType", "CharType", "VarcharType")
#: The replacement in JSON for invalid bytes.
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
#: A byte that never occurs in UTF-8.
_MARK: Final = "CAST(X'FF' AS STRING)"
_TO_JSON: Final = re.compile(r"\bto_json\s*\(", re.IGNORECASE)


def guarded_sql(sql: str, frame: DataFrame) -> str:
    """An expression over the batch, guarded if it builds JSON; one that is not of type string is unchanged."""
    if _TO_JSON.search(sql) is None or frame.selectExpr(f"{sql} AS it").schema[0].dataType.simpleString() != "string":
        return sql
    return guarded(sql, [(quoted(field.name), field.dataType) for field in frame.schema.fields])


def guarded(json: str, parts: Iterable[tuple[str, DataType]]) -> str:
    """SQL for the same JSON, made invalid text if one of the values (SQL and type) that may be in it is invalid."""
    faults = [fault for sql, kind in parts if (fault := not_utf8(sql, kind)) is not None]
    if not faults:
        return json
    # Spark evaluates an expression repeated here once (spark.sql.subexpressionElimination.enabled).
    found = f"contains(({json}\n), '{_REPLACED}') AND ({' OR '.join(faults)})"
    return f"CASE WHEN {found} THEN concat({_MARK}, ({json}\n)) ELSE ({json}\n) END"


def not_utf8(sql: str, kind: DataType, depth: int = 0) -> str | None:
    """A condition that is true if a text in a value is not UTF-8; None if it cannot contain text."""
    if type(kind).__name__ in TEXTS:
        return f"NOT is_valid_utf8({sql})"
    faults: list[str | None] = []
    if isinstance(kind, StructType):
        faults = [not_utf8(f"{sql}.{quoted(field.name)}", field.dataType, depth) for field in kind.fields]
    elif isinstance(kind, ArrayType):
        faults = [_any_of(sql, kind.elementType, depth)]
    elif isinstance(kind, MapType):
        keys = _any_of(f"map_keys({sql})", kind.keyType, depth)
        faults = [keys, _any_of(f"map_values({sql})", kind.valueType, depth)]
    return " OR ".join(fault for fault in faults if fault is not None) or None


def _any_of(array: str, kind: DataType, depth: int) -> str | None:
    element = f"_2pc_{depth}"
    fault = not_utf8(element, kind, depth + 1)
    return None if fault is None else f"exists({array}, {element} -> {fault})"


# to_json alone omits null fields.
_JSON_NULLS: Final = "'ignoreNullFields', 'false'"
# It also writes timestamps with three fractional digits, and zones without their seconds: it would lose microseconds,
# and be off by seconds before about 1900.
# The T of a pattern is quoted; sessions differ in the meaning of a double quote and a backslash in SQL.
_JSON_TIMESTAMPS: Final = (
    "'timestampFormat', replace('yyyy-MM-dd~T~HH:mm:ss.SSSSSSXXX', '~', char(39)), "
    "'timestampNTZFormat', replace('yyyy-MM-dd~T~HH:mm:ss.SSSSSS', '~', char(39)), 'timeZone', 'UTC'"
)
_TIMESTAMP_TYPES: Final = ("TimestampType", "TimestampNTZType")


def json_sql(source: str, spark_type: DataType) -> str:
    timestamps = any(type(part).__name__ in _TIMESTAMP_TYPES for part in parts_of(spark_type))
    options = f"{_JSON_NULLS}, {_JSON_TIMESTAMPS}" if timestamps else _JSON_NULLS
    return guarded(f"to_json({source}, map({options}))", [(source, spark_type)])


def parts_of(spark_type: DataType) -> Iterable[DataType]:
    """The type itself and every type in it."""
    yield spark_type
    if isinstance(spark_type, ArrayType):
        yield from parts_of(spark_type.elementType)
    elif isinstance(spark_type, MapType):
        yield from parts_of(spark_type.keyType)
        yield from parts_of(spark_type.valueType)
    elif isinstance(spark_type, StructType):
        for field in spark_type.fields:
            yield from parts_of(field.dataType)


def with_text_keys(spark_type: DataType) -> str:
    """A type in Spark SQL, with text for the keys of each map in it."""
    if isinstance(spark_type, ArrayType):
        return f"array<{with_text_keys(spark_type.elementType)}>"
    if isinstance(spark_type, MapType):
        return f"map<string, {with_text_keys(spark_type.valueType)}>"
    if isinstance(spark_type, StructType):
        fields = (f"{quoted(field.name)}: {with_text_keys(field.dataType)}" for field in spark_type.fields)
        return f"struct<{', '.join(fields)}>"
    return spark_type.simpleString()


_NULL: Final = "'~'"
_PLAIN: Final = "CAST({} AS STRING)"
_TEXT: Final = "hex(CAST({} AS BINARY))"
#: SQL for the text of a value by type class: unambiguous in every session, and without the encoding's structural
#: characters.
_FORMS: Final = (
    dict.fromkeys(TEXTS, _TEXT)
    | dict.fromkeys(("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType"), _PLAIN)
    | dict.fromkeys(("DoubleType", "DecimalType", "DateType", "TimestampNTZType", "TimeType", "NullType"), _PLAIN)
    | dict.fromkeys(("DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType"), _PLAIN)
    | {"BinaryType": "hex({})", "TimestampType": "CAST(unix_micros({}) AS STRING)", "VariantType": "hex(to_json({}))"}
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
    if (form := _FORMS.get(type(kind).__name__)) is not None:
        text = form.format(sql)
    elif isinstance(kind, StructType):
        fields = [_encoded(f"{sql}.{quoted(part.name)}", part.dataType, column, depth) for part in kind.fields]
        text = f"concat('(', {_joined(fields)}, ')')"
    elif isinstance(kind, ArrayType):
        text = _elements(sql, kind.elementType, column, depth)
    elif isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        text = _elements(f"map_entries({sql})", entry, column, depth)
    else:
        rule = f"the sink cannot compare values of type {kind.simpleString()}"
        raise _refused(column, rule, "convert it before the sink, or leave it out")
    return f"if(({sql}) IS NULL, {_NULL}, concat('=', {text}))"


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
    return f"to_json(struct({', '.join(parts)}), map({_JSON_NULLS}))"


def _shown(sql: str, kind: DataType, depth: int = 0) -> str:
    """SQL for a value that to_json converts without loss."""
    if (text := _BY_TEXT.get(type(kind).__name__)) is not None:
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
        key = _shown(f"{element}.key", kind.keyType, depth + 1)
        # to_json would use the text of Java's internal representation.
        if isinstance(kind.keyType, (StructType, ArrayType)):
            key = f"to_json({key}, map({_JSON_NULLS}))"
        elif isinstance(kind.keyType, BinaryType):
            key = f"base64({element}.key)"
        value = _shown(f"{element}.value", kind.valueType, depth + 1)
        return f"map_from_entries(transform(map_entries({sql}), {element} -> struct({key}, {value})))"
    return sql
