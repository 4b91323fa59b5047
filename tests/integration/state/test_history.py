"""The history of a sink and what drivers and people did: in step with its row in both stores, and kept long enough."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pytest
from sqlalchemy import make_url

from jdbc_state import ActionLine, Decision, SqlStateStore, StateRow, StateStore, ddl
from jdbc_state.actions import FORCE_TERMINATE, ROUTINE
from jdbc_state.errors import CommitsLostError
from jdbc_state.history import EVENTS
from jdbc_state.model import STATUSES, legal_before
from spark_2pc_sink.errors import StateStoreError, SupersededError
from tests.harness.sql import run_sql
from tests.integration.state.conftest import ALICE, Make
from tests.integration.state.state_stores import (
    CLUSTER,
    ID,
    QUERY,
    RUN,
    call,
    claim,
    decide,
    reach,
    role,
    settings,
    sql_store,
)

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


def test_every_change_of_the_row_is_in_its_line(store: StateStore) -> None:
    """C13: a claim, a decision, what became of it, a resend, a batch without records, and what a person decided."""
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


def test_what_changes_no_row_writes_no_line(store: StateStore) -> None:
    """D1, C13: an overtaken driver, and one beside another decision than it has seen."""
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


def test_a_line_that_is_gone_is_written_with_the_next_note(store: StateStore) -> None:
    """C13: a person has tidied up."""
    row = claim(store)
    decide(store, row)
    if isinstance(store, SqlStateStore):
        with store.database.requests("test") as connection:
            connection.execute(store._tables.history.delete())
    else:
        store._lines.clear()  # type: ignore[attr-defined]
    store.mark_done(ID, row.generation, "5:1")
    assert lines(store) == [("noted", 1, 0, "done", "5:0")]


def test_the_lines_of_all_sinks_come_by_their_last_change(store: StateStore) -> None:
    """D2: so that what happened last in a table of many sinks is found by one question."""
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
        with store.database.requests("test") as connection:
            connection.execute(store._state.delete().where(store._state.c.transactional_id == transactional_id))
    else:
        del store._rows[transactional_id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", STATUSES)
def test_a_lost_row_is_made_again_from_its_newest_line(store: StateStore, status: str) -> None:
    """C13: the row was deleted; whatever it said, the claim that finds it gone says the same."""
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


def test_the_claims_before_the_loss_stay_defeated(store: StateStore) -> None:
    """C2, C13: an older driver holds a generation that the row made again must not come to."""
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


@pytest.mark.postgres
def test_another_table_of_the_historys_name_is_left_alone_where_none_is_kept(database: str) -> None:
    run_sql(database, "CREATE TABLE kafka_transaction_state_history (id integer)")
    with sql_store(database, history_batches=0) as store:
        assert claim(store).generation == 1
        assert [row.generation for row in store.survey().rows] == [1]


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
        run_sql(database, ddl(settings(), role=name))
        yield url


@pytest.mark.postgres
def test_a_history_that_lacks_the_column_is_read_and_written_without(database: str, sql: SqlStateStore) -> None:
    """A role that may not alter the table goes on: nothing is decided by figures."""
    reach(sql, "done")
    run_sql(database, LOSE)
    with no_owner(database) as url, sql_store(url) as store:
        row = claim(store, run_id="run-2")
        decide(store, row, batch_id=1, prepared="5:1")
        store.mark_done(ID, row.generation, "5:2", figures=FIGURES)
        assert figures(store) == [{}, {}, {}]
        assert store.read_lost() == []


@pytest.mark.postgres
def test_a_check_names_the_command_that_adds_it(database: str, sql: SqlStateStore) -> None:
    del sql
    run_sql(database, LOSE)
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


LAYOUT = {"topic": "orders", "table": "public.orders", "mode": "append", "columns": {"id": "order_id"}, "key": None}


def told(store: StateStore, transactional_id: str | None = ID) -> list[ActionLine]:
    return store.read_actions(transactional_id, last=10_000)[::-1]


def names(store: StateStore) -> list[str]:
    return [line.action for line in told(store)]


def test_a_claim_says_who_when_and_how_the_data_lies(store: StateStore) -> None:
    """D2: a reader needs no arguments to compare both sides."""
    row = claim(store, layout=LAYOUT)
    [line] = told(store)
    assert (line.transactional_id, line.action, line.batch_id, line.generation) == (ID, "claim", None, 1)
    assert (line.os_user, line.host, line.program, line.reason) == tuple(vars(ALICE).values())
    assert line.role != ""
    assert abs(line.at - row.claimed_at) < timedelta(seconds=5)
    assert line.at.tzinfo is not None
    assert line.detail == {"query_id": QUERY, "run_id": RUN, "cluster_id": CLUSTER, "layout": LAYOUT}
    assert store.read_layout(ID) == LAYOUT
    claim(store, query_id=None, run_id=None)
    assert told(store)[1].detail == {"cluster_id": CLUSTER}
    assert store.read_layout(ID) == LAYOUT
    claim(store, layout={"topic": "later"})
    assert store.read_layout(ID) == {"topic": "later"}
    assert store.read_layout("another") is None


def test_a_batch_that_goes_its_way_writes_no_line(store: StateStore) -> None:
    """Its COMMIT must not cost one write more."""
    row = claim(store)
    store.mark_initialized(ID, row.generation, "4:9")
    decide(store, row)
    row = store.mark_done(ID, row.generation, "5:1")
    store.take_empty_batch(ID, row.generation, 1, row.prepared_transaction_state)
    assert names(store) == ["claim"]


@pytest.mark.parametrize(
    ("operation", "action"),
    [
        ("accept_open", "open_transaction"),
        ("accept_replay", "accept_replay"),
        ("drop_batch", "drop"),
        ("accept_loss", "accept_loss"),
    ],
)
def test_what_a_person_decides_is_told_with_the_reason(store: StateStore, operation: str, action: str) -> None:
    """C5: under the claim that decides it, and by no claim that is older."""
    row = reach(store, legal_before(operation)[0])
    after = call(store, operation, ID, row.generation)
    assert after is not None
    line = told(store)[-1]
    assert (line.action, line.batch_id, line.generation) == (action, after.batch_id, row.generation)
    assert (line.reason, line.detail) == (ALICE.reason, {})
    before = names(store)
    claim(store)
    with pytest.raises(SupersededError):
        call(store, operation, ID, row.generation)
    assert names(store) == [*before, "claim"]


def test_lines_can_be_chosen(store: StateStore) -> None:
    for name in ("a", "b", "a"):
        claim(store, name)
    assert [line.transactional_id for line in store.read_actions(last=10)] == ["a", "b", "a"]
    assert [line.generation for line in store.read_actions("a", last=10)] == [2, 1]
    assert [line.generation for line in store.read_actions("a", last=1)] == [2]
    newest = store.read_actions(last=1)[0]
    assert store.read_actions(last=10, since=newest.at) == [newest]
    assert store.read_actions(last=10, since=datetime.now(timezone.utc) + timedelta(hours=1)) == []


def test_what_drivers_do_is_kept_short_and_what_people_decide_is_kept(make: Make) -> None:
    """A11: and the layout of the last job stays, however often a command recovers the sink."""
    store = make(3)
    other = claim(store, "other")
    row = reach(store, "owed")
    store.accept_replay(ID, row.generation)
    claim(store, layout=LAYOUT)
    for _ in range(8):
        row = claim(store, query_id=None, run_id=None)
        store.note_action(ID, row.generation, "abort", {})
    claim(store, adopt=True)
    kept = [line for line in told(store) if line.action in ROUTINE]
    assert len(kept) <= 2 * (3 + 1)
    assert kept[-1].generation == row.generation
    assert [line.action for line in told(store) if line.action not in ROUTINE] == ["accept_replay", "adopt"]
    assert store.read_layout(ID) == LAYOUT
    assert [line.generation for line in told(store, "other")] == [other.generation]
    for number in range(6):
        claim(store, layout={"number": number})
    assert store.read_layout(ID) == {"number": 5}
    assert sum("layout" in line.detail for line in told(store)) == 3 + 1


def test_without_history_only_what_needs_no_claim_is_told(make: Make) -> None:
    """A11: who keeps none wants no table for it."""
    store = make(0)
    row = reach(store, "decided")
    store.drop_batch(ID, row.generation, "5:1")
    store.note_action(ID, row.generation, "abort", {})
    assert told(store, None) == []
    assert store.read_layout(ID) is None


def test_what_changes_no_row_is_noted_under_the_claim_only(store: StateStore) -> None:
    """D1: an abort that a driver is about to make; one that was overtaken makes none."""
    row = claim(store)
    store.note_action(ID, row.generation, "abort", {"pair": "5:0"})
    claim(store)
    with pytest.raises(SupersededError):
        store.note_action(ID, row.generation, "abort", {"pair": "5:0"})
    with pytest.raises(SupersededError, match="is gone from the state table"):
        store.note_action("another", 1, "abort", {})
    assert [(line.action, line.generation) for line in told(store, None)] == [("claim", 1), ("abort", 1), ("claim", 2)]


# --- on PostgreSQL ---------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_the_role_is_that_which_logged_in(database: str) -> None:
    """D2: not the group in whose name it works."""
    group = f"group_{secrets.token_hex(4)}"
    with sql_store(database) as store:
        run_sql(database, f"CREATE ROLE {group}")
        run_sql(database, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {group}")
        in_its_name = make_url(database).update_query_dict({"options": f"-c role={group}"})
        with sql_store(in_its_name.render_as_string(hide_password=False)) as working:
            claim(working)
        [(role,)] = run_sql(database, "SELECT session_user")
        assert [line.role for line in told(store)] == [role]
        run_sql(database, f"DROP OWNED BY {group}")
        run_sql(database, f"DROP ROLE {group}")


@pytest.mark.postgres
def test_without_its_table_nothing_can_be_noted_and_reading_finds_nothing(database: str) -> None:
    """C15: looking at a deployment of before is no error."""
    with sql_store(database, history_batches=0) as store:
        assert (store.read_actions(last=5), store.read_layout(ID)) == ([], None)
        with pytest.raises(StateStoreError, match="kafka_transaction_state_actions"):
            store.note_action("foreign", None, FORCE_TERMINATE, {})
