"""The guards against invalid UTF-8 in text: ``to_json`` replaces it silently, so it is marked before.

A cast from binary turns any bytes into a string. In a text column such a value is refused when it is encoded; inside a
struct, a map or an array it reaches Python as U+FFFD, and two keys of a map may have become one. So the SQL that builds
JSON is extended: only if the result contains that character, Spark examines the texts from which it was built, and
prepends an invalid byte if one of them is not UTF-8. The checks of text then refuse the row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_2pc_sink.sink.spark_sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame


#: Spark types whose values are texts.
TEXTS: Final = ("StringType", "CharType", "VarcharType")
#: The replacement in JSON for invalid bytes.
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
#: A byte that never occurs in UTF-8.
_MARK: Final = "CAST(X'FF' AS STRING)"
_TO_JSON: Final = re.compile(r"\bto_json\s*\(", re.IGNORECASE)


def guarded_sql(sql: str, frame: DataFrame) -> str:
    """An expression over the batch, guarded if it builds JSON; one that is not of type string is unchanged."""
    if _TO_JSON.search(sql) is None:
        return sql
    if frame.selectExpr(f"{sql} AS it").schema[0].dataType.simpleString() != "string":
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
    """Spark SQL for a value as JSON."""
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
