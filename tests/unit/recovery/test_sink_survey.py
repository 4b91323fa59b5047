"""Both sides of many sinks: how often Kafka is asked, and what either side alone can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jdbc_state import StateRow
from jdbc_state.errors import StateStoreError
from jdbc_state.sessions import Liveness
from jdbc_state.survey import Survey
from spark_2pc_sink import StatusReport, status
from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import KafkaView
from spark_2pc_sink.recovery import sink_survey
from spark_2pc_sink.recovery.sink_survey import by_kafka, by_the_database
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.wire import changed
from tests.unit.kafka.support import kafka_for
from tests.unit.recovery.test_report import LIVES, ROW as BATCH_7

ROW = replace(
    BATCH_7,
    prepared_transaction_state="7:3",
    status="done",
    settled="7:4",
    cluster_id="fake-cluster",
    decided_age_s=None,
)


class FakeDatabase:
    """In the place of `SqlStateStore`: it has these rows."""

    label = "h:5432/d"

    def __init__(self) -> None:
        self.rows: tuple[StateRow, ...] = ()
        self.drivers: dict[str, Liveness] = {}
        self.newer: StateRow | None = None
        self.closed = 0

    def __call__(self, _url: str, _settings: object) -> FakeDatabase:
        return self

    @property
    def database(self) -> FakeDatabase:
        return self

    def survey(self, _transactional_id: str | None) -> Survey:
        return Survey(table_exists=True, rows=self.rows, drivers=self.drivers)

    def read_standing(self, _transactional_id: str) -> StateRow | None:
        if self.newer is None:
            raise StateStoreError(operation="read", detail="it is restarting", retriable=True)
        return self.newer

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> FakeDatabase:
    fake = FakeDatabase()
    monkeypatch.setattr(sink_survey, "SqlStateStore", fake)
    return fake


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with fake_cluster(brokers=2) as cluster:
        cluster.know(FakeTransaction(7, 4, state="CompleteCommit"))
        yield cluster


def look(fake: FakeCluster) -> StatusReport:
    return status(kafka=kafka_for(fake), database="postgresql://h/d", timeout_s=20)


def test_the_number_of_requests_does_not_grow_with_that_of_the_sinks(fake: FakeCluster, database: FakeDatabase) -> None:
    """KIP-699, KIP-664: one finds all coordinators, and one at each of these describes all of its sinks."""
    names = [f"orders-{number:02}" for number in range(40)]
    for number, name in enumerate(names):
        fake.know(FakeTransaction(7, 4, state="CompleteCommit", coordinator=number % 2), name)
    database.rows = tuple(replace(ROW, transactional_id=name) for name in names)
    found = look(fake)
    assert found.summary == "40 sinks: 40 healthy"
    assert len(fake.of(Api.FIND_COORDINATOR)) == 1
    assert len(fake.of(Api.DESCRIBE_TRANSACTIONS)) == 2
    assert found.complete
    assert database.closed == 1


def test_a_batch_between_the_reading_of_the_sides_is_no_loss(
    fake: FakeCluster, database: FakeDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """The row is read first: of a driver that runs, both are then read again, if they can be."""
    database.rows = (replace(ROW, prepared_transaction_state="7:2", settled="7:3"),)
    database.newer = ROW
    assert look(fake).sinks[0].cause is HaltCause.DATABASE_BEHIND
    database.drivers = {"orders": LIVES}
    (report,) = look(fake).sinks
    assert (report.condition, report.row, report.driver) == ("fine", ROW, LIVES)
    database.newer = None
    assert look(fake).sinks[0].cause is HaltCause.DATABASE_BEHIND
    assert "both sides were not read a second time: read: it is restarting" in caplog.text


def test_a_transaction_in_an_unknown_state_hides_no_other(fake: FakeCluster, database: FakeDatabase) -> None:
    """A later Kafka: the sink is named, and shown as the database knows it."""

    def sleep(response: Any) -> None:
        for row in response.transaction_states:
            if row.transactional_id == "late":
                row.transaction_state = "Sleeping"

    fake.know(FakeTransaction(8, 1), "late")
    database.rows = (ROW, replace(ROW, transactional_id="late", status="decided"))
    fake.script(Api.DESCRIBE_TRANSACTIONS, changed(sleep))
    found = look(fake)
    assert {report.transactional_id: report.condition for report in found.sinks} == {
        "late": "in_doubt",
        "orders": "fine",
    }
    [unreadable] = found.unreadable
    assert (unreadable.transactional_id, unreadable.side) == ("late", "kafka")
    assert "in state 'Sleeping', which this version does not know" in unreadable.problem
    assert found.summary == "2 sinks: 1 healthy, 1 in doubt, 1 unreadable"


@pytest.mark.parametrize(
    ("status", "lost", "condition", "reason"),
    [
        ("done", False, "fine", "nothing is in doubt in the state row. Kafka was not read, so an open transaction"),
        ("decided", False, "in_doubt", "the database has decided batch 7. Kafka was not read, so it is unknown"),
        ("owed", False, "owed", "Kafka is owed batch 7: "),
        ("done", True, "in_doubt", "the state row is lost; the newest line of its history has batch 7, done 5:1"),
    ],
)
def test_what_the_database_knows(status: str, lost: bool, condition: str, reason: str) -> None:
    """In doubt as far as it can tell; nothing is said of Kafka, nor of what a recovery would do."""
    row = replace(BATCH_7, status=status)
    report = by_the_database(replace(row, rebuilt_from=row.decision) if lost else row, driver=LIVES)
    assert report.condition == condition
    assert report.reason.startswith(reason)
    assert (report.kafka, report.actions, report.driver, report.dry_run) == (None, (), LIVES, True)
    assert (report.before is None) is lost


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (TransactionState.ONGOING, "Kafka has an open transaction of this id. The database was not read"),
        (TransactionState.PREPARE_COMMIT, "Kafka is ending a transaction of this id. The"),
        (TransactionState.COMPLETE_ABORT, "Kafka has no open transaction of this id. The"),
    ],
)
def test_what_kafka_shows(state: TransactionState, reason: str) -> None:
    """Whether it is in doubt, or a sink at all, the database alone could tell."""
    began_ms = now_ms() - 4_000
    report = by_kafka("orders", KafkaView(state, ProducerIdAndEpoch(7, 3), 2, "cluster", began_ms=began_ms))
    assert (report.condition, report.known, report.settled) == ("unclear", None, False)
    assert report.reason.startswith(reason)
    open_s = 4 if state is TransactionState.ONGOING else None
    assert report.prepared_s == (open_s and pytest.approx(open_s, abs=1))
