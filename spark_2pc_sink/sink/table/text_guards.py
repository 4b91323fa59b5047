"""The guards against text that is not UTF-8: ``to_json`` replaces it silently, so it is marked before.

A cast from binary makes any bytes a string. In a column of text such a value is refused where it is encoded; inside a
struct, a map or an array it reaches Python as U+FFFD, and two keys of a map may have become one. So the SQL that makes
JSON is completed: where the result has that character, and only there, Spark looks at the texts that it was made of,
and puts a byte that is not UTF-8 in front where one of them is not. The checks of text then refuse the row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_2pc_sink.sink.table.spark_sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame


#: What stands in JSON for bytes that are no text.
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
#: A byte that UTF-8 does not have.
_MARK: Final = "CAST(X'FF' AS STRING)"
_TEXTS: Final = frozenset({"StringType", "CharType", "VarcharType"})
_TO_JSON: Final = re.compile(r"\bto_json\s*\(", re.IGNORECASE)


def guarded_sql(sql: str, frame: DataFrame) -> str:
    """An expression over the batch, guarded where it makes JSON: of which columns it does, is not asked.

    Args:
        sql: any expression of the sink. One that is not of type string is left as it is.
        frame: the batch.
    """
    if _TO_JSON.search(sql) is None:
        return sql
    if frame.selectExpr(f"{sql} AS it").schema[0].dataType.simpleString() != "string":
        return sql
    return guarded(sql, [(quoted(field.name), field.dataType) for field in frame.schema.fields])


def guarded(json: str, parts: Iterable[tuple[str, DataType]]) -> str:
    """SQL for the same JSON, which is no text where one of the texts that it was made of is none.

    Args:
        json: SQL that makes JSON.
        parts: SQL and type of each value that may be in it.
    """
    faults = [fault for sql, kind in parts if (fault := not_utf8(sql, kind)) is not None]
    if not faults:
        return json
    # Spark evaluates what stands three times here once (spark.sql.subexpressionElimination.enabled).
    found = f"contains(({json}\n), '{_REPLACED}') AND ({' OR '.join(faults)})"
    return f"CASE WHEN {found} THEN concat({_MARK}, ({json}\n)) ELSE ({json}\n) END"


def not_utf8(sql: str, kind: DataType, depth: int = 0) -> str | None:
    """A condition that is true where a text in a value is not UTF-8; None where there can be no text in it.

    Args:
        sql: the value.
        kind: its type.
        depth: how many lambda functions are around it.
    """
    if type(kind).__name__ in _TEXTS:
        return f"NOT is_valid_utf8({sql})"
    if isinstance(kind, StructType):
        fields = [not_utf8(f"{sql}.{quoted(field.name)}", field.dataType, depth) for field in kind.fields]
        return " OR ".join(fault for fault in fields if fault is not None) or None
    if isinstance(kind, ArrayType):
        return _any_of(sql, kind.elementType, depth)
    if isinstance(kind, MapType):
        keys = _any_of(f"map_keys({sql})", kind.keyType, depth)
        values = _any_of(f"map_values({sql})", kind.valueType, depth)
        return " OR ".join(fault for fault in (keys, values) if fault is not None) or None
    return None


def _any_of(array: str, kind: DataType, depth: int) -> str | None:
    element = f"_2pc_{depth}"
    fault = not_utf8(element, kind, depth + 1)
    return None if fault is None else f"exists({array}, {element} -> {fault})"


# to_json alone leaves out fields that are null.
_JSON_NULLS: Final = "'ignoreNullFields', 'false'"
# It also writes timestamps with three digits of their fraction, and zones without their seconds: it would lose
# microseconds, and be off by seconds before about 1900.
# The T of a pattern stands between quotes; sessions differ in what a double quote and a backslash mean in SQL.
_JSON_TIMESTAMPS: Final = (
    "'timestampFormat', replace('yyyy-MM-dd~T~HH:mm:ss.SSSSSSXXX', '~', char(39)), "
    "'timestampNTZFormat', replace('yyyy-MM-dd~T~HH:mm:ss.SSSSSS', '~', char(39)), 'timeZone', 'UTC'"
)
_TIMESTAMP_TYPES: Final = ("TimestampType", "TimestampNTZType")


def json_sql(source: str, spark_type: DataType) -> str:
    """Spark SQL for a value as JSON.

    Args:
        source: SQL of the value.
        spark_type: its type.
    """
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
