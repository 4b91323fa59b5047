"""Records on their way into the database: the texts that PostgreSQL reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.verification.report import NotComparableError
from spark_2pc_sink.verification.staging import RecordTexts, spelled_in, without_nul
from spark_2pc_sink.verification.statements import MARK
from spark_2pc_sink.verification.target import Tombstones


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


def made(sent: Any, *expressions: str, **how: Any) -> Any:
    return json.loads(RecordTexts(expressions, **how).make(TopicPartition("t", 3), sent))


def test_a_record_without_a_value_is_a_tombstone_where_the_last_of_a_key_counts() -> None:
    gone = Sent(None, b"7")
    assert made(gone, tombstones=Tombstones(("id",), "id")) == {"id": "7", MARK: True}
    assert made(gone, "value", "key", tombstones=Tombstones(("id",))) == {"key": "7", "value": None, MARK: True}
    with pytest.raises(NotComparableError, match="does not contain id"):
        made(gone, tombstones=Tombstones(("id",)))


def test_expressions_see_those_parts_of_a_record_that_they_name() -> None:
    sent = Sent(b'{"id": 1}', b"k\xff", [("h", b"v"), ("n", None)])
    told = made(sent, "(value->>'id')::int", 'key || "offset"', "headers->0")
    assert told == {"value": {"id": 1}, "key": "k\ufffd", "headers": [["h", "v"], ["n", None]], "offset": 9}
    told = made(Sent(b"not JSON", b"\x01\xff"), "key_bytes", "topic", "value_text || value_bytes", "partition")
    as_text = {"value_text": "not JSON", "value_bytes": f"\\x{b'not JSON'.hex()}"}
    assert told == {"key_bytes": "\\x01ff", "topic": "t", "partition": 3, **as_text}
    assert made(Sent(b"[1]", None), "value->'a'") == {"value": [1]}


def test_a_nul_is_read_as_a_substitute_and_what_only_looks_like_one_is_not() -> None:
    assert without_nul(rb'["a\u0000\u0000", "\\u0000", "\\\u0000"]') == rb'["a\u001a\u001a", "\\u0000", "\\\u001a"]'
    assert without_nul(rb'["\u0001"]') == rb'["\u0001"]'


def test_what_an_encoding_lacks_stands_as_its_code_point() -> None:
    """So texts that differ go on to differ, and none is like a text of the table."""
    texts = [text.encode() for text in ('{"a": "ü€?"}', '{"a": "ü₫€₫"}', '{"a": "ü"}')]
    spelled = [json.loads(spelled_in(text, "iso8859_1"))["a"] for text in texts]
    assert spelled == ["ü\x1aU+20AC\x1a?", "ü\x1aU+20AB\x1a\x1aU+20AC\x1a\x1aU+20AB\x1a", "ü"]
    assert [spelled_in(text, "utf_8") for text in texts] == texts
