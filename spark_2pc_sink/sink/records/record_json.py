"""The JSON value of a record, built by tasks from Arrow: byte for byte the output of Spark's to_json.

In the JVM, ``to_json(struct(*))`` takes half of a read task's time, and its result has to be passed to Python in
addition to the same columns, which are passed anyway for the table. Here Arrow's casts convert columns to text, and one
``binary_join_element_wise`` joins names, punctuation and texts.

The model is Spark's ``JacksonGenerator`` with default options: fields in column order, timestamps with three fractional
digits. If Arrow's output would differ in any byte, Spark computes the text of that column in an extra column: Java's
digits of a floating-point number, the local time of a timestamp, nested JSON. Only rows where a column does not
determine the treatment of its nulls are left to Spark as a whole.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, DecimalType, StructType

from spark_2pc_sink.sink.rows.value_checks import within
from spark_2pc_sink.sink.spark_sql import quoted
from spark_2pc_sink.wire.arrow_layout import Int64Array, as_binary, binary_array, binary_layout, join_rows

# Four-digit years: Arrow's casts write them like Java, and all texts of a column have the same length.
_DAYS: Final = (-719_162, 2_932_896)
_MILLISECONDS: Final = (_DAYS[0] * 86_400_000, (_DAYS[1] + 1) * 86_400_000 - 1)
_MICROSECONDS_PER_MS: Final = 1_000
_MICROSECONDS_PER_S: Final = 1_000_000
_TIMESTAMP_CHARACTERS: Final = len("2023-11-14T22:13:20.000")
_TIME_MARK: Final = _TIMESTAMP_CHARACTERS - len("T22:13:20.000")
_YEAR_DIGITS: Final = 4

#: Local times of timestamps beyond these limits fit into 64 bits by shifting: 400 years have 146 097 days, which are
#: whole weeks, so a time zone's rules are the same as 400 years earlier.
_LOCAL_MICROSECONDS: Final = 2**62
_CYCLE_MICROSECONDS: Final = 146_097 * 86_400 * _MICROSECONDS_PER_S

_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
#: Jackson's escapes for characters that JSON does not allow in a text.
_ESCAPES: Final = {code: b"\\u%04X" % code for code in range(_SPACE)} | {
    8: b"\\b",
    9: b"\\t",
    10: b"\\n",
    12: b"\\f",
    13: b"\\r",
    _QUOTE: b'\\"',
    _BACKSLASH: b"\\\\",
}


def plain_text(column: Any) -> Any:
    """Integers, decimals and booleans: Arrow's casts write them as Java does (BigDecimal.toString)."""
    return column.cast(pa.string()).cast(pa.binary())


def date_text(column: Any) -> Any:
    days = column.cast(pa.int32())
    return plain_text(column) if within(days, *_DAYS) else _far_text(days, "D")


def base64_text(column: Any) -> Any:
    """Bytes, in base64 with padding."""
    layout = binary_layout(column)
    data = layout.data.data
    starts, ends = layout.starts.tolist(), (layout.starts + layout.lengths).tolist()
    encoded = [b2a_base64(data[start:end], newline=False) for start, end in zip(starts, ends, strict=True)]
    made = pa.array(encoded, column.type)
    return made if layout.valid is None else pc.if_else(pa.array(layout.valid), made, None)


def float_text(column: Any, texts: Any) -> Any:
    """Floating-point numbers with Java's digits (``texts``, by toString): JSON has no infinity or NaN."""
    texts = as_binary(texts, "value")
    finite = pc.is_finite(column)
    if pc.all(finite, min_count=0).as_py():
        return texts
    quote, nothing = (pa.scalar(mark, texts.type) for mark in (b'"', b""))
    return pc.if_else(finite, texts, pc.binary_join_element_wise(quote, texts, quote, nothing))


def timestamp_text(column: Any, offsets: Int64Array | None = None) -> Any:
    """Timestamps as date and time: in UTC, without a time zone, or at ``offsets`` in microseconds; nulls are kept."""
    # Spark rounds the fraction down, including before 1970, where a cast would round towards 1970.
    numbers = np.floor_divide(_numbers(column), _MICROSECONDS_PER_MS)
    milliseconds = pa.array(numbers if offsets is None else numbers + offsets // _MICROSECONDS_PER_MS)
    valid = column.is_valid() if column.null_count else None
    if not within(milliseconds, *_MILLISECONDS):
        return _far_text(milliseconds if valid is None else pc.if_else(valid, milliseconds, None), "ms")
    layout = binary_layout(plain_text(milliseconds.cast(pa.timestamp("ms"))))
    data = layout.data[: len(column) * _TIMESTAMP_CHARACTERS].copy()
    data[_TIME_MARK::_TIMESTAMP_CHARACTERS] = ord("T")
    text = binary_array(data, np.arange(len(column) + 1, dtype=np.int64) * _TIMESTAMP_CHARACTERS)
    return text if valid is None else pc.if_else(valid, text, None)


def zoned_timestamp_text(column: Any, local: Any) -> tuple[Any, Any]:
    """Timestamps in a time zone with an offset, and the text of the offset; ``local`` is of `local_time_sql`."""
    microseconds = _numbers(column)
    late, early = microseconds > _LOCAL_MICROSECONDS, microseconds < -_LOCAL_MICROSECONDS
    if late.any() or early.any():
        microseconds = microseconds - _CYCLE_MICROSECONDS * late + _CYCLE_MICROSECONDS * early
    offsets = _numbers(local) - microseconds
    by_offset = pa.array(offsets).dictionary_encode()
    texts = [_offset_text(offset // _MICROSECONDS_PER_S) for offset in by_offset.dictionary.to_pylist()]
    return timestamp_text(column, offsets), pa.array(texts, pa.binary()).take(by_offset.indices)


def local_time_sql(source: str) -> str:
    """Spark SQL for the local time of a timestamp, using Java's rules for the session's time zone."""
    time, far, cycle = f"unix_micros({source})", _LOCAL_MICROSECONDS, _CYCLE_MICROSECONDS
    near = f"CASE WHEN {time} > {far} THEN {time} - {cycle} WHEN {time} < -{far} THEN {time} + {cycle} ELSE {time} END"
    return f"CAST(timestamp_micros({near}) AS TIMESTAMP_NTZ)"


def escaped(column: Any) -> Any:
    """Texts escaped for JSON. Invalid UTF-8 is unchanged: no table accepts it."""
    column = as_binary(column, "value")
    data = column.buffers()[2]
    if data is None or not len(column):
        return column
    text, codes = data.to_pybytes(), np.frombuffer(data, np.uint8)
    found = [code for code in (_BACKSLASH, _QUOTE) if code in text]
    if codes.min(initial=_SPACE) < _SPACE:
        found += np.unique(codes[codes < _SPACE]).tolist()
    # The backslash comes first, so that backslashes of later escapes stay single.
    for code in found:
        column = pc.replace_substring(column, bytes([code]), _ESCAPES[code])
    return column


def _numbers(column: Any) -> Int64Array:
    """The 64 bits of each value; 0 for a null."""
    numbers: Int64Array = column.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers


def _offset_text(seconds: int) -> bytes:
    """Format as Java's pattern of five X: ``Z`` for zero, and seconds only if nonzero."""
    if not seconds:
        return b"Z"
    minutes, rest = divmod(abs(seconds), 60)
    text = b"%c%02d:%02d" % (b"-" if seconds < 0 else b"+", *divmod(minutes, 60))
    return text + b":%02d" % rest if rest else text


def _far_text(numbers: Any, unit: str) -> Any:
    """Dates or timestamps, some of them outside the years 1 to 9999."""
    texts = np.datetime_as_string(numbers.fill_null(0).to_numpy().astype(f"datetime64[{unit}]")).tolist()
    made = pa.array([_with_java_year(text).encode() for text in texts], pa.binary())
    return pc.if_else(numbers.is_valid(), made, None) if numbers.null_count else made


def _with_java_year(text: str) -> str:
    """Java writes at least four digits of a year after its sign, and a plus if there are more than four."""
    year, month, rest = text.rsplit("-", 2)
    digits = year.lstrip("-").zfill(_YEAR_DIGITS)
    sign = "-" if text[0] == "-" else "+" * (len(digits) > _YEAR_DIGITS)
    return f"{sign}{digits}-{month}-{rest}"


#: The expression whose result is computed here.
WHOLE_ROW: Final = "to_json(struct(*))"

#: Spark settings that affect to_json (those read by ``FileSourceOptions``, ``JSONOptions`` and
#: ``ResolveTimeZone``).
IGNORE_NULLS: Final = "spark.sql.jsonGenerator.ignoreNullFields"
NULLS_WITH_DEFAULT: Final = "spark.sql.jsonGenerator.writeNullIfWithDefaultValue"
TIME_PARSER: Final = "spark.sql.legacy.timeParserPolicy"
TIME_ZONE: Final = "spark.sql.session.timeZone"
#: A time zone's offset is written with its seconds, if any (SPARK-48776).
OFFSET_SECONDS: Final = "spark.sql.files.supportSecondOffsetFormat"
SETTINGS: Final = (IGNORE_NULLS, NULLS_WITH_DEFAULT, TIME_PARSER, TIME_ZONE, OFFSET_SECONDS)
_UTC: Final = ("UTC", "Etc/UTC", "Z")

#: A column's default may make Spark write its nulls (`NULLS_WITH_DEFAULT`): such columns are left to Spark.
_DEFAULT_KEY: Final = "EXISTS_DEFAULT"
#: Written by Arrow without quotes.
_NUMBERS: Final = frozenset({"ByteType", "ShortType", "IntegerType", "LongType", "BooleanType", "DecimalType"})
_FLOATS: Final = frozenset({"FloatType", "DoubleType"})
_TIMES: Final = frozenset({"DateType", "TimestampType", "TimestampNTZType"})
_NESTED: Final = frozenset({"StructType", "ArrayType", "MapType", "VariantType"})

# Kinds in addition to Spark's type classes.
#: A timestamp whose local time Spark computes.
ZONED: Final = "TimestampType, local"
#: A value that Spark converts to JSON by itself.
NESTED: Final = "to_json"
#: A value that Spark converts to JSON as a field of a struct.
WRAPPED: Final = "to_json(struct)"
#: Kinds for which tasks do not need the column itself.
_MADE_BY_SPARK: Final = frozenset({NESTED, WRAPPED})
#: Kinds with a column that Spark computes.
_MADE: Final = _FLOATS | _MADE_BY_SPARK | {ZONED}
_BARE: Final = _NUMBERS | _FLOATS | _MADE_BY_SPARK


@dataclass(frozen=True)
class JsonField:
    """One field of the JSON object. Can be pickled."""

    #: Name in the Arrow batch and in JSON.
    column: str
    #: Class name of the Spark type, or `ZONED`, `NESTED` or `WRAPPED`.
    kind: str
    #: Arrow column that Spark computes for the text; None if there is none.
    made: str | None = None
    #: Nulls are written, not omitted.
    keeps_null: bool = False

    @property
    def reads_column(self) -> bool:
        """False if the text is built from `made` alone."""
        return self.kind not in _MADE_BY_SPARK

    @property
    def name(self) -> bytes:
        """The bytes before a value."""
        escaped_name = b"".join(_ESCAPES.get(code, bytes([code])) for code in self.column.encode())
        return b'"' + escaped_name + b'":'

    @property
    def head(self) -> bytes:
        return self.name if self.kind in _BARE else self.name + b'"'

    @property
    def tail(self) -> bytes:
        return b"" if self.kind in _BARE else b'Z"' if self.kind == "TimestampType" else b'"'


def json_fields(schema: StructType, settings: Mapping[str, str]) -> tuple[JsonField, ...] | None:
    """How `json_values` builds the value of a row, by the session's `SETTINGS`; None if only Spark can."""
    names, keeps_nulls = schema.fieldNames(), settings[IGNORE_NULLS].lower() != "true"
    defaults = any(_DEFAULT_KEY in (field.metadata or {}) for field in schema.fields)
    if len(set(names)) < len(names) or (defaults and not keeps_nulls):
        return None
    fields = []
    for number, field in enumerate(schema.fields):
        kind = _kind(field.dataType, settings)
        fields.append(JsonField(field.name, kind, f"_2pc_json_{number}" if kind in _MADE else None, keeps_nulls))
    return tuple(fields)


def _kind(data_type: DataType, settings: Mapping[str, str]) -> str:
    kind = type(data_type).__name__
    if kind in _NESTED:
        return NESTED
    if kind in _TIMES and settings[TIME_PARSER].upper() == "LEGACY":
        return WRAPPED
    if kind == "TimestampType" and settings[TIME_ZONE] not in _UTC:
        return ZONED if settings[OFFSET_SECONDS].lower() == "true" else WRAPPED
    if isinstance(data_type, DecimalType) and data_type.scale < 0:
        return WRAPPED
    return kind if kind in {"StringType", "BinaryType", *_FLOATS, *_NUMBERS, *_TIMES} else WRAPPED


def made_sql(field: JsonField) -> str:
    source = quoted(field.column)
    if field.kind in _FLOATS:
        # Digits come from Java: before version 19, its text is not always the shortest that identifies the number.
        return f"CAST({source} AS STRING)"
    if field.kind == ZONED:
        return local_time_sql(source)
    if field.kind == NESTED:
        return f"to_json({source})"
    return f"CASE WHEN {source} IS NOT NULL THEN to_json(named_struct('v', {source})) END"


def json_values(batch: pa.RecordBatch, fields: tuple[JsonField, ...]) -> Any:
    """The JSON of each row, as a binary array without nulls; there is at least one field."""
    texts = [_text(batch, field) for field in fields]
    always = [field.keeps_null or not text[0].null_count for field, text in zip(fields, texts, strict=True)]
    if not any(always):
        return _begun_by_commas(fields, texts)
    first = always.index(True)
    parts: list[Any] = [b"{"]
    for number, (field, text) in enumerate(zip(fields, texts, strict=True)):
        before, after = b"," * (number > first), b"," * (number < first)
        if not always[number]:
            parts.append(_field(before + field.head, text, field.tail + after))
        elif text[0].null_count:
            written = _field(field.head, text, field.tail)
            parts += [before, pc.fill_null(written, pa.scalar(field.name + b"null", written.type))]
        else:
            parts += [before + field.head, *text, field.tail + after]
    return join_rows([*parts, b"}"], batch.num_rows)


def nested_texts(batch: pa.RecordBatch, field: JsonField) -> list[Any]:
    """Spark's JSON of nested values: the first that is not null.

    The table's column may be JSON, which then supplies values that the extra column lacks.
    """
    columns = [batch.column(name) for name in (field.made, field.column) if name in batch.schema.names]
    return [column for column in columns if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)]


def _begun_by_commas(fields: tuple[JsonField, ...], texts: list[tuple[Any, ...]]) -> Any:
    """If no field is present in every row, each needs a comma: the first one in a row becomes its brace."""
    written = [_field(b"," + field.head, text, field.tail) for field, text in zip(fields, texts, strict=True)]
    joined = join_rows([*written, b"}"], len(written[0]))
    layout = binary_layout(joined)
    data = layout.data.copy()
    empty = layout.lengths == len(b"}")
    data[layout.starts] = ord("{")
    braced = pa.Array.from_buffers(joined.type, len(joined), [None, joined.buffers()[1], pa.py_buffer(data)])
    return pc.if_else(pa.array(empty), pa.scalar(b"{}", joined.type), braced)


def _field(head: bytes, text: tuple[Any, ...], tail: bytes) -> Any:
    """A whole field, null if the first part of its text is."""
    kind = pa.large_binary() if any(pa.types.is_large_binary(part.type) for part in text) else pa.binary()
    before, after, nothing = (pa.scalar(part, kind) for part in (head, tail, b""))
    parts = (before, *(part.cast(kind) for part in text), after, nothing)
    return pc.binary_join_element_wise(*parts, null_handling="emit_null")


_TEXTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_NUMBERS, plain_text),
    "StringType": escaped,
    "BinaryType": base64_text,
    "DateType": date_text,
    "TimestampType": timestamp_text,
    "TimestampNTZType": timestamp_text,
}


def _text(batch: pa.RecordBatch, field: JsonField) -> tuple[Any, ...]:
    """The text of each value, without quotes, in one or several binary columns; the first has the nulls."""
    if field.kind == NESTED:
        return (pc.coalesce(*(as_binary(text, "value") for text in nested_texts(batch, field))),)
    if field.kind == WRAPPED:
        # An object with one field, see `made_sql`.
        return (pc.binary_slice(as_binary(batch.column(field.made), "value"), len(b'{"v":'), -len(b"}")),)
    column = batch.column(field.column)
    if field.kind == ZONED:
        return zoned_timestamp_text(column, batch.column(field.made))
    if field.kind in _FLOATS:
        return (float_text(column, batch.column(field.made)),)
    return (_TEXTS[field.kind](column),)
