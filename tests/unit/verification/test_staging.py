"""Records on their way into the database: chunks, and the texts that PostgreSQL reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from psycopg2 import OperationalError

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.staging import CHUNK_BYTES_MAX, Chunk, RecordTexts, cancel, without_nul
from spark_2pc_sink.verification.statements import MARK
from spark_2pc_sink.verification.target import NotRowsError, Tombstones

PLACE = TopicPartition("t", 3)


@dataclass
class Sent:
    """A record as librdkafka hands it over."""

    content: bytes | None
    of: bytes | None = b"k"
    named: list[tuple[str, bytes | None]] = field(default_factory=list)

    def key(self) -> bytes | None:
        return self.of

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.named or None

    def offset(self) -> int:
        return 9


def made(texts: RecordTexts, sent: Any) -> Any:
    return json.loads(texts.make(PLACE, sent))


def test_the_value_is_the_text_where_its_fields_are_the_columns() -> None:
    assert made(RecordTexts(()), Sent(b'{"a": 1}')) == {"a": 1}
    assert made(RecordTexts(()), Sent(None)) is None


def test_a_record_without_a_value_is_a_tombstone_where_the_last_of_a_key_counts() -> None:
    assert made(RecordTexts((), tombstones=Tombstones(("id",), "id")), Sent(None, b"7")) == {"id": "7", MARK: True}
    with pytest.raises(NotRowsError, match="does not tell id"):
        made(RecordTexts((), tombstones=Tombstones(("id",))), Sent(None, b"7"))


def test_expressions_see_those_parts_of_a_record_that_they_name() -> None:
    texts = RecordTexts(("(value->>'id')::int", 'key || "offset"', "headers->0"))
    assert made(texts, Sent(b'{"id": 1}', b"k\xff", [("h", b"v"), ("n", None)])) == {
        "value": {"id": 1},
        "key": "k\ufffd",
        "headers": [["h", "v"], ["n", None]],
        "offset": 9,
    }
    assert made(RecordTexts(("key_bytes", "topic")), Sent(b"not JSON", b"\x01\xff")) == {
        "key_bytes": "\\x01ff",
        "topic": "t",
    }
    assert made(RecordTexts(("value->'a'",)), Sent(b"[1]", None)) == {"value": [1]}


def test_a_chunk_knows_where_its_records_are_and_falls_into_halves() -> None:
    chunk = Chunk()
    chunk.add(4, [1, 2], [b"a", b"b"])
    chunk.add(7, [9], [b"c"])
    first, second = chunk.halves()
    assert (first.texts, first.offsets, first.places) == ([b"a"], [1], [4])
    assert (second.texts, second.offsets, second.places) == ([b"b", b"c"], [2, 9], [4, 7])
    assert not chunk.full
    chunk.add(7, [10], [b"x" * CHUNK_BYTES_MAX])
    assert chunk.full


def test_a_nul_is_read_as_a_substitute_and_what_only_looks_like_one_is_not() -> None:
    assert without_nul(rb'["a\u0000\u0000", "\\u0000", "\\\u0000"]') == rb'["a\u001a\u001a", "\\u0000", "\\\u001a"]'
    assert without_nul(rb'["\u0001"]') == rb'["\u0001"]'


def test_what_an_encoding_lacks_stands_as_its_code_point() -> None:
    """So texts that differ go on to differ, and none is like a text of the table."""
    chunk = Chunk()
    chunk.add(1, [1, 2, 3], [text.encode() for text in ('{"a": "ü€"}', '{"a": "ü₫"}', '{"a": "ü"}')])
    spelled = chunk.spelled_in("iso8859_1")
    assert [json.loads(text)["a"] for text in spelled.texts] == ["ü\x1aU+20AC\x1a", "ü\x1aU+20AB\x1a", "ü"]
    assert (spelled.places, spelled.offsets) == (chunk.places, chunk.offsets)
    assert chunk.spelled_in("utf_8").texts == chunk.texts


@pytest.mark.parametrize("closed", [True, False])
def test_a_session_that_has_ended_with_the_database_hides_no_error(*, closed: bool) -> None:
    connection = mock.MagicMock(closed=int(closed))
    connection.cancel.side_effect = OperationalError("connection refused")
    cancel(connection)
    assert connection.cancel.called is not closed
