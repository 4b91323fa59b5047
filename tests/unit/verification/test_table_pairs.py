"""Table pairs: the topic that tells the rows of each table; and the dead letters of both sides compared."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.outputs import Records, Rows, lanes_of
from spark_2pc_sink.sink.bad_rows.bad_row import BadRow
from spark_2pc_sink.sink.records.record_side import dead_letter_records
from spark_2pc_sink.verification.dead_letters import DeadLetter, compared_dead_letters, dead_letter_of, parsed
from spark_2pc_sink.verification.history import Claims, HistoryBatch
from spark_2pc_sink.verification.table_pairs import (
    NotedLayout,
    TablePair,
    dead_letter_topics,
    expected_refusals,
    table_pairs,
)
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import assign_producer, encode_listed_batch
from tests.unit.kafka.support import PAIR

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def noted(*outputs: Records | Rows, hour: int = 0) -> NotedLayout:
    return NotedLayout(START + timedelta(hours=hour), SinkLayout.of(lanes_of(outputs)))


def pair_of(*outputs: Records | Rows, topics: tuple[str, ...] = ()) -> TablePair:
    ranges = {TopicPartition(topic, 0): (0, 1) for topic in topics}
    return table_pairs([noted(*outputs)], Claims(claims=(HistoryBatch(batch=0, decision=1, ranges=ranges),)))[0]


def why_not(*outputs: Records | Rows, topics: tuple[str, ...] = ()) -> str:
    refusal = pair_of(*outputs, topics=topics).refusal
    return "" if refusal is None else refusal.why


def test_the_topic_that_tells_most_of_a_table_is_its_own() -> None:
    table = Rows("t", columns={"a": "a", "b": "b"})
    assert pair_of(Records("one", value="a"), Records("two"), table).all_topics == {"two"}
    assert pair_of(Records("one", value="to_json(struct(a))"), Records("two"), table).all_topics == {"two"}
    # Two that tell the same: the one in whose lane the table is.
    assert pair_of(Records("one"), Records("two", key="a"), table).all_topics == {"one"}
    # Other rows are of no use, whatever they tell.
    assert pair_of(Records("one", where="a > 1"), Records("two", value="a"), table).all_topics == {"two"}


def test_no_topic_tells_a_table() -> None:
    lines = "explode(x) AS y"
    assert "rows='explode(x) AS y' and where='a'" in why_not(Records("o"), Rows("t", rows=lines, where="a"))
    assert "all rows of the batch" in why_not(Records("o", where="a"), Rows("t"))
    assert "several outputs write topic o" in why_not(Records("o"), Records("o", where="a"), Rows("t"))
    assert "rows name their topics" in why_not(Records(), Records("o", where="a"), Rows("t"))
    assert "rows name their topics" in why_not(Records("o"), Records("p", where="a"), Rows("t"), topics=("o", "by-row"))
    assert pair_of(Records(), Rows("t"), topics=("a", "b")).all_topics == {"a", "b"}


def test_the_topic_of_dead_letters_tells_no_table() -> None:
    """It is not taken for one that rows name, also where an earlier start had it."""
    layout = SinkLayout.of(lanes_of([Records("o"), Records("p", where="a"), Rows("t")]), dead_letters=("bad", "d"))
    ranges = {TopicPartition(topic, 0): (0, 1) for topic in ("o", "bad")}
    claims = Claims(claims=(HistoryBatch(batch=0, decision=1, ranges=ranges),))
    later = noted(Records("o"), Records("p", where="a"), Rows("t"), hour=1)
    for layouts in ([NotedLayout(START, layout)], [NotedLayout(START, layout), later]):
        assert dead_letter_topics(layouts) == {"bad"}
        assert table_pairs(layouts, claims)[0].all_topics == {"o"}


def test_a_tombstone_tells_nothing_of_a_row_that_the_table_keeps() -> None:
    deleting = Records("o", key="id", tombstone_when="gone")
    upsert = Rows("t", mode="upsert", keys=["id"], order_by="at", delete_when="gone")
    kept = why_not(deleting, Rows("t", columns={"id": "id"}))
    assert "tombstone_when='gone', but the table has delete_when=None" in kept
    assert pair_of(deleting, upsert).all_topics == {"o"}
    assert "delete_when='old'" in why_not(deleting, replace(upsert, delete_when="old"))
    assert pair_of(deleting, Records("p"), Rows("t", columns={"id": "id"})).all_topics == {"p"}


def test_a_batch_is_told_by_the_outputs_of_its_time() -> None:
    layouts = [
        noted(Rows("other"), hour=0),
        noted(Rows("t"), hour=1),
        noted(Records("old"), Rows("public.t"), hour=2),
        noted(Records("new"), Rows("t"), hour=3),
    ]
    claims = [HistoryBatch(batch=n, decision=n, decided_at=START + timedelta(hours=n, minutes=1)) for n in range(4)]
    claims.append(HistoryBatch(batch=4, decision=4))
    (pair,) = table_pairs(layouts, Claims(claims=tuple(claims)))
    assert pair.topics == (None, None, None, frozenset({"old"}), frozenset({"new"}), frozenset({"new"}))
    assert pair.all_topics == {"old", "new"}
    asked = [(2, "old"), (3, "old"), (-1, "old"), (1, "new")]
    assert [pair.describes(*each) for each in asked] == [True, False, False, False]


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ((Records("o"), Rows("t")), None),
        ((Records("o", value="CAST(body AS STRING)"), Rows("t")), None),
        ((Rows("t"),), "no topic has the records of its rows"),
        (
            (Records("o"), Rows("t", mode="upsert", keys=["id"], upsert_where="t.a < EXCLUDED.a")),
            "upsert_where depends",
        ),
        ((Records("o"), Rows("t", mode="upsert", keys=["id"], delete_when="gone")), "without tombstones"),
        (
            (Records("o", value="to_json(struct(a))"), Rows("t", mode="upsert", keys=["id"])),
            "do not contain id,",
        ),
    ],
)
def test_what_a_comparison_cannot_tell_is_foreseen(outputs: tuple[Records | Rows, ...], why: str | None) -> None:
    """By the options of the sink alone, before there is a record."""
    found = expected_refusals(noted(*outputs).layout)
    assert list(found) == ([] if why is None else ["t"])
    assert all(why in refusal.why and refusal.remedy for refusal in found.values() if why is not None)


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
    row = BadRow("ab" * 16, 2, "table t", "why", "23514", row='{"id":1.50,"text":"ä"}')
    batch: dict[str, str | int] = {"transactional_id": "orders", "query_id": "q", "batch_id": 7}
    bytes_max = 0 if large else 10_000
    [(_, content)] = dead_letter_records([row], batch, table="t", partition_count=1, bytes_max=bytes_max)
    payload = encode_listed_batch(PLACE, [content], timestamp_ms=1, compression="none").payload
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
        None,
        b"\xff",
        b"{",
        b"[]",
        b"1",
        {},
        {**TOLD, "transactional_id": "other"},
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
