"""What drivers and people did: in step with the row in both stores, and kept as long as it should be."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import make_url

from jdbc_state import ActionLine, StateStore
from jdbc_state.actions import ACTION_OF, FORCE_TERMINATE, ROUTINE
from jdbc_state.model import legal_before
from spark_2pc_sink.errors import StateStoreError, SupersededError
from tests.integration.state.conftest import ALICE, Make
from tests.integration.state.state_stores import (
    CLUSTER,
    ID,
    QUERY,
    RUN,
    call,
    claim,
    decide,
    execute,
    reach,
    sql_store,
)

LAYOUT = {"topic": "orders", "table": "public.orders", "mode": "append", "columns": {"id": "order_id"}, "key": None}


def told(store: StateStore, transactional_id: str | None = ID) -> list[ActionLine]:
    """Every line, the oldest first."""
    return store.read_actions(transactional_id, last=10_000)[::-1]


def names(store: StateStore) -> list[str]:
    return [line.action for line in told(store)]


def test_a_claim_says_who_when_and_how_the_data_lies(make: Make) -> None:
    """D2: a reader needs no arguments to compare both sides."""
    store = make()
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


def test_a_batch_that_goes_its_way_writes_no_line(make: Make) -> None:
    """Its COMMIT must not cost one write more."""
    store = make()
    row = claim(store)
    store.mark_initialized(ID, row.generation, "4:9")
    decide(store, row)
    row = store.mark_done(ID, row.generation, "5:1")
    store.take_empty_batch(ID, row.generation, 1, row.prepared_transaction_state)
    assert names(store) == ["claim"]


@pytest.mark.parametrize("operation", ACTION_OF)
def test_what_a_person_decides_is_told_with_the_reason(make: Make, operation: str) -> None:
    """C5: under the claim that decides it, and by no claim that is older."""
    store = make()
    row = reach(store, legal_before(operation)[0])
    after = call(store, operation, ID, row.generation)
    assert after is not None
    line = told(store)[-1]
    assert (line.action, line.batch_id, line.generation) == (ACTION_OF[operation], after.batch_id, row.generation)
    assert (line.reason, line.detail) == (ALICE.reason, {})
    before = names(store)
    claim(store)
    with pytest.raises(SupersededError):
        call(store, operation, ID, row.generation)
    assert names(store) == [*before, "claim"]


def test_lines_can_be_chosen(make: Make) -> None:
    store = make()
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


def test_what_changes_no_row_is_noted_under_the_claim_only(make: Make) -> None:
    """D1: an abort that a driver is about to make; one that was overtaken makes none."""
    store = make()
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
        execute(database, f"CREATE ROLE {group}")
        execute(database, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {group}")
        in_its_name = make_url(database).update_query_dict({"options": f"-c role={group}"})
        with sql_store(in_its_name.render_as_string(hide_password=False)) as working:
            claim(working)
        [(role,)] = execute(database, "SELECT session_user")
        assert [line.role for line in told(store)] == [role]
        execute(database, f"DROP OWNED BY {group}")
        execute(database, f"DROP ROLE {group}")


@pytest.mark.postgres
def test_without_its_table_nothing_can_be_noted_and_reading_finds_nothing(database: str) -> None:
    """C15: looking at a deployment of before is no error."""
    with sql_store(database, history_batches=0) as store:
        assert (store.read_actions(last=5), store.read_layout(ID)) == ([], None)
        with pytest.raises(StateStoreError, match="kafka_transaction_state_actions"):
            store.note_action("foreign", None, FORCE_TERMINATE, {})
