"""The option dead_letter_topic: what it goes with, and where a reader of both sides finds it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_2pc_sink import Records, Rows
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.sink import SinkOptions

GIVEN: dict[str, Any] = {
    "transactional_id": "t",
    "kafka": {"bootstrap.servers": "h:1"},
    "database": "postgresql://h/d",
    "bad_rows": "dead_letter",
    "dead_letter_topic": "bad-orders",
}
ONE: dict[str, Any] = {"topic": "orders", "table": "orders"}
SEVERAL: dict[str, Any] = {"writes": [Records("orders"), Records("audit"), Rows("orders")]}


@pytest.mark.parametrize("outputs", [ONE, SEVERAL])
def test_it_is_among_all_topics_and_is_no_output(outputs: dict[str, Any]) -> None:
    """Recovery and the check look at it too; rows never go there."""
    options = SinkOptions.parse(**GIVEN, **outputs)
    assert options.all_topics == (*options.topics, "bad-orders")
    assert "bad-orders" not in options.topics
    without = SinkOptions.parse(**{**GIVEN, "dead_letter_topic": None}, **outputs)
    assert without.all_topics == without.topics


@pytest.mark.parametrize("outputs", [ONE, SEVERAL])
def test_a_layout_has_the_topic_and_the_table(outputs: dict[str, Any]) -> None:
    """And says nothing of either where dead letters are in the table alone."""
    made = SinkOptions.parse(**GIVEN, **outputs, state_schema="Ops").layout
    layout = SinkLayout.parse(json.loads(json.dumps(made.as_json())))
    assert layout == made
    assert layout.dead_letter_topic == "bad-orders"
    assert layout.dead_letter_table == '"ops"."kafka_transaction_state_dead_letters"'
    without = SinkOptions.parse(**{**GIVEN, "dead_letter_topic": None}, **outputs).layout
    assert not {"dead_letter_topic", "dead_letter_table"} & without.as_json().keys()


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({**ONE, "bad_rows": "fail"}, "there are no dead letters with bad_rows='fail'"),
        ({**ONE, "dead_letter_topic": "orders"}, "it is the topic of an output"),
        ({**SEVERAL, "dead_letter_topic": "audit"}, "it is the topic of an output"),
        ({**ONE, "dead_letter_topic": "bad orders"}, "it has 1 to 249 of the characters"),
    ],
)
def test_what_contradicts_it_is_refused(given: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule) as error:
        SinkOptions.parse(**{**GIVEN, **given})
    assert error.value.option == "dead_letter_topic"
    assert "leave it out where the batch" not in error.value.remedy
