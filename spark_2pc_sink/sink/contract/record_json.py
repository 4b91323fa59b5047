"""The JSON value of a record, built by tasks from Arrow: byte by byte what Spark's to_json makes.

In the JVM, ``to_json(struct(*))`` takes half of the time of a task that reads, and what it makes has to cross to
Python beside the same columns, which cross anyway for the table. Here a column becomes text by Arrow's casts, and one
``binary_join_element_wise`` puts names, punctuation and texts together.

The pattern is ``JacksonGenerator`` of Spark with its default options: fields in the order of the columns, timestamps
with three digits of their fraction. Where Arrow's way would not be Spark's to the byte, Spark makes what is needed of
that column alone, in a column beside it: Java's digits of a binary fraction, the local time of a timestamp, the JSON of
what is nested. Only rows of which one column does not say what becomes of its nulls are left to Spark as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DecimalType

from spark_2pc_sink.sink.contract import json_texts
from spark_2pc_sink.sink.table.spark_sql import quoted
from spark_2pc_sink.wire.arrow_layout import binary_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql.types import StructField, StructType

#: The expression whose result is built here.
WHOLE_ROW: Final = "to_json(struct(*))"

#: Spark's settings that change what to_json makes (those that ``FileSourceOptions``, ``JSONOptions`` and
#: ``ResolveTimeZone`` ask for).
IGNORE_NULLS: Final = "spark.sql.jsonGenerator.ignoreNullFields"
NULLS_WITH_DEFAULT: Final = "spark.sql.jsonGenerator.writeNullIfWithDefaultValue"
TIME_PARSER: Final = "spark.sql.legacy.timeParserPolicy"
TIME_ZONE: Final = "spark.sql.session.timeZone"
#: The offset of a time zone is written with its seconds, where it has some (SPARK-48776).
OFFSET_SECONDS: Final = "spark.sql.files.supportSecondOffsetFormat"
SETTINGS: Final = (IGNORE_NULLS, NULLS_WITH_DEFAULT, TIME_PARSER, TIME_ZONE, OFFSET_SECONDS)
_UTC: Final = ("UTC", "Etc/UTC", "Z")

#: A column's default may make Spark write its nulls (`NULLS_WITH_DEFAULT`): such columns are left to it.
_DEFAULT_KEY: Final = "EXISTS_DEFAULT"
#: Written without quotes, by Arrow.
_NUMBERS: Final = frozenset({"ByteType", "ShortType", "IntegerType", "LongType", "BooleanType", "DecimalType"})
_FLOATS: Final = frozenset({"FloatType", "DoubleType"})
_TIMES: Final = frozenset({"DateType", "TimestampType", "TimestampNTZType"})
_NESTED: Final = frozenset({"StructType", "ArrayType", "MapType", "VariantType"})

# Kinds beside the classes of Spark's types.
#: A timestamp of which Spark tells the local time.
ZONED: Final = "TimestampType, local"
#: What Spark makes JSON of by itself.
NESTED: Final = "to_json"
#: What Spark makes JSON of as the field of a struct.
WRAPPED: Final = "to_json(struct)"
#: Of these kinds tasks do not need the column itself.
_MADE_BY_SPARK: Final = frozenset({NESTED, WRAPPED})
_BARE: Final = _NUMBERS | _FLOATS | _MADE_BY_SPARK


@dataclass(frozen=True)
class JsonField:
    """One field of the JSON object. Can be pickled.

    Attributes:
        column: its name in the Arrow batch, and as JSON writes it.
        kind: class name of the Spark type, `ZONED`, `NESTED` or `WRAPPED`.
        made: the column in the Arrow batch that Spark makes for the text; None where it makes none.
        keeps_null: a null is written, and not left out.
    """

    column: str
    kind: str
    made: str | None = None
    keeps_null: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the Arrow batch of which the text is made."""
        made = () if self.made is None else (self.made,)
        return made if self.kind in _MADE_BY_SPARK else (self.column, *made)

    @property
    def reads_column(self) -> bool:
        """True where the column itself is among them."""
        return self.column in self.sources

    @property
    def name(self) -> bytes:
        """The bytes before a value."""
        return b'"' + json_texts.escaped_name(self.column) + b'":'

    @property
    def head(self) -> bytes:
        """The bytes before the text of a value."""
        return self.name if self.kind in _BARE else self.name + b'"'

    @property
    def tail(self) -> bytes:
        """The bytes behind it."""
        return b"" if self.kind in _BARE else b'Z"' if self.kind == "TimestampType" else b'"'


def json_fields(schema: StructType, settings: Mapping[str, str]) -> tuple[JsonField, ...] | None:
    """How `json_values` builds the value of a row; None where only Spark can.

    Args:
        schema: of the batch.
        settings: the session's values of `SETTINGS`.
    """
    names, keeps_nulls = schema.fieldNames(), settings[IGNORE_NULLS].lower() != "true"
    defaults = any(_DEFAULT_KEY in (field.metadata or {}) for field in schema.fields)
    if len(set(names)) < len(names) or (defaults and not keeps_nulls):
        return None
    fields = []
    for number, field in enumerate(schema.fields):
        kind, made = _kind(field, settings)
        fields.append(JsonField(field.name, kind, f"_2pc_json_{number}" if made else None, keeps_nulls))
    return tuple(fields)


def _kind(field: StructField, settings: Mapping[str, str]) -> tuple[str, bool]:
    """The kind of a field, and whether Spark makes a column for it."""
    kind = type(field.dataType).__name__
    if kind in _FLOATS:
        return kind, True
    if kind in _NESTED:
        return NESTED, True
    if kind in _TIMES and settings[TIME_PARSER].upper() == "LEGACY":
        return WRAPPED, True
    if kind == "TimestampType" and settings[TIME_ZONE] not in _UTC:
        return (ZONED if settings[OFFSET_SECONDS].lower() == "true" else WRAPPED), True
    plain = not isinstance(field.dataType, DecimalType) or field.dataType.scale >= 0
    if plain and kind in {"StringType", "BinaryType", *_NUMBERS, *_TIMES}:
        return kind, False
    return WRAPPED, True


def made_sql(field: JsonField) -> str:
    """Spark SQL over the batch for the column `JsonField.made`."""
    source = quoted(field.column)
    if field.kind in _FLOATS:
        # Digits are Java's affair: before version 19, its text is not always the shortest that means the number.
        return f"CAST({source} AS STRING)"
    if field.kind == ZONED:
        return json_texts.local_time_sql(source)
    if field.kind == NESTED:
        return f"to_json({source})"
    return f"CASE WHEN {source} IS NOT NULL THEN to_json(named_struct('v', {source})) END"


def json_values(batch: pa.RecordBatch, fields: tuple[JsonField, ...]) -> Any:
    """The JSON of each row, as a binary array without nulls.

    Args:
        batch: has the columns of the fields, perhaps among others.
        fields: from `json_fields`, at least one.
    """
    texts = [_text(batch, field) for field in fields]
    always = [field.keeps_null or not text[0].null_count for field, text in zip(fields, texts, strict=True)]
    if not any(always):
        return _begun_by_commas(fields, texts)
    first = always.index(True)
    parts: list[Any] = [b"{"]
    for number, (field, text) in enumerate(zip(fields, texts, strict=True)):
        before, behind = b"," * (number > first), b"," * (number < first)
        if not always[number]:
            parts.append(_field(before + field.head, text, field.tail + behind))
        elif text[0].null_count:
            written = _field(field.head, text, field.tail)
            parts += [before, pc.fill_null(written, pa.scalar(field.name + b"null", written.type))]
        else:
            parts += [before + field.head, *text, field.tail + behind]
    return _join([*parts, b"}"])


def nested_texts(batch: pa.RecordBatch, field: JsonField) -> list[Any]:
    """The JSON that Spark has made of what is nested: the first one that is not null counts.

    Args:
        batch: of which the table's column may be JSON, and then says what the column beside it does not.
        field: of the kind `NESTED`.
    """
    columns = [batch.column(name) for name in (field.made, field.column) if name in batch.schema.names]
    return [column for column in columns if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)]


def _begun_by_commas(fields: tuple[JsonField, ...], texts: list[tuple[Any, ...]]) -> Any:
    """Where no field is there in every row, none can do without a comma: a row's first one becomes its brace."""
    written = [_field(b"," + field.head, text, field.tail) for field, text in zip(fields, texts, strict=True)]
    joined = _join([*written, b"}"])
    layout = binary_layout(joined)
    data = layout.data.copy()
    empty = layout.lengths == len(b"}")
    data[layout.starts] = ord("{")
    braced = pa.Array.from_buffers(joined.type, len(joined), [None, joined.buffers()[1], pa.py_buffer(data)])
    return pc.if_else(pa.array(empty), pa.scalar(b"{}", joined.type), braced)


def _field(head: bytes, text: tuple[Any, ...], tail: bytes) -> Any:
    """A whole field, null where the first part of the text is."""
    kind = _widest(text)
    around = [pa.scalar(part, kind) for part in (head, tail, b"")]
    return pc.binary_join_element_wise(
        around[0], *(part.cast(kind) for part in text), *around[1:], null_handling="emit_null"
    )


def _join(parts: list[Any]) -> Any:
    """Parts of each row, one behind the other: bytes that all rows have, and columns whose nulls are nothing."""
    joined: list[Any] = []
    for part in parts:
        if isinstance(part, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    kind = _widest(part for part in joined if not isinstance(part, bytes))
    typed = [pa.scalar(part, kind) if isinstance(part, bytes) else part.cast(kind) for part in joined]
    nothing = pa.scalar(b"", kind)
    return pc.binary_join_element_wise(*typed, nothing, null_handling="replace", null_replacement=b"")


def _widest(columns: Iterable[Any]) -> Any:
    return pa.large_binary() if any(pa.types.is_large_binary(column.type) for column in columns) else pa.binary()


_TEXTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_NUMBERS, json_texts.plain_text),
    "StringType": json_texts.escaped,
    "BinaryType": json_texts.base64_text,
    "DateType": json_texts.date_text,
    "TimestampType": json_texts.timestamp_text,
    "TimestampNTZType": json_texts.timestamp_text,
    WRAPPED: json_texts.wrapped_text,
}


def _text(batch: pa.RecordBatch, field: JsonField) -> tuple[Any, ...]:
    """The text of each value, without quotes, in one binary column or several; the first has the nulls."""
    if field.kind == NESTED:
        return (pc.coalesce(*(json_texts.bytes_of(text) for text in nested_texts(batch, field))),)
    columns = [batch.column(source) for source in field.sources]
    if field.kind == ZONED:
        return json_texts.zoned_timestamp_text(*columns)
    if field.kind in _FLOATS:
        return (json_texts.float_text(*columns),)
    return (_TEXTS[field.kind](*columns),)
