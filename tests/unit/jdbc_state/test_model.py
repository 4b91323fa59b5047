"""The table of moves, and the rule of who may claim a row."""

from __future__ import annotations

import pickle
from datetime import datetime, timezone

import pytest

from jdbc_state import DECIDED, DONE, NONE, OWED, TRANSITIONS, Decision, StateRow, StoreSettings, ddl
from jdbc_state.errors import LocalProtocolError, SupersededError
from jdbc_state.model import DECIDE, STATUSES, Move, claim_refusal
from jdbc_state.schema import StateTables

ROW = StateRow(transactional_id="orders", generation=3, claimed_at=datetime(2026, 1, 1, tzinfo=timezone.utc))
SETTINGS = StoreSettings(
    state_schema='od"d',
    state_table="state",
    history_table="History",
    history_batches=0,
    connect_timeout_s=2,
    connect_deadline_ms=1,
    claim_lock_timeout_ms=1,
    claim_deadline_ms=1,
    lock_timeout_ms=1,
    statement_timeout_ms=1,
    idle_in_transaction_timeout_ms=1,
    commit_timeout_ms=1,
)


def test_the_moves_are_those_of_the_recipe() -> None:
    """KIP-939 "Normal processing recipe": decided goes to done; the rest is what a lost transaction needs."""
    moves = {(move.before, move.after) for move in TRANSITIONS}
    assert {after for before, after in moves if before == DECIDED} == {DONE, OWED}
    assert {after for before, after in moves if before == OWED} == {DECIDED, DONE, OWED}
    assert {after for before, after in moves if before in (NONE, DONE)} == {NONE, DECIDED, DONE}
    assert all(move.why for move in TRANSITIONS)


@pytest.mark.parametrize(
    ("row_query", "query", "refused"),
    [(None, "a", False), ("a", "a", False), ("a", None, False), ("a", "b", True), (None, None, False)],
)
def test_a_query_owns_its_row(row_query: str | None, query: str | None, *, refused: bool) -> None:
    """A10: two queries cannot share an identity."""
    row = StateRow(**{**vars(ROW), "query_id": row_query, "cluster_id": "c"})
    assert (claim_refusal(row, cluster_id="c", query_id=query, adopt=False) is not None) == refused
    assert claim_refusal(row, cluster_id="c", query_id=query, adopt=True) is None


def test_a_refused_move_is_explained() -> None:
    """D1: overtaken is one thing, out of order another."""
    move = Move("mark_done", "orders", 3, {"settled": "5:1"})
    done = StateRow(**{**vars(ROW), "status": DONE, "settled": "5:1"})
    assert move.refused_by(done) is done
    with pytest.raises(LocalProtocolError, match=r"mark_done in state done .*: allowed only from decided; the row"):
        move.refused_by(StateRow(**{**vars(done), "settled": "5:2"}))
    for row in (None, StateRow(**{**vars(ROW), "generation": 4, "run_id": "run-9"})):
        with pytest.raises(SupersededError):
            move.refused_by(row)


def test_a_decision_is_never_taken_for_a_repeat() -> None:
    """Its transaction wrote rows too, and they are not looked for."""
    decided = StateRow(**{**vars(ROW), "status": DECIDED, "prepared_transaction_state": "1:2"})
    with pytest.raises(LocalProtocolError, match="decide in state decided"):
        Move(DECIDE, "orders", 3, {"prepared_transaction_state": "1:2"}).refused_by(decided)


def test_rows_and_decisions_are_values() -> None:
    decision = Decision(
        prepared="1:2",
        expected="",
        batch_id=0,
        row_count=1,
        record_count=1,
        digest="",
        kafka_offsets={"t-0": (0, 1)},
    )
    for value in (ROW, decision, SETTINGS):
        copy = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own
        assert copy == value
        assert hash(copy) == hash(value)


def test_the_tables_statements_can_be_run_by_somebody_else() -> None:
    statements = ddl(SETTINGS)
    assert statements.startswith('CREATE SCHEMA IF NOT EXISTS "od""d";\nCREATE TABLE IF NOT EXISTS "od""d".state (')
    assert "History" not in statements
    assert all(f"'{status}'" in statements for status in STATUSES)
    with_history = ddl(StoreSettings(**{**vars(SETTINGS), "history_batches": 1}))
    assert '"od""d"."History"' in with_history
    assert [column.name for column in StateTables.named(SETTINGS).state.primary_key] == ["transactional_id"]
