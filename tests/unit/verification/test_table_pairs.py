"""Table pairs: the topic that tells the rows of each table."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.outputs import Records, Rows, lanes_of
from spark_2pc_sink.verification.history import Claims, HistoryBatch
from spark_2pc_sink.verification.table_pairs import (
    NotedLayout,
    TablePair,
    dead_letter_topics,
    expected_refusals,
    table_pairs,
)

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
    assert pair.topics == (None, None, frozenset({"old"}), frozenset({"new"}), frozenset({"new"}))
    assert pair.before is None
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
