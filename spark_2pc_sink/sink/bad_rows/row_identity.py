"""The identity of a row: a hash of 128 bits over all columns of the batch, as Spark SQL.

It is the same in each evaluation of the batch, and different for rows that differ in anything: `_encoded` tells null
from an empty text, and where one column ends from where the next begins. It follows no setting of the session, as a
cast of a timestamp to text does, and keeps bytes that are no text, which to_json replaces.

The hash is the first half of a SHA-256: nobody who writes rows can make another row that is taken for a bad one.

A search goes by a fingerprint of 64 bits, since a SHA-256 of every row takes longer than to write it. Rows with equal
identities have equal fingerprints. Different rows may have one too, so a fingerprint alone never says that a row is
bad: the identity of the few rows that have it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, MapType, StructType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.bad_rows.bad_row import IDENTITY_BYTES
from spark_2pc_sink.sink.table.spark_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

#: The columns that a sift adds to a batch. The first is an identity, or a fingerprint.
IDENTITY: Final = "_2pc_identity"
NUMBER: Final = "_2pc_number"
#: True for a row that no other of its key supersedes.
WINS: Final = "_2pc_wins"

_NULL: Final = "'~'"
_PLAIN: Final = "CAST({} AS STRING)"
_TEXT: Final = "hex(CAST({} AS BINARY))"
#: SQL for the text of a value by the class of its type: unambiguous in every session, and without the characters that
#: structure the encoding.
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


#: Of these Spark has no hash.
_WITHOUT_FINGERPRINT: Final = frozenset({"MapType", "VariantType"})


def identity_sql(schema: StructType) -> str:
    """The identity of a row of this schema, of type binary.

    Raises:
        ConfigurationError: a column's type cannot be told apart, or two columns have one name.
    """
    names = schema.fieldNames()
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _refused(twice, "two columns of the batch have this name", "rename one of them before the sink")
    parts = [_encoded(quoted(field.name), field.dataType, field.name) for field in schema.fields]
    return f"unhex(left(sha2({_joined(parts)}, 256), {2 * IDENTITY_BYTES}))"


def fingerprint_sql(schema: StructType) -> str:
    """The fingerprint of a row of this schema, of type bigint. Spark makes none of maps: they do not count."""
    names = [quoted(field.name) for field in schema.fields if _has_fingerprint(field.dataType)]
    return f"xxhash64({', '.join(names)})" if names else "0L"


def _has_fingerprint(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_has_fingerprint(part.dataType) for part in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_fingerprint(kind.elementType)
    return type(kind).__name__ not in _WITHOUT_FINGERPRINT


def _joined(parts: list[str]) -> str:
    return f"concat_ws(',', {', '.join(parts)})" if parts else "''"


def _encoded(sql: str, kind: DataType, column: str, depth: int = 0) -> str:
    """A text of a value, or `_NULL`; any other begins with an equals sign, and structures stand in brackets."""
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
    raise _refused(
        column,
        f"it has {kind.simpleString()}, of which this sink cannot tell two values apart",
        "convert it before the sink, or leave it out",
    )


def _elements(sql: str, kind: DataType, column: str, depth: int) -> str:
    element = f"_2pc_{depth}"
    encoded = f"transform({sql}, {element} -> {_encoded(element, kind, column, depth + 1)})"
    return f"concat('[', array_join({encoded}, ','), ']')"


def _refused(column: str, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        option="bad_rows",
        value="dead_letter",
        rule=f"each row of the batch must be told from every other, and column {column!r} stands in the way: {rule}",
        remedy=remedy,
    )
