"""Records that a topic does not take one by one: each is a bad row with its row, as one that the table refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from spark_2pc_sink.errors import ConfigurationError, RecordRefusedError
from tests.integration.sink.test_bad_rows import Sides, sides
from tests.integration.writer.writers import HOUR_NS, shift_clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_2pc_sink import BatchReport
    from tests.conftest import MakeTopic

__all__ = ["sides"]

TABLE = "CREATE TABLE target (id bigint PRIMARY KEY, name text, amount int, parent int)"
ROWS = [(1, "good", 1, 1), (2, None, 1, 1), (3, "good" * 500, 1, 1), (4, None, 2, 2), (5, "good", 1, 1)]
NO_KEY = "the topic is compacted (cleanup.policy) and refuses records without a key"


def change(sides: Sides, config: Mapping[str, str]) -> None:
    """The topic's settings, while the job runs: it has read them already."""
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, sides.options["topic"], incremental_configs=entries)
    client = AdminClient({"bootstrap.servers": sides.options["kafka"]["bootstrap.servers"]})
    [answered] = client.incremental_alter_configs([resource]).values()
    answered.result()


def claims(sides: Sides) -> list[tuple[Any, ...]]:
    return sides.rows("SELECT action FROM kafka_transaction_state_actions")


def test_a_record_without_a_key_is_a_bad_row_of_a_compacted_topic(sides: Sides, topic: MakeTopic) -> None:
    """A26: without dead letters the batch fails at once, with what it is and what to do."""
    sides.execute(TABLE)
    sides.options |= {"topic": topic(partitions=3, config={"cleanup.policy": "compact"}), "key": "name"}
    sides.stream.add(ROWS)
    with pytest.raises(RecordRefusedError, match=r'with value {"id":[24],.*Set the option key'):
        sides.run(bad_rows="fail")
    assert claims(sides) == [("claim",)]
    sides.run()
    assert sides.letters() == {2: (1, ""), 4: (1, "")}
    assert sides.ids() == [1, 3, 5]
    assert sides.rows("SELECT DISTINCT output, reason FROM kafka_transaction_state_dead_letters") == [
        (f"topic {sides.options['topic']}", NO_KEY)
    ]
    assert claims(sides) == [("claim",)] * 2


@pytest.mark.parametrize(
    ("config", "bad", "reason"),
    [
        ({"cleanup.policy": "compact"}, [2, 4], NO_KEY),
        ({"max.message.bytes": "1000"}, [3], "bytes: the broker answered MESSAGE_TOO_LARGE (10)"),
    ],
)
def test_a_record_that_only_the_broker_refuses_is_a_bad_row(
    sides: Sides, topic: MakeTopic, config: dict[str, str], bad: list[int], reason: str
) -> None:
    """A26: as where the topic was changed since, or its settings may not be read."""
    sides.execute(TABLE)
    sides.options |= {"topic": topic(partitions=1, config={"max.message.bytes": "4000000"}), "key": "left(name, 9)"}
    sides.options["kafka"] |= {"batch.size": "100", "max.request.size": "4000000"}
    sides.stream.add([(100, "first", 1, 1)])
    sides.stream.add(ROWS)

    def then(report: BatchReport) -> None:
        if report.batch_id == 0:
            change(sides, config)

    sides.run(on_batch=then)
    assert sides.letters() == dict.fromkeys(bad, (1, ""))
    assert sides.ids() == sorted({1, 2, 3, 4, 5, 100} - {*bad})
    assert all(reason in told for (told,) in sides.rows("SELECT reason FROM kafka_transaction_state_dead_letters"))
    assert claims(sides) == [("claim",)]


def test_a_time_that_the_topic_does_not_take_fails_the_batch_at_once(
    sides: Sides, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of all its records: none of its rows is the bad one."""
    sides.execute(TABLE)
    sides.options["topic"] = topic(partitions=1)
    sides.stream.add(ROWS)
    shift_clock(monkeypatch, 2 * HOUR_NS)
    with pytest.raises(ConfigurationError, match=r"must accept records with this time: Timestamp .* correct the clock"):
        sides.run()
    assert (sides.letters(), sides.ids()) == ({}, [])
