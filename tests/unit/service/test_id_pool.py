"""The ids of a process: taken where no living process has them, lent in turn, settled, dropped, noted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jdbc_state import StateRow
from jdbc_state.sessions import Liveness
from jdbc_state.survey import Survey
from spark_2pc_sink import errors
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.service import id_pool as module
from spark_2pc_sink.service.id_pool import IdPool
from spark_2pc_sink.service.id_writer import IdWriter
from spark_2pc_sink.testing import wait_until
from tests.harness.halts import halt
from tests.unit.service.worlds import OPTIONS

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SUPERSEDED = errors.SupersededError(transactional_id="shop-0", generation=1, found=None)
LOST = errors.StateStoreError(operation="claim", detail="the connection was lost", retriable=True)


@dataclass
class FakeWriter:
    transactional_id: str
    #: What the next recoveries raise.
    fails: list[Exception] = field(default_factory=list)
    unsettled: bool = True
    unnoted_s: float | None = None
    claims: list[StateRow | None] = field(default_factory=list)
    notes: int = 0
    #: Whether Kafka is found not to have followed.
    unfollowed: bool = False

    def recover(self, *, expected: StateRow | None = None) -> None:
        self.claims.append(expected)
        if self.fails:
            raise self.fails.pop(0)
        self.unsettled = False

    def note(self) -> None:
        self.notes += 1
        self.unnoted_s = None
        self.unsettled = self.unsettled or self.unfollowed


class Lines:
    def __init__(self, *rows: StateRow, alive: dict[str, bool | None] | None = None) -> None:
        self.rows = rows
        self.alive = alive or {}
        self.writers: dict[str, FakeWriter] = {}
        self.closed: list[str] = []
        self.released: list[str] = []

    def survey(self) -> Survey:
        drivers = {name: Liveness(alive=alive, detail="a test") for name, alive in self.alive.items()}
        return Survey(table_exists=True, rows=self.rows, drivers=drivers, unreadable=())

    def make(self, transactional_id: str) -> Any:
        writer = self.writers[transactional_id] = FakeWriter(transactional_id)
        return SimpleNamespace(
            writer=writer,
            release=lambda: self.released.append(transactional_id),
            close=lambda: self.closed.append(transactional_id),
        )


def row(number: int, *, run_id: str | None = "run", age_s: float = 0.0) -> StateRow:
    return StateRow(transactional_id=f"shop-{number}", generation=3, run_id=run_id, claimed_at=NOW, age_s=age_s)


@contextmanager
def pool(lines: Lines, **options: Any) -> Iterator[IdPool]:
    given = {"ids": 2, "ids_max": 4, "wait_for_id_ms": 50, **options}
    made = IdPool(
        replace(OPTIONS, transactional_id="shop", **given), survey=lines.survey, connect=lines.make, clock=SystemClock()
    )
    try:
        made.start()
        yield made
    finally:
        made.close(limit_s=5)


@pytest.fixture
def busy_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTE_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "SURVEY_INTERVAL_S", 0.01)


def names(pool: IdPool) -> list[str]:
    """The ids in the order in which they are lent."""
    lent = [pool.acquire() for _ in range(pool.size)]
    for each in lent:
        pool.release(each)
    return [each.transactional_id for each in lent]


def test_new_ids_are_taken_from_the_first_on_and_lent_in_turn() -> None:
    lines = Lines()
    with pool(lines) as ids:
        assert names(ids) == ["shop-0", "shop-1"]
        first = ids.acquire()
        second = ids.acquire()
        with pytest.raises(errors.KafkaTimeoutError, match="2 are in use"):
            ids.acquire()
        ids.release(second)
        ids.release(first)
        assert names(ids) == ["shop-1", "shop-0"]
    assert sorted(lines.closed) == ["shop-0", "shop-1"]
    with pytest.raises(errors.LocalProtocolError, match="closed"):
        ids.acquire()


def test_ids_of_living_processes_are_left_and_those_of_dead_ones_come_first() -> None:
    lines = Lines(row(0), row(2), row(3), alive={"shop-0": True, "shop-2": False, "shop-3": False})
    with pool(lines, ids=1) as ids:
        assert names(ids) == ["shop-2"]
        assert lines.writers["shop-2"].claims == [row(2)]
        # What this process does not need it settles, and holds no more.
        assert (lines.released, lines.closed) == (["shop-3"], ["shop-3"])
        assert "shop-0" not in lines.writers


@pytest.mark.parametrize(("age_s", "taken"), [(59.0, "shop-1"), (61.0, "shop-0")])
def test_where_sessions_do_not_tell_the_age_of_the_row_does(age_s: float, taken: str) -> None:
    with pool(Lines(row(0, age_s=age_s), alive={"shop-0": None}), ids=1) as ids:
        assert names(ids) == [taken]


@pytest.mark.usefixtures("busy_keeper")
def test_where_sessions_do_not_tell_idle_ids_are_claimed_anew_before_others_take_them() -> None:
    """Else two processes that have little to do would take each other's for dead, again and again."""
    lines = Lines()
    with pool(lines, ids=3) as ids:
        lent = ids.acquire()
        lines.alive = {"shop-0": None, "shop-1": None, "shop-2": True}
        lines.rows = (row(0, age_s=50.0), row(1, age_s=50.0), row(2, age_s=50.0), row(3, run_id=None))
        lines.writers["shop-1"].fails = [LOST]
        wait_until(lambda: len(lines.writers["shop-1"].claims) > 3, what="it is claimed anew")
        assert [len(lines.writers[name].claims) for name in ("shop-0", "shop-2")] == [1, 1]
        ids.release(lent)
        lines.rows = (row(0, age_s=1.0), row(1, age_s=1.0))
        wait_until(lambda: sorted(names(ids)) == ["shop-0", "shop-1", "shop-2"], what="all are there")


@pytest.mark.usefixtures("busy_keeper")
def test_a_defect_does_not_end_the_keeper(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else settles ids: without it all would soon be unusable, and every block fail."""
    lines, defect = Lines(), AttributeError("a defect")
    with pool(lines) as ids:
        failing = lines.writers["shop-0"]
        monkeypatch.setattr(failing, "note", lambda: (_ for _ in ()).throw(defect))
        failing.unnoted_s = 1.0
        wait_until(lambda: "could not note" in caplog.text, what="the note has failed")
        failing.unnoted_s = None
        wait_until(lambda: len(failing.claims) > 1, what="it is settled")
        writer = cast("FakeWriter", ids.acquire())
        writer.unsettled, writer.fails = True, [defect]
        ids.release(cast("IdWriter", writer))
        wait_until(lambda: "could not settle" in caplog.text, what="the recovery has failed")
        wait_until(lambda: sorted(names(ids)) == ["shop-0", "shop-1"], what="it is lent again")


def test_a_service_without_any_id_does_not_start() -> None:
    alive: dict[str, bool | None] = {f"shop-{number}": True for number in range(4)}
    with (
        pytest.raises(errors.ConfigurationError, match="held by another process"),
        pool(Lines(*map(row, range(4)), alive=alive)),
    ):
        pass


@pytest.mark.usefixtures("busy_keeper")
def test_what_has_failed_is_settled_before_it_is_lent_again() -> None:
    lines = Lines()
    with pool(lines, wait_for_id_ms=10_000) as ids:
        writer = cast("FakeWriter", ids.acquire())
        writer.unsettled, writer.fails = True, [LOST, LOST]
        ids.release(cast("IdWriter", writer))
        wait_until(lambda: not writer.unsettled, what="the keeper has settled it")
        wait_until(lambda: sorted(names(ids)) == ["shop-0", "shop-1"], what="it is lent again")


@pytest.mark.parametrize("error", [SUPERSEDED, halt()])
def test_an_id_that_is_lost_or_halts_is_dropped(error: Exception) -> None:
    lines = Lines()
    with pool(lines) as ids:
        writer = cast("FakeWriter", ids.acquire())
        writer.unsettled, writer.fails = True, [error]
        ids.release(cast("IdWriter", writer))
        wait_until(lambda: ids.size == 1, what="it is dropped")
        assert names(ids) == ["shop-1"]
        assert lines.closed == ["shop-0"]


@pytest.mark.usefixtures("busy_keeper")
def test_what_no_decision_notes_is_noted_by_the_keeper() -> None:
    lines = Lines()
    with pool(lines):
        lines.writers["shop-1"].unnoted_s = 1.0
        wait_until(lambda: lines.writers["shop-1"].notes > 0, what="it is noted")


@pytest.mark.usefixtures("busy_keeper")
def test_ids_of_processes_that_die_later_are_taken_or_settled() -> None:
    lines = Lines(row(0), row(1), alive={"shop-0": True, "shop-1": True})
    with pool(lines, ids=3) as ids:
        assert ids.size == 2
        lines.alive = {"shop-0": False, "shop-1": False}
        wait_until(lambda: ids.size == 3 and "shop-1" in lines.released, what="both are settled")


def test_closing_waits_for_what_is_lent() -> None:
    lines = Lines()
    with pool(lines) as ids:
        lent = ids.acquire()
        closing = threading.Thread(target=lambda: ids.close(limit_s=30))
        closing.start()
        assert closing.is_alive()
        ids.release(lent)
        closing.join(30)
        assert not closing.is_alive()
        assert sorted(lines.closed) == ["shop-0", "shop-1"]


def test_what_kafka_has_not_followed_is_settled_before_the_end() -> None:
    """Once; and where that fails, the next start has to."""
    lines = Lines()
    with pool(lines):
        lines.writers["shop-0"].unfollowed = True
        lines.writers["shop-1"].unfollowed = True
        lines.writers["shop-1"].fails = [LOST]
    assert [len(lines.writers[name].claims) for name in ("shop-0", "shop-1")] == [2, 2]
    assert [lines.writers[name].unsettled for name in ("shop-0", "shop-1")] == [False, True]
