"""The JSON value of a record, built by tasks from Arrow: byte by byte what Spark's to_json makes.

In the JVM, ``to_json(struct(*))`` takes half of the time of a task that reads, and what it makes has to cross to
Python beside the same columns, which cross anyway for the table. Here a column becomes text by Arrow's casts, and one
``binary_join_element_wise`` puts names, punctuation and texts together.

The pattern is ``JacksonGenerator`` of Spark with its default options: fields in the order of the columns, those that
are null left out, timestamps with three digits of their fraction. Where Spark's own way cannot be kept to the byte
(binary fractions, nested columns, a time zone with rules) `json_fields` says so, and Spark does it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, DecimalType

from spark_2pc_sink.wire.arrow_layout import binary_array, binary_layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

#: The expression whose result is built here.
WHOLE_ROW: Final = "to_json(struct(*))"

#: Spark's settings that change what to_json makes (those that ``JSONOptions`` and ``ResolveTimeZone`` ask for).
IGNORE_NULLS: Final = "spark.sql.jsonGenerator.ignoreNullFields"
NULLS_WITH_DEFAULT: Final = "spark.sql.jsonGenerator.writeNullIfWithDefaultValue"
TIME_PARSER: Final = "spark.sql.legacy.timeParserPolicy"
TIME_ZONE: Final = "spark.sql.session.timeZone"
SETTINGS: Final = (IGNORE_NULLS, NULLS_WITH_DEFAULT, TIME_PARSER, TIME_ZONE)
_UTC: Final = ("UTC", "Etc/UTC", "Z")

#: A column's default may make Spark write its nulls (`NULLS_WITH_DEFAULT`): such columns are left to it.
_DEFAULT_KEY: Final = "EXISTS_DEFAULT"
#: Up to here Arrow writes decimals as Java's BigDecimal.toPlainString does; then as 1E-7.
_PLAIN_SCALE_MAX: Final = 6
#: Written without quotes.
_BARE: Final = frozenset({"ByteType", "ShortType", "IntegerType", "LongType", "BooleanType"})
_TIMESTAMPS: Final = frozenset({"TimestampType", "TimestampNTZType"})

# Years of four digits: Arrow's casts write them like Java, and texts of one column are equally long.
_DAYS: Final = (-719_162, 2_932_896)
_MILLISECONDS: Final = (_DAYS[0] * 86_400_000, (_DAYS[1] + 1) * 86_400_000 - 1)
_MICROSECONDS_PER_MS: Final = 1_000
_TIMESTAMP_CHARACTERS: Final = len("2023-11-14T22:13:20.000")
_TIME_MARK: Final = _TIMESTAMP_CHARACTERS - len("T22:13:20.000")
_YEAR_DIGITS: Final = 4

_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
#: What Jackson writes for characters that JSON does not allow in a text.
_ESCAPES: Final = {code: b"\\u%04X" % code for code in range(_SPACE)} | {
    8: b"\\b",
    9: b"\\t",
    10: b"\\n",
    12: b"\\f",
    13: b"\\r",
    _QUOTE: b'\\"',
}


@dataclass(frozen=True)
class JsonField:
    """One field of the JSON object. Can be pickled.

    Attributes:
        column: its name in the Arrow batch, and as JSON writes it.
        kind: class name of the Spark type.
    """

    column: str
    kind: str

    @property
    def head(self) -> bytes:
        """The bytes before the text of a value."""
        name = json.dumps(self.column, ensure_ascii=False).encode()
        return name + (b":" if self._bare else b':"')

    @property
    def tail(self) -> bytes:
        """The bytes behind it."""
        return b"" if self._bare else b'Z"' if self.kind == "TimestampType" else b'"'

    @property
    def _bare(self) -> bool:
        return self.kind in _BARE or self.kind == "DecimalType"


def json_fields(schema: StructType, settings: Mapping[str, str]) -> tuple[JsonField, ...] | None:
    """How `json_values` builds the value of a row; None where only Spark can.

    Args:
        schema: of the batch.
        settings: the session's values of `SETTINGS`.
    """
    names = schema.fieldNames()
    kinds = {type(field.dataType).__name__ for field in schema.fields}
    refused = (
        settings[IGNORE_NULLS].lower() != "true",
        bool(kinds & {"DateType", *_TIMESTAMPS}) and settings[TIME_PARSER].upper() == "LEGACY",
        "TimestampType" in kinds and settings[TIME_ZONE] not in _UTC,
        len(set(names)) < len(names),
        # Control characters in a name: Jackson and Python spell them differently.
        not all(name.isprintable() for name in names),
        any(_DEFAULT_KEY in (field.metadata or {}) for field in schema.fields),
        not all(_builds(field.dataType) for field in schema.fields),
    )
    if any(refused):
        return None
    return tuple(JsonField(field.name, type(field.dataType).__name__) for field in schema.fields)


def json_values(batch: pa.RecordBatch, fields: tuple[JsonField, ...]) -> Any:
    """The JSON of each row, as a binary array without nulls.

    Args:
        batch: has the columns of the fields, perhaps among others.
        fields: from `json_fields`, at least one.
    """
    texts = [_text(batch.column(field.column), field.kind) for field in fields]
    full = [text.null_count == 0 for text in texts]
    if not any(full):
        return _begun_by_commas(fields, texts)
    first = full.index(True)
    parts: list[Any] = [b"{"]
    for number, (field, text) in enumerate(zip(fields, texts, strict=True)):
        before, behind = b"," * (number > first), b"," * (number < first)
        if full[number]:
            parts += [before + field.head, text, field.tail]
        else:
            parts.append(_field(before + field.head, text, field.tail + behind))
    return _join([*parts, b"}"])


def _begun_by_commas(fields: tuple[JsonField, ...], texts: list[Any]) -> Any:
    """Where no field is there in every row, none can do without a comma: a row's first one becomes its brace."""
    written = [_field(b"," + field.head, text, field.tail) for field, text in zip(fields, texts, strict=True)]
    joined = _join([*written, b"}"])
    layout = binary_layout(joined)
    data = layout.data.copy()
    empty = layout.lengths == len(b"}")
    data[layout.starts] = ord("{")
    braced = pa.Array.from_buffers(joined.type, len(joined), [None, joined.buffers()[1], pa.py_buffer(data)])
    return pc.if_else(pa.array(empty), pa.scalar(b"{}", joined.type), braced)


def _builds(kind: DataType) -> bool:
    name = type(kind).__name__
    if isinstance(kind, DecimalType):
        return 0 <= kind.scale <= _PLAIN_SCALE_MAX
    return name in {"StringType", "DateType", *_BARE, *_TIMESTAMPS}


def _field(head: bytes, text: Any, tail: bytes) -> Any:
    """A whole field, null where the text is."""
    around = [pa.scalar(part, text.type) for part in (head, tail, b"")]
    return pc.binary_join_element_wise(around[0], text, *around[1:], null_handling="emit_null")


def _join(parts: list[Any]) -> Any:
    """Parts of each row, one behind the other: bytes that all rows have, and columns whose nulls are nothing."""
    joined: list[Any] = []
    for part in parts:
        if isinstance(part, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    wide = any(not isinstance(part, bytes) and pa.types.is_large_binary(part.type) for part in joined)
    kind = pa.large_binary() if wide else pa.binary()
    typed = [pa.scalar(part, kind) if isinstance(part, bytes) else part.cast(kind) for part in joined]
    nothing = pa.scalar(b"", kind)
    return pc.binary_join_element_wise(*typed, nothing, null_handling="replace", null_replacement=b"")


def _text(column: Any, kind: str) -> Any:
    """The text of each value, without quotes, as a binary column."""
    if kind == "StringType":
        return _escaped(column)
    if kind in _TIMESTAMPS:
        return _timestamp_text(column)
    if kind == "DateType":
        days = column.cast(pa.int32())
        if _within(days, _DAYS):
            return column.cast(pa.string()).cast(pa.binary())
        return _far_text(days, "D")
    return column.cast(pa.string()).cast(pa.binary())


def _timestamp_text(column: Any) -> Any:
    # Spark cuts the fraction off, towards the past also before 1970, where a cast would round towards 1970.
    microseconds = column.cast(pa.int64()).fill_null(0)
    milliseconds = pa.array(np.floor_divide(microseconds.to_numpy(), _MICROSECONDS_PER_MS))
    valid = column.is_valid() if column.null_count else None
    if not _within(milliseconds, _MILLISECONDS):
        kept = milliseconds if valid is None else pc.if_else(valid, milliseconds, None)
        return _far_text(kept, "ms")
    layout = binary_layout(milliseconds.cast(pa.timestamp("ms")).cast(pa.string()).cast(pa.binary()))
    data = layout.data[: len(column) * _TIMESTAMP_CHARACTERS].copy()
    data[_TIME_MARK::_TIMESTAMP_CHARACTERS] = ord("T")
    text = binary_array(data, np.arange(len(column) + 1, dtype=np.int64) * _TIMESTAMP_CHARACTERS)
    return text if valid is None else pc.if_else(valid, text, None)


def _within(numbers: Any, bounds: tuple[int, int]) -> bool:
    found = pc.min_max(numbers)
    low, high = found["min"].as_py(), found["max"].as_py()
    return low is None or (low >= bounds[0] and high <= bounds[1])


def _far_text(numbers: Any, unit: str) -> Any:
    """Dates or timestamps of which some are not in the years 1 to 9999."""
    texts = np.datetime_as_string(numbers.fill_null(0).to_numpy().astype(f"datetime64[{unit}]")).tolist()
    made = pa.array([_with_java_year(text).encode() for text in texts], pa.binary())
    return pc.if_else(numbers.is_valid(), made, None) if numbers.null_count else made


def _with_java_year(text: str) -> str:
    """Java writes at least four digits of a year behind its sign, and a plus before more than four."""
    year, month, rest = text.rsplit("-", 2)
    digits = year.lstrip("-").zfill(_YEAR_DIGITS)
    sign = "-" if text[0] == "-" else "+" * (len(digits) > _YEAR_DIGITS)
    return f"{sign}{digits}-{month}-{rest}"


def _escaped(column: Any) -> Any:
    """Texts as JSON writes them between quotes. What is not UTF-8 stays: no table takes it."""
    wide = pa.types.is_large_string(column.type)
    column = column.cast(pa.large_binary() if wide else pa.binary())
    for code in _codes_to_escape(column):
        # The backslash comes first, so that those of the others stay single.
        column = pc.replace_substring(column, bytes([code]), _ESCAPES.get(code, b"\\\\"))
    return column


def _codes_to_escape(column: Any) -> list[int]:
    """The bytes of the column that JSON does not allow in a text, the backslash first."""
    data = column.buffers()[2]
    if data is None or not len(column):
        return []
    read = np.frombuffer(data, np.uint8)
    doubtful = (read < _SPACE) | (read == _QUOTE) | (read == _BACKSLASH)
    if not doubtful.any():
        return []
    found: list[int] = np.unique(read[doubtful]).tolist()
    return sorted(found, key=lambda code: code != _BACKSLASH)
