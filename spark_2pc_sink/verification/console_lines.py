"""Lines for Kafka's console producer, ``kafka-console-producer.sh``: each is a record with its key and headers.

The producer's reader (``LineMessageReader``) takes a line apart at separators that it is told, and knows no escapes.
The separators here are control characters, which texts and JSON hardly have. A record that no line can say is refused
with the reason: the line would become another record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import javaproperties

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_HEADER_KEY_SEPARATOR: Final = "\x1c"
_HEADERS_SEPARATOR: Final = "\x1d"
_HEADERS_DELIMITER: Final = "\x1e"
_KEY_SEPARATOR: Final = "\x1f"
_NULL_MARKER: Final = "\x1anull"
_LINE_BREAKS: Final = ("\n", "\r")
_HEADER_MARKS: Final = (_HEADER_KEY_SEPARATOR, _HEADERS_SEPARATOR, _HEADERS_DELIMITER)

#: The reader's properties, for ``--reader-config``: a Java properties file.
READER_PROPERTIES: Final = javaproperties.dumps(
    {
        "parse.key": "true",
        "parse.headers": "true",
        "headers.delimiter": _HEADERS_DELIMITER,
        "headers.separator": _HEADERS_SEPARATOR,
        "headers.key.separator": _HEADER_KEY_SEPARATOR,
        "key.separator": _KEY_SEPARATOR,
        "null.marker": _NULL_MARKER,
    },
    timestamp=None,
)


@dataclass(frozen=True)
class ConsoleRecord:
    """A record as a producer sends it.

    Attributes:
        key, value: None for a null.
        headers: name and value of each, in their order.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class UnsayableError(ValueError):
    """A record that no line of the console producer can say; the text is the reason."""


def console_line(record: ConsoleRecord) -> str:
    """The line of a record, without its line break: headers, key and value.

    Raises:
        UnsayableError: the reader would make another record of it.
    """
    headers = _HEADERS_SEPARATOR.join(
        _said(name, f"the name of header {name!r}", _HEADER_MARKS)
        + _HEADER_KEY_SEPARATOR
        + _text(value, f"the value of header {name!r}", _HEADER_MARKS)
        for name, value in record.headers
    )
    key = _text(record.key, "the key", (_KEY_SEPARATOR,))
    value = _text(record.value, "the value", ())
    return f"{headers or _NULL_MARKER}{_HEADERS_DELIMITER}{key}{_KEY_SEPARATOR}{value}"


def _text(content: bytes | None, what: str, marks: tuple[str, ...]) -> str:
    if content is None:
        return _NULL_MARKER
    try:
        return _said(content.decode(), what, marks)
    except UnicodeDecodeError as error:
        raise UnsayableError(f"{what} is not UTF-8") from error


def _said(text: str, what: str, marks: tuple[str, ...]) -> str:
    if text == _NULL_MARKER:
        raise UnsayableError(f"{what} is the text that stands for a null here")
    if any(mark in text for mark in _LINE_BREAKS):
        raise UnsayableError(f"{what} has a line break")
    if any(mark in text for mark in marks):
        raise UnsayableError(f"{what} has a control character that separates the parts of a line")
    return text
