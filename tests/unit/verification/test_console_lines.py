"""Lines for Kafka's console producer: what they carry, and what is refused because the reader would misread it."""

from __future__ import annotations

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.verification.console_lines import (
    READER_PROPERTIES,
    ConsoleRecord,
    UnsayableError,
    console_line,
)

PROPERTIES = javaproperties.loads(READER_PROPERTIES)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8).map(str.encode)
#: Texts, bytes of any kind, and what has a meaning to the reader.
CONTENT = st.none() | TEXTS | st.binary(max_size=4) | st.sampled_from([v.encode() for v in PROPERTIES.values()])
RECORDS = st.builds(
    ConsoleRecord,
    key=CONTENT,
    value=CONTENT,
    headers=st.lists(st.tuples(st.text(max_size=4), CONTENT), max_size=3).map(tuple),
)


def read(text: str) -> ConsoleRecord:
    """What Kafka's LineMessageReader makes of a line; written from its source (Kafka 4.3.1)."""
    assert not {"\n", "\r"} & set(text), "the reader would see another line"
    headers, _, rest = text.partition(PROPERTIES["headers.delimiter"])
    key, _, value = rest.partition(PROPERTIES["key.separator"])

    def content(part: str) -> bytes | None:
        return None if part == PROPERTIES["null.marker"] else part.encode()

    pairs: list[tuple[str, bytes | None]] = []
    if headers != PROPERTIES["null.marker"]:
        for part in headers.split(PROPERTIES["headers.separator"]):
            name, separator, said = part.partition(PROPERTIES["headers.key.separator"])
            assert separator, "the reader refuses a header without a value"
            assert name != PROPERTIES["null.marker"], "the reader refuses such a name"
            pairs.append((name, content(said)))
    return ConsoleRecord(content(key), content(value), tuple(pairs))


@given(RECORDS)
def test_the_reader_finds_the_record_that_was_meant_or_there_is_no_line(record: ConsoleRecord) -> None:
    try:
        line = console_line(record)
    except UnsayableError:
        return
    assert read(line) == record


@pytest.mark.parametrize(
    "record",
    [
        ConsoleRecord(b"7", b'{"id":7}'),
        ConsoleRecord(None, None),
        ConsoleRecord(b"", b""),
        ConsoleRecord("ä\t,:=".encode(), "\u2028 \\n \x1f".encode(), (("a", b"1"), ("b", None), ("", b""))),
    ],
    ids=["plain", "nulls", "empty", "odd"],
)
def test_texts_nulls_and_headers_are_carried(record: ConsoleRecord) -> None:
    assert read(console_line(record)) == record


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ConsoleRecord(b"k", b"two\nlines"), "the value has a line break"),
        (ConsoleRecord(b"k", b"\xff"), "the value is not UTF-8"),
        (ConsoleRecord(b"a\x1fb", b"v"), "the key has a control character"),
        (ConsoleRecord(b"k", b"v", (("h", b"a\x1db"),)), "the value of header 'h' has a control character"),
        (ConsoleRecord(b"\x1anull", b"v"), "the key is the text that stands for a null"),
    ],
)
def test_what_no_line_can_say_is_refused_with_the_reason(record: ConsoleRecord, reason: str) -> None:
    with pytest.raises(UnsayableError, match=reason):
        console_line(record)
