"""The table of moves, who may claim a row and what came of a claim, public names, refusals of another version."""

from __future__ import annotations

import pickle
import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

import jdbc_state
from jdbc_state import DECIDED, DONE, NONE, OWED, TRANSITIONS, Decision, StateRow, StoreSettings, ddl
from jdbc_state.claim import Claimant, carried_out
from jdbc_state.errors import CommitsLostError, LocalProtocolError, SupersededError
from jdbc_state.model import DECIDE, STATUSES, Move
from jdbc_state.preparing import FoundTable, making, migration, refusal
from jdbc_state.schema import StateTables
from spark_2pc_sink.choices.choice import state_command
from spark_2pc_sink.errors import ClaimRefusedError
from spark_2pc_sink.options import RecoveryOptions

ROW = StateRow(
    transactional_id="orders",
    generation=3,
    query_id="query-1",
    run_id="run-1",
    cluster_id="a",
    claimed_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
)
CLAIMANT = Claimant(transactional_id="orders", cluster_id="a", query_id="query-1", run_id="run-1")
SETTINGS = StoreSettings(state_schema='od"d', state_table="state", history_table="History", history_batches=0)


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
    row, claimant = replace(ROW, query_id=row_query), replace(CLAIMANT, query_id=query)
    with pytest.raises(ClaimRefusedError) if refused else nullcontext():
        claimant.check(row)
    replace(claimant, adopt=True).check(row)


def test_a_refused_move_is_explained() -> None:
    """D1: overtaken is one thing, out of order another."""
    move = Move("mark_done", "orders", 3, {"settled": "5:1"})
    done = replace(ROW, status=DONE, settled="5:1")
    assert move.refused_by(done) is done
    with pytest.raises(LocalProtocolError, match=r"mark_done in state done .*: allowed only from decided; the row"):
        move.refused_by(replace(done, settled="5:2"))
    for row in (None, replace(ROW, generation=4, run_id="run-9")):
        with pytest.raises(SupersededError):
            move.refused_by(row)


def test_a_decision_is_never_taken_for_a_repeat() -> None:
    """Its transaction wrote rows too, and they are not looked for."""
    decided = replace(ROW, status=DECIDED, prepared_transaction_state="1:2")
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
    with_history = ddl(replace(SETTINGS, history_batches=1))
    assert '"od""d"."History"' in with_history
    assert [column.name for column in StateTables(SETTINGS).state.primary_key] == ["transactional_id"]


def test_every_name_that_is_listed_can_be_had() -> None:
    assert all(getattr(jdbc_state, name) is not None for name in dir(jdbc_state))
    assert dir(jdbc_state) == sorted(jdbc_state.__all__)
    with pytest.raises(AttributeError, match="module 'jdbc_state' has no attribute 'SqlStore'"):
        _ = jdbc_state.SqlStore  # type: ignore[attr-defined]


def test_a_store_without_settings_is_that_of_a_sink_without_options() -> None:
    """The command line finds the rows of either."""
    options = RecoveryOptions.parse(
        transactional_id="orders", kafka={"bootstrap.servers": "localhost:9092"}, database="postgresql://job@db/shop"
    )
    given = options.store_settings()
    assert StoreSettings(schema_help=given.schema_help) == given
    assert StoreSettings(state_table="orders").history_table == "orders_history"


def test_the_command_can_be_pasted_whatever_the_names() -> None:
    """C15: into a shell, and then read as the options read names."""
    settings = replace(SETTINGS, schema_help=state_command)
    remedy = making(settings, role="o'clock")
    assert remedy.partition("  # ")[0].endswith(""" --history-table '"History"' --role 'o'"'"'clock'""")
    remedy = migration(settings, role="owner", where="h:5432/shop")
    assert remedy.partition("  # ")[0] == (
        "spark-2pc state migrate --database postgresql://owner@h:5432/shop "
        """--state-schema '"od""d"' --state-table state --history-table '"History"'"""
    )


def test_a_writer_without_commands_is_told_what_to_call() -> None:
    """The package stands on its own."""
    assert making(SETTINGS, role="job").startswith("run the statements of jdbc_state.ddl(settings, role='job')")
    assert migration(SETTINGS, role="owner", where="h/d").startswith(
        "as owner: call migrate() of a SqlStateStore for h/d"
    )
    sources = "".join(path.read_text() for path in Path(jdbc_state.__file__).parent.glob("*.py"))
    assert "spark-2pc" not in sources
    assert re.findall(r".*spark_2pc_sink.*", sources) == ['MARK = "spark_2pc_sink state, version "']


def test_a_table_of_this_version_is_not_refused() -> None:
    """C15: any other is, by its name."""
    tables = StateTables(SETTINGS)
    this = FoundTable(name="a.state", version=2, owner="owner", owned=False, lacks="")
    assert refusal(this, tables, where="h/d") is None
    said = [refusal(replace(this, version=version), tables, where="h/d") for version in (None, 1, 3)]
    assert all(each is not None and "a.state" in each.operation for each in said)


def test_a_claim_is_checked_without_the_database_as_with_it() -> None:
    """A10, D1, D6: the check that gives the reason."""
    CLAIMANT.check(None)
    CLAIMANT.check(ROW)
    replace(CLAIMANT, expected_generation=3).check(ROW)
    replace(CLAIMANT, expected_generation=2).check(ROW)  # this run's own later claim
    with pytest.raises(ClaimRefusedError):
        replace(CLAIMANT, query_id="query-2").check(ROW)
    expecting = replace(CLAIMANT, expected_generation=2)
    for other in (replace(expecting, run_id="run-2"), replace(expecting, run_id=None)):
        with pytest.raises(SupersededError):
            other.check(ROW)
    with pytest.raises(CommitsLostError, match="left the state row at generation 4"):
        replace(CLAIMANT, expected_generation=4).check(ROW)
    with pytest.raises(SupersededError):
        replace(CLAIMANT, expected_generation=3).check(None)


#: A claim of the command line has no run by which two at one moment could be told apart.
COMMAND = replace(CLAIMANT, run_id=None)


@pytest.mark.parametrize(
    ("claimant", "row", "named", "found"),
    [
        (CLAIMANT, ROW, None, ROW),
        (CLAIMANT, ROW, 2, ROW),
        (CLAIMANT, None, None, None),
        (CLAIMANT, None, 3, None),
        (CLAIMANT, ROW, 3, None),
        (CLAIMANT, ROW, 4, None),
        (COMMAND, replace(ROW, run_id=None), 2, None),
    ],
)
def test_a_claim_without_an_answer_is_found_in_the_row(
    claimant: Claimant, row: StateRow | None, named: int | None, found: StateRow | None
) -> None:
    """C18: what is not there may still come; the next one names the same generation, so only one of both can be."""
    assert carried_out(claimant, row, named=named) is found


@pytest.mark.parametrize(
    "other", [replace(ROW, run_id="run-2"), replace(ROW, run_id=None), replace(ROW, cluster_id="b")]
)
def test_who_came_while_a_claim_had_no_answer_is_the_newer(other: StateRow) -> None:
    """C18, D1: whichever of the two came first, the row is not taken back."""
    with pytest.raises(SupersededError, match="holds generation 3"):
        carried_out(CLAIMANT, other, named=2)
    with pytest.raises(SupersededError, match="of run run-1"):
        carried_out(COMMAND, ROW, named=2)
