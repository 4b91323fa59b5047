"""Reports of sinks of which one side alone was read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_2pc_sink.ids import ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import KafkaView
from spark_2pc_sink.recovery.sink_survey import by_kafka, by_the_database
from tests.unit.recovery.test_report import ROW
from tests.unit.recovery.test_status import LIVES


@pytest.mark.parametrize(
    ("status", "lost", "condition", "reason"),
    [
        ("none", False, "fine", "the state row has nothing in doubt. Kafka was not read, so an open transaction would"),
        ("done", False, "fine", "the state row has nothing in doubt. Kafka was not read, so an open transaction would"),
        (
            "decided",
            False,
            "in_doubt",
            "the database has decided batch 7. Kafka was not read, so whether it",
        ),
        ("owed", False, "owed", "Kafka is owed batch 7: "),
        ("done", True, "in_doubt", "the state row is lost; the newest line of its history has batch 7, done 5:1"),
    ],
)
def test_what_the_database_knows(status: str, lost: bool, condition: str, reason: str) -> None:
    """In doubt as far as it can tell; nothing is said of Kafka, nor of what a recovery would do."""
    row = replace(ROW, status=status)
    report = by_the_database(row, lost=lost, driver=LIVES)
    assert report.condition == condition
    assert report.reason.startswith(reason)
    assert (report.kafka, report.actions, report.driver, report.dry_run) == (None, (), LIVES, True)
    assert (report.before is None) is lost


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (TransactionState.ONGOING, "Kafka has a transaction of it open. Whether the database has decided it"),
        (TransactionState.PREPARE_COMMIT, "Kafka is just ending a transaction of it. Whether"),
        (TransactionState.COMPLETE_ABORT, "Kafka has no transaction of it open. Whether"),
    ],
)
def test_what_kafka_shows(state: TransactionState, reason: str) -> None:
    """Whether it is in doubt, or a sink at all, the database alone could tell."""
    report = by_kafka("orders", KafkaView(state, ProducerIdAndEpoch(7, 3), 2, "cluster"), open_s=4.0)
    assert (report.condition, report.known, report.settled) == ("unclear", None, False)
    assert report.reason.startswith(reason)
    assert report.prepared_s == 4.0
