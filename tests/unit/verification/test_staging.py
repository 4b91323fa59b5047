"""Records on their way into the database: chunks, and the texts that PostgreSQL reads."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from psycopg2 import OperationalError
from psycopg2.errors import InsufficientPrivilege

from spark_2pc_sink.errors import StateStoreError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.column_rules import ComparedColumn, ComparedColumns
from spark_2pc_sink.verification.side_sql import SideSql
from spark_2pc_sink.verification.staging import CHUNK_BYTES_MAX, Chunk, RecordTexts, StagingSession, cancel, without_nul

PLACE = TopicPartition("t", 3)


def test_the_value_is_the_text_where_its_fields_are_the_columns() -> None:
    texts = RecordTexts(())
    assert texts.make(PLACE, 1, b"k", b'{"a": 1}', None) == b'{"a": 1}'
    assert texts.make(PLACE, 1, b"k", None, None) == b"null"


def test_expressions_see_those_parts_of_a_record_that_they_name() -> None:
    texts = RecordTexts(("(value->>'id')::int", 'key || "offset"', "headers->0"))
    made = texts.make(PLACE, 9, b"k\xff", b'{"id": 1}', [("h", b"v"), ("n", None)])
    assert json.loads(made) == {"value": {"id": 1}, "key": "k\ufffd", "headers": [["h", "v"], ["n", None]], "offset": 9}
    assert json.loads(RecordTexts(("key_bytes", "topic")).make(PLACE, 9, b"\x01\xff", b"not JSON", None)) == {
        "key_bytes": "\\x01ff",
        "topic": "t",
    }
    assert json.loads(RecordTexts(("value->'a'",)).make(PLACE, 9, None, b"[1]", None)) == {"value": [1]}


def test_a_chunk_knows_where_its_records_are_and_falls_into_halves() -> None:
    chunk = Chunk()
    chunk.add(4, [1, 2], [b"a", b"b"])
    chunk.add(7, [9], [b"c"])
    assert chunk.place_numbers == [4, 4, 7]
    first, second = chunk.halves()
    assert (first.texts, first.offsets, first.place_numbers) == ([b"a"], [1], [4])
    assert (second.texts, second.offsets, second.place_numbers) == ([b"b", b"c"], [2, 9], [4, 7])
    assert not chunk.full
    chunk.add(7, [10], [b"x" * CHUNK_BYTES_MAX])
    assert chunk.full


def test_a_nul_is_read_as_a_substitute_and_what_only_looks_like_one_is_not() -> None:
    assert without_nul(rb'["a\u0000\u0000", "\\u0000", "\\\u0000"]') == rb'["a\u001a\u001a", "\\u0000", "\\\u001a"]'
    assert without_nul(rb'["\u0001"]') == rb'["\u0001"]'


def test_what_an_encoding_lacks_stands_as_its_code_point() -> None:
    """So texts that differ go on to differ, and none is like a text of the table."""
    texts = ['{"a": "ü€"}', '{"a": "ü₫"}', '{"a": "ü"}']
    chunk = Chunk()
    chunk.add(1, [1, 2, 3], [text.encode() for text in texts])
    spelled = chunk.spelled_in("iso8859_1")
    assert [json.loads(text)["a"] for text in spelled.texts] == ["ü\x1aU+20AC\x1a", "ü\x1aU+20AB\x1a", "ü"]
    assert (spelled.place_numbers, spelled.offsets) == (chunk.place_numbers, chunk.offsets)
    assert chunk.spelled_in("utf_8").texts == chunk.texts


def test_a_role_without_temporary_tables_is_told_what_it_lacks() -> None:
    """It is no fault of expressions that somebody has given."""
    connection = mock.MagicMock()
    refused = InsufficientPrivilege('permission denied to create temporary tables in database "shop"')
    connection.cursor.return_value.__enter__.return_value.execute.side_effect = [None, refused]
    columns = ComparedColumns((ComparedColumn("id", "int8"),), given={"id": "key::bigint"})
    sql = SideSql(TableName(name="t", schema=None), columns)
    with pytest.raises(StateStoreError, match="grant this role TEMPORARY on it"):
        StagingSession(connection, sql, statement_timeout_ms=1_000)


@pytest.mark.parametrize("closed", [True, False])
def test_a_session_that_has_ended_with_the_database_hides_no_error(*, closed: bool) -> None:
    connection = mock.MagicMock(closed=int(closed))
    connection.cancel.side_effect = OperationalError("connection refused")
    cancel(connection)
    assert connection.cancel.called is not closed
