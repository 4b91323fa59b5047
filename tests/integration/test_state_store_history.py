"""The history of a sink: in step with its row in both stores, and nothing when the row was not changed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jdbc_state import MemoryStateStore, SqlStateStore, StateRow, StateStore
from jdbc_state.history import EVENTS
from spark_2pc_sink.errors import HaltCause, SupersededError
from tests.integration.state_stores import FIRST, ID, claim, decide, execute, settings, sql_store
from tests.support.halts import halts
from tests.support.providers import Database

BOTH = ["memory", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="module")
def shared_database(postgres: Database) -> Iterator[str]:
    """One database for the module; each test has a schema of its own."""
    name = f"history_{secrets.token_hex(4)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(params=BOTH)
def make(request: pytest.FixtureRequest) -> Any:
    """A function that makes an empty store, whose tables exist."""

    def made(keep: int = 1_000) -> StateStore:
        if request.param == "memory":
            store: StateStore = MemoryStateStore(history_batches=keep)
        else:
            names = settings(state_schema=f"test_{secrets.token_hex(4)}", history_batches=keep)
            store = SqlStateStore(request.getfixturevalue("shared_database"), names)
        store.prepare_schema()
        request.addfinalizer(store.close)
        return store

    return made


def lines(store: StateStore, transactional_id: str = ID) -> list[tuple[str, int, int | None, str, str]]:
    """Event, number, batch, status and pair of each line, the oldest first."""
    found = store.read_history(transactional_id, last=100)[::-1]
    return [
        (line.event, row.decision, row.batch_id, row.status, row.prepared_transaction_state)
        for line in found
        for row in [line.row]
    ]


def in_step(store: StateStore, row: StateRow | None) -> StateRow:
    """The newest line is the row, to the last column."""
    assert row is not None
    assert store.read_history(row.transactional_id, last=1)[0].row == row == store.read(row.transactional_id)
    return row


def test_every_change_of_the_row_is_in_its_line(make: Any) -> None:
    """C5: a claim, a decision, what became of it, a resend, a batch without records, and what a person decided."""
    store = make()
    row = in_step(store, claim(store))
    row = in_step(store, store.mark_initialized(ID, row.generation, "4:9"))
    decide(store, row)
    in_step(store, store.read(ID))
    row = in_step(store, store.mark_done(ID, row.generation, "5:1"))
    row = in_step(store, store.take_empty_batch(ID, row.generation, 1, "5:0"))
    decide(store, row, batch_id=2, prepared="5:1")
    row = in_step(store, claim(store, run_id="run-2"))
    row = in_step(store, store.mark_owed(ID, row.generation))
    row = in_step(store, store.accept_replay(ID, row.generation))
    decide(store, row, batch_id=2, prepared="5:3")
    row = in_step(store, store.drop_batch(ID, row.generation, "5:3"))
    in_step(store, claim(store, query_id="query-2", adopt=True))
    assert lines(store) == [
        ("claimed", 0, None, "none", ""),
        ("decided", 1, 0, "done", "5:0"),
        ("empty", 2, 1, "done", "5:0"),
        ("decided", 3, 2, "owed", "5:1"),
        ("resent", 4, 2, "done", "5:3"),
        ("adopted", 5, None, "done", "5:3"),
    ]
    assert {event for event, *_ in lines(store)} < EVENTS.keys()


def test_what_changes_no_row_writes_no_line(make: Any) -> None:
    """D1, C5: an overtaken driver, and one beside another decision than it has seen."""
    store = make()
    row = claim(store)
    decide(store, row)
    store.mark_done(ID, row.generation, "5:1")
    before = lines(store)
    with halts(HaltCause.COMMITS_LOST):
        decide(store, replace(row, prepared_transaction_state="5:8"), batch_id=1)
    claim(store)
    for late in (
        lambda: decide(store, row, batch_id=1),
        lambda: store.mark_done(ID, row.generation, "5:1"),
        lambda: store.take_empty_batch(ID, row.generation, 1, "5:0"),
    ):
        with pytest.raises(SupersededError):
            late()
    assert lines(store) == before


def test_a_repeat_of_an_empty_batch_takes_no_second_line(make: Any) -> None:
    """C1: the answer to the first was lost."""
    store = make()
    row = claim(store)
    for _ in range(2):
        store.take_empty_batch(ID, row.generation, 0, "")
    assert lines(store) == [("claimed", 0, None, "none", ""), ("empty", 1, 0, "done", "")]


@pytest.mark.parametrize(("keep", "kept"), [(1, [24]), (2, [23, 24]), (20, list(range(5, 25)))])
def test_the_last_lines_are_kept(make: Any, keep: int, kept: list[int]) -> None:
    """A11: bounded, for each sink by itself, and the newest is always there."""
    store = make(keep)
    row, other = claim(store), claim(store, "other")
    for batch_id in range(24):
        if batch_id % 5:
            decide(store, row, batch_id=batch_id, prepared=f"5:{batch_id}")
            row = store.mark_done(ID, row.generation, f"5:{batch_id + 1}")
        else:
            row = store.take_empty_batch(ID, row.generation, batch_id, row.prepared_transaction_state)
        numbers = [number for _, number, *_ in lines(store)]
        assert numbers[-1] == batch_id + 1
        assert len(numbers) <= keep + max(1, keep // 10)
    assert [number for _, number, *_ in lines(store)] == kept
    decide(store, other)
    assert [number for _, number, *_ in lines(store, "other")][-1] == 1


def test_without_history_none_is_written(make: Any) -> None:
    store = make(0)
    row = claim(store)
    decide(store, row)
    store.mark_done(ID, row.generation, "5:1")
    assert store.read_history(ID, last=1) == []
    read = store.read(ID)
    assert read is not None
    assert read.decision == 1


def test_a_line_that_is_gone_is_written_with_the_next_note(make: Any) -> None:
    """C5: a person has tidied up."""
    store = make()
    row = claim(store)
    decide(store, row)
    if isinstance(store, SqlStateStore):
        with store.database.requests("test", lock_timeout_ms=1_000) as connection:
            connection.execute(store._tables.history.delete())
    else:
        store._lines.clear()
    store.mark_done(ID, row.generation, "5:1")
    assert lines(store) == [("noted", 1, 0, "done", "5:0")]


# --- on PostgreSQL ---------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_an_older_row_that_was_put_back_goes_on_behind_the_newest_line(database: str) -> None:
    """C5: what came after it stays where it was, and is not the newest line any more."""
    with sql_store(database) as store:
        row = claim(store)
        execute(database, "CREATE TABLE backup AS SELECT * FROM kafka_transaction_state")
        decide(store, row)
        store.mark_done(ID, row.generation, "5:1")
        execute(database, "DELETE FROM kafka_transaction_state")
        execute(database, "INSERT INTO kafka_transaction_state SELECT * FROM backup")
        row = in_step(store, claim(store))
        assert row.decision == 2
        decide(store, row)
        assert [event for event, *_ in lines(store)] == ["claimed", "decided", "claimed", "decided"]


@pytest.mark.postgres
def test_a_line_is_rolled_back_with_its_batch(database: str) -> None:
    """C5: the decision and its line are one transaction."""

    def fail(store: SqlStateStore, row: StateRow) -> None:
        with store.deciding(ID, row.generation) as transaction:
            transaction.decide(FIRST)
            raise ZeroDivisionError

    with sql_store(database) as store:
        row = claim(store)
        before = lines(store)
        with pytest.raises(ZeroDivisionError):
            fail(store, row)
        assert lines(store) == before
