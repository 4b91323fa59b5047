"""The JSON of a value for a table: Spark SQL that loses nothing, which Spark's to_json alone would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_2pc_sink.sink.table.text_guards import guarded

if TYPE_CHECKING:
    from collections.abc import Iterable

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
