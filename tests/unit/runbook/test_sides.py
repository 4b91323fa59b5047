"""Both sides as the conversation sees them: what status found as pictures, and what holds readers up."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from spark_2pc_sink.choices import FORCE_TERMINATE, Symptom
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.extras import MissingExtraError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.recovery.status import StatusReport
from spark_2pc_sink.runbook import sides as sides_module
from spark_2pc_sink.runbook.picture import Readers
from spark_2pc_sink.runbook.sides import OPEN_MS_MIN, BothSides, find_blocking_transactions, pictures_of
from spark_2pc_sink.transactions import TransactionDetails, TransactionListing
from tests.unit.runbook.pictures import HANGING, report

CONNECTIONS: dict[str, Any] = {
    "kafka": {"bootstrap.servers": "h:9092"},
    "database": "postgresql://me:secret@h/d",
    "state_schema": "ours",
}


def listed(transactional_id: str) -> TransactionListing:
    return TransactionListing(transactional_id, coordinator=0, producer_id=8, state="Ongoing")


def details(transactional_id: str, *topics: str) -> TransactionDetails:
    return TransactionDetails(
        coordinator=0,
        transactional_id=transactional_id,
        producer_id=8,
        producer_epoch=0,
        state="Ongoing",
        timeout_ms=2**31 - 1,
        start_time_ms=0,
        duration_ms=100_000,
        partitions=tuple(TopicPartition(topic, 0) for topic in topics),
    )


def tool(**answers: Any) -> mock.Mock:
    """A transaction tool that finds nothing but what is given."""
    usual = {"find_hanging": (), "list_transactions": (), "describe": None}
    made = mock.Mock(**{f"{name}.return_value": value for name, value in {**usual, **answers}.items()})
    made.__enter__ = mock.Mock(return_value=made)
    made.__exit__ = mock.Mock(return_value=None)
    return made


@pytest.mark.parametrize("asked", [None, "orders"])
def test_a_side_out_of_reach_is_a_picture_too(asked: str | None) -> None:
    """Where no sink was found because nothing could be read."""
    (found,) = pictures_of(StatusReport(database_problem="refused"), asked)
    assert (found.transactional_id, found.problem) == (asked or "every sink", Symptom.DATABASE_OUT_OF_REACH)
    (found,) = pictures_of(StatusReport(sinks=(report(),), kafka_problem="refused"), asked)
    assert found.problem is Symptom.KAFKA_OUT_OF_REACH


def test_open_transactions_of_others_are_shown_that_reach_into_the_topics() -> None:
    """The sink's own is no news, and one in another topic holds up nobody here."""
    asked = tool(list_transactions=(listed("orders"), listed("billing"), listed("elsewhere")))
    asked.describe.side_effect = lambda each: details(each, "orders" if each == "billing" else "invoices")
    found = find_blocking_transactions(asked, {"orders"}, transactional_id="orders")
    assert found.owners == ("billing",)
    assert asked.describe.call_count == 2
    (wanted,) = asked.list_transactions.call_args.args
    assert (wanted.states, wanted.running_longer_than_ms) == (("Ongoing",), OPEN_MS_MIN)


def test_readers_are_looked_at_for_one_sink_that_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """For many sinks that would take too long, and for one in doubt its own transaction comes first."""
    asked = tool(find_hanging=(HANGING,))
    monkeypatch.setattr(sides_module, "TransactionTool", mock.Mock(return_value=asked))
    looked_at = mock.Mock(return_value=StatusReport(sinks=(report(),)))
    monkeypatch.setattr(sides_module, "status", looked_at)
    sides = BothSides(CONNECTIONS)
    (found,) = sides.look("orders")
    assert found.problem is Symptom.HANGING_TRANSACTION
    assert looked_at.call_args.kwargs["state_schema"] == "ours"
    assert [one.readers for one in sides.look(None)] == [Readers()]
    looked_at.return_value = StatusReport(sinks=(report(settled=False),))
    assert [one.readers for one in sides.look("orders")] == [Readers()]


def test_a_step_that_is_a_command_names_the_cluster() -> None:
    """Pasted without it, it would ask for --bootstrap-server, or end a transaction of another cluster."""
    servers = CONNECTIONS["kafka"]["bootstrap.servers"]
    bare = f"{FORCE_TERMINATE} --transactional-id 'of a shop'"
    sides = BothSides(CONNECTIONS)
    assert sides.with_cluster(bare) == f"{FORCE_TERMINATE} --bootstrap-server {servers} --transactional-id 'of a shop'"
    assert sides.with_cluster("restart the application") == "restart the application"


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError(option="table", value=None, rule="nobody has noted it", remedy="pass it"),
        MissingExtraError("confluent-kafka", "verify"),
    ],
)
def test_what_cannot_be_compared_is_a_result_too(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The recovery before it stands."""
    monkeypatch.setattr(sides_module, "verify", mock.Mock(side_effect=error))
    found = BothSides(CONNECTIONS).compare("orders", open_transaction=False)
    assert found.verdict == "inconclusive"
    assert str(error) in found.text
