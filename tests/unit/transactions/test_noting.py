"""Force-terminate recorded in a database. Covers B28, D4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from jdbc_state import Actor
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AuthorizationError,
    StateStoreError,
)
from spark_2pc_sink.transactions import TransactionTool, tool
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.coordinator import FakeTransaction
from tests.unit.fakes.memory_store import MemoryStateStore
from tests.unit.fakes.wire import answer
from tests.unit.kafka.support import kafka_for

DATABASE = "postgresql://h/d"


class NotingStore(MemoryStateStore):
    """A store whose database is lost after so many notes; each note also keeps what Kafka was asked by then."""

    def __init__(self, fake: FakeCluster, actor: Actor, lost_after: int) -> None:
        super().__init__(actor=actor)
        self.asked_before: list[int] = []
        self._fake = fake
        self._lost_after = lost_after

    def note_action(
        self, transactional_id: str, generation: int | None, action: str, detail: Mapping[str, Any]
    ) -> None:
        if len(self.asked_before) == self._lost_after:
            raise StateStoreError(operation="noting", detail="the database is gone")
        self.asked_before.append(len(self._fake.of(Api.INIT_PRODUCER_ID)))
        super().note_action(transactional_id, generation, action, detail)


class Notes:
    """The database of the notes: who opened it, and what is in it."""

    def __init__(self, fake: FakeCluster) -> None:
        self.lost_after = 10
        self.settings: Any = None
        self._fake = fake
        self.store: NotingStore | None = None

    def open(self, options: Any) -> NotingStore:
        self.settings = options
        self.store = NotingStore(self._fake, Actor.of_this_process(reason=options.reason), self.lost_after)
        return self.store

    @property
    def outcomes(self) -> list[str]:
        assert self.store is not None
        return [line.detail["outcome"] for line in self.store.read_actions(last=9)[::-1]]


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with fake_cluster(topics={"t": 1}) as cluster:
        yield cluster


@pytest.fixture
def notes(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Notes:
    made = Notes(fake)
    monkeypatch.setattr(tool, "open_store", made.open)
    return made


def terminate(fake: FakeCluster, **overrides: Any) -> Any:
    with TransactionTool(kafka=kafka_for(fake, **overrides)) as made:
        return made.force_terminate("my id", database=DATABASE, reason="readers wait", state_table="mine")


def test_it_is_noted_before_and_after(fake: FakeCluster, notes: Notes) -> None:
    """A process that dies in between leaves the first line."""
    fake.know(FakeTransaction(8, 3), "my id")
    done = terminate(fake)
    assert notes.store is not None
    assert notes.outcomes == ["asked", "done"]
    assert notes.store.asked_before[0] == 0 < notes.store.asked_before[1]
    lines = notes.store.read_actions(last=9)
    assert {(line.transactional_id, line.action, line.reason) for line in lines} == {
        ("my id", "force_terminate", "readers wait")
    }
    assert lines[0].detail["producer"] == f"{done.producer_id}:{done.producer_epoch}"
    assert (notes.settings.state_table, notes.settings.database) == ("mine", "postgresql+psycopg2://h/d")


def test_a_refusal_is_noted(fake: FakeCluster, notes: Notes) -> None:
    fake.know(FakeTransaction(8), "my id")
    fake.script(Api.INIT_PRODUCER_ID, answer(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    with pytest.raises(AuthorizationError):
        terminate(fake)
    assert notes.outcomes == ["asked", "refused"]


def test_without_the_first_note_the_coordinator_is_not_asked(fake: FakeCluster, notes: Notes) -> None:
    notes.lost_after = 0
    fake.know(FakeTransaction(8), "my id")
    with pytest.raises(StateStoreError, match="the database is gone"):
        terminate(fake)
    assert fake.of(Api.INIT_PRODUCER_ID) == []


@pytest.mark.parametrize("refused", [False, True])
def test_a_database_that_is_lost_meanwhile_hides_no_outcome(
    fake: FakeCluster, notes: Notes, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    """Kafka has acted: that it did is told, and that it was not noted."""
    notes.lost_after = 1
    fake.know(FakeTransaction(8), "my id")
    if refused:
        fake.script(Api.INIT_PRODUCER_ID, answer(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        with pytest.raises(AuthorizationError):
            terminate(fake)
        assert "the outcome (refused) could not be recorded" in caplog.text
    else:
        assert "the outcome (done) could not be recorded" in terminate(fake).warnings[-1]
    assert notes.outcomes == ["asked"]
