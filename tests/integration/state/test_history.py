"""The history of a sink: in step with its row in both stores, nothing when the row was not changed, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from jdbc_state import Decision, SqlStateStore, StateRow, StateStore, ddl
from jdbc_state.errors import CommitsLostError
from jdbc_state.history import EVENTS
from jdbc_state.model import STATUSES
from spark_2pc_sink.errors import SupersededError
from tests.integration.state.conftest import Make
from tests.integration.state.state_stores import ID, claim, decide, execute, reach, role, settings, sql_store

FIGURES: Final = {"record_bytes": 812, "step_seconds": {"produce": 0.8}}
HISTORY: Final = "kafka_transaction_state_history"
LOSE: Final = f"ALTER TABLE {HISTORY} DROP COLUMN figures"


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


def test_every_change_of_the_row_is_in_its_line(make: Make) -> None:
    """C13: a claim, a decision, what became of it, a resend, a batch without records, and what a person decided."""
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


def test_what_changes_no_row_writes_no_line(make: Make) -> None:
    """D1, C13: an overtaken driver, and one beside another decision than it has seen."""
    store = make()
    row = claim(store)
    decide(store, row)
    store.mark_done(ID, row.generation, "5:1")
    before = lines(store)
    with pytest.raises(CommitsLostError):
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


@pytest.mark.parametrize(("keep", "kept"), [(1, [24]), (20, list(range(5, 25)))])
def test_the_last_lines_are_kept(make: Make, keep: int, kept: list[int]) -> None:
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


def test_without_history_none_is_written(make: Make) -> None:
    store = make(0)
    assert reach(store, "done").decision == 1
    assert store.read_history(ID, last=1) == []


def test_a_line_that_is_gone_is_written_with_the_next_note(make: Make) -> None:
    """C13: a person has tidied up."""
    store = make()
    row = claim(store)
    decide(store, row)
    if isinstance(store, SqlStateStore):
        with store.database.requests("test", lock_timeout_ms=1_000) as connection:
            connection.execute(store._tables.history.delete())
    else:
        store._lines.clear()  # type: ignore[attr-defined]
    store.mark_done(ID, row.generation, "5:1")
    assert lines(store) == [("noted", 1, 0, "done", "5:0")]


def test_the_lines_of_all_sinks_come_by_their_last_change(make: Make) -> None:
    """D2: so that what happened last in a table of many sinks is found by one question."""
    store = make()
    first, second = claim(store, "first"), claim(store, "second")
    decide(store, first)
    decide(store, second)
    store.mark_done("first", first.generation, "5:1")
    found = [(line.row.transactional_id, line.event) for line in store.read_history(last=3)]
    assert found == [("first", "decided"), ("second", "decided"), ("second", "claimed")]


# --- a lost row ------------------------------------------------------------------------------------------------------


def lose(store: StateStore, transactional_id: str = ID) -> None:
    """Delete the row, as a person does."""
    if isinstance(store, SqlStateStore):
        with store.database.requests("test", lock_timeout_ms=1_000) as connection:
            connection.execute(store._state.delete().where(store._state.c.transactional_id == transactional_id))
    else:
        del store._rows[transactional_id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", STATUSES)
def test_a_lost_row_is_made_again_from_its_newest_line(make: Make, status: str) -> None:
    """C13: the row was deleted; whatever it said, the claim that finds it gone says the same."""
    store = make()
    reach(store, status)
    row = claim(store)
    lose(store)
    assert store.read(ID) is None
    assert store.read_lost() == [row]
    rebuilt = claim(store, run_id="run-2")
    assert rebuilt.rebuilt_from == row.decision
    assert rebuilt == replace(row, generation=row.generation + 1, run_id="run-2", claimed_at=rebuilt.claimed_at)
    in_step(store, rebuilt)
    assert (store.read_lost(), claim(store).rebuilt_from) == ([], None)


def test_the_claims_before_the_loss_stay_defeated(make: Make) -> None:
    """C2, C13: an older driver holds a generation that the row made again must not come to."""
    store = make()
    row = reach(store, "done")
    older = [claim(store) for _ in range(3)][-1]
    lose(store)
    with pytest.raises(SupersededError, match="is gone from the state table"):
        claim(store, expected_generation=older.generation)
    with pytest.raises(SupersededError, match="is gone from the state table"):
        decide(store, older, batch_id=1)
    rebuilt = claim(store)
    assert rebuilt.generation == older.generation + 1
    with pytest.raises(SupersededError):
        decide(store, older, batch_id=1)
    assert in_step(store, store.read(ID)) == replace(row, generation=rebuilt.generation, claimed_at=rebuilt.claimed_at)


# --- on PostgreSQL ---------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_lines_go_when_no_history_is_kept_any_more(database: str) -> None:
    """C13: they would fall behind the row, and one day it would be made again from an old one."""
    with sql_store(database) as store:
        row = reach(store, "done")
    with sql_store(database, history_batches=0) as without:
        claimed = claim(without)
        assert lines(without) == []
        decide(without, claimed, batch_id=1)
        lose(without)
        assert claim(without).status == "none"
    assert row.decision == 1


@pytest.fixture
def store(make: Make) -> StateStore:
    """An empty store, whose tables exist."""
    return make()


def figures(store: StateStore) -> list[Any]:
    """Of each line, the oldest first."""
    return [line.figures for line in store.read_history(ID, last=10)[::-1]]


def test_the_figures_are_in_the_line_of_their_batch_alone(store: StateStore) -> None:
    row = claim(store)
    decide(store, row)
    assert figures(store) == [{}, {}]
    row = store.mark_done(ID, row.generation, "5:1", figures=FIGURES)
    assert figures(store) == [{}, FIGURES]
    decide(store, row, batch_id=1, prepared="5:1")
    assert figures(store) == [{}, FIGURES, {}]


def test_a_batch_that_the_database_decides_alone_has_them_with_its_decision(store: StateStore) -> None:
    row = claim(store)
    given = {"row_count": 2, "record_count": 0, "digest": "", "kafka_offsets": {}}
    with store.deciding(ID, row.generation) as transaction:
        transaction.decide(Decision(prepared="5:1", expected="", batch_id=0, figures=FIGURES, **given))  # type: ignore[arg-type]
    row = store.check_generation(ID, row.generation)
    assert (row.status, figures(store)[-1]) == ("done", FIGURES)
    store.take_empty_batch(ID, row.generation, 1, row.prepared_transaction_state, figures={"record_bytes": 0})
    assert figures(store)[-2:] == [FIGURES, {"record_bytes": 0}]


@contextmanager
def no_owner(database: str) -> Iterator[str]:
    """The URL of a role that may use the tables, and alter none."""
    with role(database) as (name, url):
        execute(database, ddl(settings(), role=name))
        yield url


@pytest.mark.postgres
def test_a_history_that_lacks_the_column_is_read_and_written_without(database: str, sql: SqlStateStore) -> None:
    """A role that may not alter the table goes on: nothing is decided by figures."""
    reach(sql, "done")
    execute(database, LOSE)
    with no_owner(database) as url, sql_store(url) as store:
        row = claim(store, run_id="run-2")
        decide(store, row, batch_id=1, prepared="5:1")
        store.mark_done(ID, row.generation, "5:2", figures=FIGURES)
        assert figures(store) == [{}, {}, {}]
        assert store.read_lost() == []


@pytest.mark.postgres
def test_a_check_names_the_command_that_adds_it(database: str, sql: SqlStateStore) -> None:
    del sql
    execute(database, LOSE)
    store = SqlStateStore(database, settings())
    before = store.check_schema()
    said = f"public.{HISTORY} lacks column figures: batches are written, but without their times. To add it: spark-2pc"
    assert before.ready
    assert any(line.startswith(said) for line in before.lines)
    with no_owner(database) as url:
        assert not any("figures" in line for line in SqlStateStore(url, settings()).migrate())
    assert f"added column figures to public.{HISTORY}" in store.migrate()
    assert not any("figures" in line for line in store.migrate())
    assert not any("lacks column" in line for line in store.check_schema().lines)
    store.close()
