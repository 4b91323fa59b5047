"""The text of each value of a column, as Spark's to_json writes it: one Arrow column becomes another.

`record_json` puts names, quotes and punctuation around these texts.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_2pc_sink.wire.arrow_layout import Int64Array, binary_array, binary_layout

# Years of four digits: Arrow's casts write them like Java, and texts of one column are equally long.
_DAYS: Final = (-719_162, 2_932_896)
_MILLISECONDS: Final = (_DAYS[0] * 86_400_000, (_DAYS[1] + 1) * 86_400_000 - 1)
_MICROSECONDS_PER_MS: Final = 1_000
_MICROSECONDS_PER_S: Final = 1_000_000
_TIMESTAMP_CHARACTERS: Final = len("2023-11-14T22:13:20.000")
_TIME_MARK: Final = _TIMESTAMP_CHARACTERS - len("T22:13:20.000")
_YEAR_DIGITS: Final = 4

#: The local time of a timestamp beyond these has room in 64 bits by a way round: 400 years have 146 097 days, which are
#: whole weeks, so that a time zone's rules of then are those of 400 years before.
_LOCAL_MICROSECONDS: Final = 2**62
_CYCLE_MICROSECONDS: Final = 146_097 * 86_400 * _MICROSECONDS_PER_S

_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
#: What Jackson writes for characters that JSON does not allow in a text.
_ESCAPES: Final = {code: b"\\u%04X" % code for code in range(_SPACE)} | {
    8: b"\\b",
    9: b"\\t",
    10: b"\\n",
    12: b"\\f",
    13: b"\\r",
    _QUOTE: b'\\"',
    _BACKSLASH: b"\\\\",
}


def bytes_of(column: Any) -> Any:
    """A column of text as bytes, which are shared."""
    return column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())


def plain_text(column: Any) -> Any:
    """Whole numbers, decimals and truth values: Arrow's casts write them as Java does (BigDecimal.toString)."""
    return column.cast(pa.string()).cast(pa.binary())


def date_text(column: Any) -> Any:
    """Dates."""
    days = column.cast(pa.int32())
    return plain_text(column) if _within(days, _DAYS) else _far_text(days, "D")


def base64_text(column: Any) -> Any:
    """Bytes, in base64 with padding."""
    layout = binary_layout(column)
    data = layout.data.data
    starts, ends = layout.starts.tolist(), (layout.starts + layout.lengths).tolist()
    encoded = [b2a_base64(data[start:end], newline=False) for start, end in zip(starts, ends, strict=True)]
    made = pa.array(encoded, column.type)
    return made if layout.valid is None else pc.if_else(pa.array(layout.valid), made, None)


def float_text(column: Any, texts: Any) -> Any:
    """Binary fractions, where Java has written the digits: JSON has no number that is infinite or none.

    Args:
        column: the numbers.
        texts: what Java's Double.toString or Float.toString makes of them.
    """
    texts = bytes_of(texts)
    finite = pc.is_finite(column)
    if pc.all(finite, min_count=0).as_py():
        return texts
    quote, nothing = (pa.scalar(mark, texts.type) for mark in (b'"', b""))
    return pc.if_else(finite, texts, pc.binary_join_element_wise(quote, texts, quote, nothing))


def timestamp_text(column: Any) -> Any:
    """Timestamps in UTC, or without a time zone."""
    return _milliseconds_text(_milliseconds(column), column)


def zoned_timestamp_text(column: Any, local: Any) -> tuple[Any, Any]:
    """Timestamps in a time zone with an offset, and the text of the offset.

    Args:
        column: the timestamps.
        local: what `local_time_sql` makes of them.
    """
    offsets = _numbers(local) - _shifted(_numbers(column))
    milliseconds = _milliseconds(column) + offsets // _MICROSECONDS_PER_MS
    by_offset = pa.array(offsets).dictionary_encode()
    texts = [_offset_text(offset // _MICROSECONDS_PER_S) for offset in by_offset.dictionary.to_pylist()]
    return _milliseconds_text(milliseconds, column), pa.array(texts, pa.binary()).take(by_offset.indices)


def local_time_sql(source: str) -> str:
    """Spark SQL for the local time of a timestamp, by the rules of the session's time zone that its Java has.

    Args:
        source: SQL of the timestamp.
    """
    time, far, cycle = f"unix_micros({source})", _LOCAL_MICROSECONDS, _CYCLE_MICROSECONDS
    near = f"CASE WHEN {time} > {far} THEN {time} - {cycle} WHEN {time} < -{far} THEN {time} + {cycle} ELSE {time} END"
    return f"CAST(timestamp_micros({near}) AS TIMESTAMP_NTZ)"


def escaped(column: Any) -> Any:
    """Texts as JSON writes them between quotes. What is not UTF-8 stays: no table takes it."""
    column = bytes_of(column)
    for code in _codes_to_escape(column):
        # The backslash comes first, so that those of the others stay single.
        column = pc.replace_substring(column, bytes([code]), _ESCAPES[code])
    return column


def escaped_name(name: str) -> bytes:
    """A field's name, by the same rules."""
    return b"".join(_ESCAPES.get(code, bytes([code])) for code in name.encode())


def wrapped_text(column: Any) -> Any:
    """JSON that Spark has made of a column: an object with one field, whose name has one character."""
    return pc.binary_slice(bytes_of(column), len(b'{"v":'), -len(b"}"))


def _numbers(column: Any) -> Int64Array:
    """The 64 bits of each value; 0 for a null."""
    numbers: Int64Array = column.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers


def _milliseconds(column: Any) -> Int64Array:
    # Spark cuts the fraction off, towards the past also before 1970, where a cast would round towards 1970.
    milliseconds: Int64Array = np.floor_divide(_numbers(column), _MICROSECONDS_PER_MS)
    return milliseconds


def _shifted(microseconds: Int64Array) -> Int64Array:
    """See `local_time_sql`."""
    late, early = microseconds > _LOCAL_MICROSECONDS, microseconds < -_LOCAL_MICROSECONDS
    if not late.any() and not early.any():
        return microseconds
    shifted: Int64Array = microseconds - _CYCLE_MICROSECONDS * late + _CYCLE_MICROSECONDS * early
    return shifted


def _offset_text(seconds: int) -> bytes:
    """As Java's pattern of five X has it: ``Z`` for none, and seconds only where there are some."""
    if not seconds:
        return b"Z"
    minutes, rest = divmod(abs(seconds), 60)
    text = b"%c%02d:%02d" % (b"-" if seconds < 0 else b"+", *divmod(minutes, 60))
    return text + b":%02d" % rest if rest else text


def _milliseconds_text(numbers: Int64Array, column: Any) -> Any:
    """Milliseconds since 1970 as date and time; null where the column is."""
    milliseconds = pa.array(numbers)
    valid = column.is_valid() if column.null_count else None
    if not _within(milliseconds, _MILLISECONDS):
        return _far_text(milliseconds if valid is None else pc.if_else(valid, milliseconds, None), "ms")
    layout = binary_layout(plain_text(milliseconds.cast(pa.timestamp("ms"))))
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
