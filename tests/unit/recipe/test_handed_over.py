"""What it means that batches did not come, over every combination of what Spark may show of them."""

from __future__ import annotations

import itertools

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recipe.placement import NOTHING_SHOWN, Placement, RunRecord, missing_batches, place_beyond
from spark_2pc_sink.recipe.resolve import Halt, RowStatus

HALT = Halt(HaltCause.GAP, "batch 5 follows batch 2")
MISSING = range(3, 5)


@pytest.mark.parametrize(
    ("status", "row_batch_id", "batch_id", "missing"),
    [
        (RowStatus.NONE, None, 2, [0, 1]),
        (RowStatus.NONE, None, 0, []),
        (RowStatus.DONE, 2, 5, [3, 4]),
        (RowStatus.DONE, 2, 3, []),
        (RowStatus.DONE, 2, 2, []),
        (RowStatus.DONE, 7, 2, []),
        (RowStatus.OWED, 2, 5, []),
    ],
)
def test_which_batches_are_missing(
    status: RowStatus, row_batch_id: int | None, batch_id: int, missing: list[int]
) -> None:
    assert [*missing_batches(status=status, row_batch_id=row_batch_id, batch_id=batch_id)] == missing


def subsets() -> list[frozenset[int]]:
    return [frozenset(chosen) for size in range(3) for chosen in itertools.combinations(MISSING, size)]


@pytest.mark.parametrize("finished", subsets(), ids=sorted)
@pytest.mark.parametrize("empty", subsets(), ids=sorted)
def test_every_combination(finished: frozenset[int], empty: frozenset[int]) -> None:
    """A22: a batch that may have had rows is never passed over."""
    placed = place_beyond(MISSING, RunRecord(finished, empty), HALT)
    if empty == {3, 4}:
        assert placed is Placement.RUN
        return
    assert isinstance(placed, Halt)
    doubtful = min({3, 4} - empty)
    assert f"your function did not call the sink for batch {doubtful}" in placed.reason
    if finished == {3, 4}:
        assert placed.cause is HaltCause.NOT_HANDED_OVER
        assert placed.reason.startswith("your function did not call the sink for batch")
        assert placed.facts.batches == "3..4"
    else:
        assert (placed.cause, placed.facts) == (HALT.cause, HALT.facts)
        assert placed.reason.startswith(HALT.reason)


def test_a_spark_that_shows_nothing_changes_nothing() -> None:
    placed = place_beyond(range(3, 4), NOTHING_SHOWN, HALT)
    assert isinstance(placed, Halt)
    assert placed.cause is HaltCause.GAP
