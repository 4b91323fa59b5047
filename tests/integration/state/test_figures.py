"""Figures of a batch in the history: written with the note that it is done, and done without where there is no room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from jdbc_state import Decision, SqlStateStore, StateStore, ddl
from tests.integration.state.conftest import Make
from tests.integration.state.state_stores import ID, claim, decide, execute, reach, role, settings, sql_store

FIGURES: Final = {"record_bytes": 812, "step_seconds": {"produce": 0.8}}
HISTORY: Final = "kafka_transaction_state_history"
LOSE: Final = f"ALTER TABLE {HISTORY} DROP COLUMN figures"


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
