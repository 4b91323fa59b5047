"""Bad rows: the limit is a number or a share; and where dead letters go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_2pc_sink import Records, Rows
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.options.sink import BAD_ROWS_MAX, BadRowLimit, SinkOptions
from tests.unit.options.test_sink_options import REQUIRED

GIVEN: dict[str, Any] = {**REQUIRED, "topic": "orders"}


@pytest.mark.parametrize(
    ("given", "rows", "most"),
    [(100, 5, 100), (0.001, 999, 0), (0.001, 1_000, 1), ("0.1%", 12_345, 12), ("50%", 10**9, BAD_ROWS_MAX)],
)
def test_how_many_rows_may_be_bad(given: Any, rows: int, most: int) -> None:
    """A share is rounded down, and no batch has more than can be held."""
    assert BadRowLimit.parse(given).of(rows) == most


@pytest.mark.parametrize("given", [-1, BAD_ROWS_MAX + 1, True, 1.0, float("nan"), "5", "0%", "x%"])
def test_what_is_no_limit_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        BadRowLimit.parse(given)


def test_the_table_is_named_after_the_state_table() -> None:
    assert SinkOptions.parse(**GIVEN).dead_letter_name == TableName("kafka_transaction_state_dead_letters", "public")
    other = SinkOptions.parse(**GIVEN, state_schema="ops", dead_letter_table="Bad")
    assert other.dead_letter_name == TableName("bad", "ops")
    assert SinkOptions.parse(**GIVEN, dead_letter_table="a.b").dead_letter_name == TableName("b", "a")


LETTERS: dict[str, Any] = {**REQUIRED, "table": None, "bad_rows": "dead_letter", "dead_letter_topic": "bad-orders"}
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
