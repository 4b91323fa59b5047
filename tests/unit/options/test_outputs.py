"""Several outputs and dead letters: which go together, and what is refused with the name of the output that has it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from spark_2pc_sink import Records, Rows
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import RowSource, SinkOptions
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.options.sink import BAD_ROWS_MAX, BadRowLimit
from spark_2pc_sink.options.sql_text import Explosion, with_columns_for_star, with_fields_for_star
from tests.unit.options.test_sink_options import REQUIRED as SINK

REQUIRED: dict[str, Any] = {name: value for name, value in SINK.items() if name != "table"}
LINES = "explode(lines) AS line"


def sink(*writes: Records | Rows, **options: object) -> SinkOptions:
    return SinkOptions.parse(**REQUIRED, writes=list(writes), **options)


def paired(options: SinkOptions) -> list[tuple[str, str]]:
    return [(str(lane.records), str(lane.rows)) for lane in options.lanes]


def test_outputs_of_one_source_share_a_lane() -> None:
    options = sink(
        Records("orders", key="order_id"),
        Records("lines", rows=LINES, key="line.id"),
        Rows("orders", mode="upsert", keys=["order_id"]),
        Rows("order_lines", rows=LINES),
        Rows("paid", where="paid"),
        Records("audit"),
    )
    assert paired(options) == [
        ("Records('orders')", "Rows('orders')"),
        ("Records('lines')", "Rows('order_lines')"),
        ("None", "Rows('paid')"),
        ("Records('audit')", "None"),
    ]
    assert [lane.index for lane in options.lanes] == [0, 1, 2, 3]
    assert [lane.source for lane in options.lanes] == [
        RowSource(),
        RowSource(rows=LINES),
        RowSource(where="paid"),
        RowSource(),
    ]
    assert not any(lane.alone for lane in options.lanes)
    assert options.topics == ("orders", "lines", "audit")


def test_tables_keep_their_order() -> None:
    """One that refers to another comes behind it, wherever its topic stands."""
    options = sink(Records("b", where="b"), Rows("a"), Rows("b", where="b"))
    assert [str(lane.rows) for lane in options.lanes] == ["Rows('a')", "Rows('b')"]


def test_one_topic_and_one_table_are_one_lane() -> None:
    options = SinkOptions.parse(
        **REQUIRED, topic="orders", table="orders", mode="upsert", upsert_keys=["id"], upsert_order_by="at"
    )
    [lane] = options.lanes
    assert lane.alone
    assert lane.records == Records("orders")
    assert lane.rows == Rows("orders", mode="upsert", keys=["id"], order_by="at")
    assert pickle.loads(pickle.dumps(options)).lanes == options.lanes  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("text", "array", "name"),
    [
        ("explode(lines) AS line", "lines", "line"),
        ("  EXPLODE ( filter(lines, l -> l.n > 1) ) as `a ``b` ", "filter(lines, l -> l.n > 1)", "a `b"),
        ("explode(split(text, ') AS x')) AS word", "split(text, ') AS x')", "word"),
    ],
)
def test_an_explosion_is_read(text: str, array: str, name: str) -> None:
    assert RowSource(text).explosion == Explosion(array, name)


@pytest.mark.parametrize(
    ("sql", "expanded"),
    [
        ("to_json(struct(*))", "to_json(struct(a, b))"),
        ("concat( * , c)", "concat( a, b , c)"),
        ("a * (b)", "a * (b)"),
        ("concat('(*)', `(*)`)", "concat('(*)', `(*)`)"),
    ],
)
def test_a_star_becomes_columns(sql: str, expanded: str) -> None:
    assert with_columns_for_star(sql, "a, b") == expanded


@pytest.mark.parametrize(
    ("sql", "expanded"),
    [
        ("to_json(struct(`line` . * , id))", "to_json(struct(line.a, line.b , id))"),
        ("struct(outline.*)", "struct(outline.*)"),
        ("concat(a, 'line.*')", "concat(a, 'line.*')"),
    ],
)
def test_a_star_behind_the_element_becomes_its_fields(sql: str, expanded: str) -> None:
    assert with_fields_for_star(sql, "line", "line.a, line.b") == expanded


def test_a_layout_has_all_outputs_and_is_read_back() -> None:
    made = sink(Records("a", key="id"), Rows("a", columns={"id": "id"}), Rows("b", rows=LINES, where="line.n > 1"))
    layout = SinkLayout.parse(json.loads(json.dumps(made.layout.as_json())))
    assert layout == made.layout
    first, second = layout.each
    assert (first.topic, first.key, first.table, first.columns, first.records) == ("a", "id", "a", {"id": "id"}, True)
    assert (second.topic, second.table, second.rows, second.where) == (None, "b", LINES, "line.n > 1")
    assert not second.records


GIVEN: dict[str, Any] = {**SINK, "topic": "orders"}


@pytest.mark.parametrize(
    ("given", "rows", "most"),
    [(100, 5, 100), (0.001, 999, 0), (0.001, 1_000, 1), ("0.1%", 12_345, 12), ("50%", 10**9, BAD_ROWS_MAX)],
)
def test_how_many_rows_may_be_bad(given: Any, rows: int, most: int) -> None:
    """A share is rounded down, and no batch has more than can be held."""
    assert BadRowLimit.parse(given).of(rows) == most


@pytest.mark.parametrize("given", [-1, BAD_ROWS_MAX + 1, True, 1.0, float("nan"), "5.0", "0%", "x%", "1e999999999%"])
def test_what_is_no_limit_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        BadRowLimit.parse(given)


def test_the_table_is_named_after_the_state_table() -> None:
    assert SinkOptions.parse(**GIVEN).dead_letter_name == TableName("kafka_transaction_state_dead_letters", "public")
    other = SinkOptions.parse(**GIVEN, state_schema="ops", dead_letter_table="Bad")
    assert other.dead_letter_name == TableName("bad", "ops")
    assert SinkOptions.parse(**GIVEN, dead_letter_table="a.b").dead_letter_name == TableName("b", "a")


LETTERS: dict[str, Any] = {**SINK, "table": None, "bad_rows": "dead_letter", "dead_letter_topic": "bad-orders"}
ONE: dict[str, Any] = {"topic": "orders", "table": "orders"}
SEVERAL: dict[str, Any] = {"writes": [Records("orders"), Records("audit"), Rows("orders")]}


def test_it_is_among_all_topics_and_is_no_output() -> None:
    """Recovery and the check look at it too; rows never go there."""
    options = SinkOptions.parse(**{**LETTERS, **SEVERAL})
    assert options.all_topics == (*options.topics, "bad-orders")
    assert "bad-orders" not in options.topics
    without = SinkOptions.parse(**{**LETTERS, "dead_letter_topic": None, **SEVERAL})
    assert without.all_topics == without.topics


def test_a_layout_has_the_topic_and_the_table() -> None:
    """And says nothing of either where dead letters are in the table alone."""
    made = SinkOptions.parse(**{**LETTERS, **ONE}, state_schema="Ops").layout
    layout = SinkLayout.parse(json.loads(json.dumps(made.as_json())))
    assert layout == made
    assert layout.dead_letter_topic == "bad-orders"
    assert layout.dead_letter_table == '"ops"."kafka_transaction_state_dead_letters"'
    without = SinkOptions.parse(**{**LETTERS, "dead_letter_topic": None, **ONE}).layout
    assert not {"dead_letter_topic", "dead_letter_table"} & without.as_json().keys()
