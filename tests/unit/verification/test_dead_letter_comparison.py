"""Dead letters of both sides: a letter that one side lacks, has twice or has otherwise is named; nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.sink.bad_rows.bad_row import BadRow
from spark_2pc_sink.sink.records.record_side import dead_letter_records
from spark_2pc_sink.verification.dead_letters import DeadLetter, compared_dead_letters, dead_letter_of, parsed
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import assign_producer
from spark_2pc_sink.wire.record_list import encode_listed_batch
from tests.unit.kafka.support import PAIR

PLACE = TopicPartition("bad", 0)
COLUMNS: dict[str, Any] = {"occurrences": 1, "output": "table t", "reason": "why", "sqlstate": "", "row": {"id": 1}}
TOLD = {"transactional_id": "orders", "query_id": "q", "batch_id": 7, "identity": "ab", **COLUMNS}
ROW = DeadLetter(("q", 7, "ab"), COLUMNS)
RECORD = replace(ROW, partition=PLACE, offset=3)


def read(value: Any, key: bytes | None = b"ab") -> DeadLetter | None:
    data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return dead_letter_of(key, data, "orders", PLACE, 3)


def differences(in_topic: list[DeadLetter], in_table: list[DeadLetter], **deleted: Any) -> list[tuple[str, str | None]]:
    found = compared_dead_letters(in_topic, in_table, deleted=deleted.get("deleted", ()))
    return [(each.kind, each.key) for each in found]


@pytest.mark.parametrize("large", [False, True])
def test_what_the_sink_writes_is_read(large: bool) -> None:
    """Its writer and this reader share no code."""
    row = BadRow(b"\xab" * 16, 2, "table t", "why", "23514", row='{"id":1.50,"text":"ä"}')
    batch: dict[str, str | int] = {"transactional_id": "orders", "query_id": "q", "batch_id": 7}
    bytes_max = 0 if large else 10_000
    [(_, content)] = dead_letter_records([row], batch, table="t", partition_count=1, bytes_max=bytes_max)
    payload = encode_listed_batch("bad", [content], timestamp_ms=1, compression="none").payload
    [decoded] = decode_record_batches(assign_producer(payload, producer=PAIR, base_sequence=0))
    [record] = decoded.records()
    found = dead_letter_of(record.key, record.value, "orders", PLACE, 3)
    assert found is not None
    assert found.key == ("q", 7, "ab" * 16)
    told = {"occurrences": 2, "output": "table t", "reason": "why", "sqlstate": "23514"}
    assert found.columns == (told if large else {**told, "row": {"id": Decimal("1.5"), "text": "ä"}})


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"\xff", b"{", b"[]", b"1", {}, {**TOLD, "transactional_id": "other"}),
        *({name: value for name, value in TOLD.items() if name != left_out} for left_out in ("identity", "row")),
    ],
)
def test_what_is_no_letter_of_the_sink_is_none(value: Any) -> None:
    assert read(value) is None
    assert read(TOLD, key=b"other") is None
    assert read(TOLD, key=None) is None
    assert read(TOLD) == RECORD


def test_equal_letters_are_no_difference() -> None:
    assert differences([RECORD], [ROW]) == []
    left_out = read({**TOLD, "row": None, "row_left_out": "the row is in table t"})
    assert left_out is not None
    assert differences([left_out], [ROW]) == []
    assert differences([replace(RECORD, columns={**COLUMNS, "row": parsed("1.50")})], [
        replace(ROW, columns={**COLUMNS, "row": parsed("1.5")})
    ]) == []  # fmt: skip


def test_each_difference_is_named() -> None:
    other = replace(ROW, key=("q", 7, "cd"))
    assert differences([RECORD], []) == [("missing_in_table", "identity=ab")]
    assert differences([RECORD], [ROW, other]) == [("missing_in_kafka", "identity=cd")]
    assert differences([RECORD, replace(RECORD, offset=9)], [ROW]) == [("twice", "identity=ab")]
    for name, value in COLUMNS.items():
        [found] = compared_dead_letters([RECORD], [replace(ROW, columns={**COLUMNS, name: "other"})], deleted=())
        assert (found.kind, found.batch, found.topic, found.offset) == ("differing", 7, "bad", 3)
        assert name in found.text
        assert (found.record, found.row) == ({name: value}, {name: "other"})
    # A number whose digits a float has not.
    longer = [{**COLUMNS, "row": parsed(f"1.{'0' * 20}{digit}")} for digit in (1, 2)]
    assert differences([replace(RECORD, columns=longer[0])], [replace(ROW, columns=longer[1])]) == [
        ("differing", "identity=ab")
    ]
