"""The claim as a statement: one, and conditional. What it does to rows is tested on a real database."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from jdbc_state import StateRow
from jdbc_state.claim import Claimant, carried_out
from jdbc_state.errors import CommitsLostError
from spark_2pc_sink.errors import ClaimRefusedError, SupersededError

ROW = StateRow(
    transactional_id="orders",
    generation=3,
    query_id="query-1",
    run_id="run-1",
    cluster_id="a",
    claimed_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
)
CLAIMANT = Claimant(
    transactional_id="orders",
    cluster_id="a",
    query_id="query-1",
    run_id="run-1",
    adopt=False,
    expected_generation=None,
)


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


@pytest.mark.parametrize("named", [None, 2])
def test_a_claim_without_an_answer_is_found_in_the_row(named: int | None) -> None:
    """C18."""
    assert carried_out(CLAIMANT, ROW, named=named) is ROW


@pytest.mark.parametrize(("row", "named"), [(None, None), (None, 3), (ROW, 3), (ROW, 4)])
def test_a_claim_that_the_row_does_not_show_was_not_carried_out(row: StateRow | None, named: int | None) -> None:
    """C18: it may still be; the next one names the same generation, so that only one of the two can be."""
    assert carried_out(CLAIMANT, row, named=named) is None


def test_a_claim_of_the_command_line_is_never_taken_for_another() -> None:
    """C18: two commands at one moment have no run by which they could be told apart."""
    command, row = replace(CLAIMANT, run_id=None), replace(ROW, run_id=None)
    assert carried_out(command, row, named=2) is None
    with pytest.raises(SupersededError, match="of run run-1"):
        carried_out(command, ROW, named=2)


@pytest.mark.parametrize(
    "other", [replace(ROW, run_id="run-2"), replace(ROW, run_id=None), replace(ROW, cluster_id="b")]
)
def test_who_came_while_a_claim_had_no_answer_is_the_newer(other: StateRow) -> None:
    """C18, D1: whichever of the two came first, the row is not taken back."""
    with pytest.raises(SupersededError, match="holds generation 3"):
        carried_out(CLAIMANT, other, named=2)
