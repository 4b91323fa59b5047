"""What a batch id means with the state row, and what it means that batches did not come, over every combination."""

from __future__ import annotations

import itertools

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recipe.placement import (
    Placement,
    RunRecord,
    missing_batches,
    place_batch,
    place_beyond,
    place_explicit_id,
)
from spark_2pc_sink.recipe.resolve import Halt, RowStatus

ROW_IDS = (None, 0, 1, 5)
BATCH_IDS = (0, 1, 2, 4, 5, 6, 7)


def expected(status: RowStatus, row_id: int | None, batch_id: int) -> Placement | HaltCause:
    if status is RowStatus.OWED:
        return Placement.RESEND if row_id == batch_id else HaltCause.OTHER_BATCH_OWED
    if row_id == batch_id:
        return Placement.SKIP
    follows = batch_id == 0 if row_id is None else batch_id == row_id + 1
    if follows:
        return Placement.RUN
    if row_id is None:
        return HaltCause.NOT_THE_FIRST_BATCH
    return HaltCause.BATCHES_RESTARTED if batch_id == 0 else HaltCause.GAP


def halted(status: RowStatus, row_id: int | None, batch_id: int) -> Halt:
    placed = place_batch(status=status, row_batch_id=row_id, batch_id=batch_id)
    assert isinstance(placed, Halt)
    return placed


def test_every_combination() -> None:
    """A1 (replay is a no-op), A8 (wiped checkpoint), A11, B8 (old savepoint): a gap is never skipped silently."""
    space = itertools.product((RowStatus.NONE, RowStatus.DONE, RowStatus.OWED), ROW_IDS, BATCH_IDS)
    for status, row_id, batch_id in space:
        placed = place_batch(status=status, row_batch_id=row_id, batch_id=batch_id)
        answer = placed.cause if isinstance(placed, Halt) else placed
        assert answer is expected(status, row_id, batch_id), (status, row_id, batch_id)


@pytest.mark.parametrize(
    ("row_batch_id", "batch_id", "reason", "facts"),
    [
        (None, 4, "the first batch is 4, and the state row has none", {"batches": "0..3"}),
        (2, 4, "batch 4 follows batch 2", {"batches": "3", "known": {"row older"}}),
        (7, 4, "the checkpoint is older than the row", {"known": {"checkpoint older"}}),
        (5, 0, "batch ids of this query start at 0 again", {}),
    ],
)
def test_a_halt_names_both_ids_and_the_batches_that_are_passed_over(
    row_batch_id: int | None, batch_id: int, reason: str, facts: dict[str, object]
) -> None:
    """A8, A28, D8: who passes batches over sees which, and what becomes of the one that came."""
    placed = halted(RowStatus.DONE, row_batch_id, batch_id)
    assert reason in placed.reason
    assert {name: getattr(placed.facts, name) for name in facts} == facts
    assert placed.lacking is ("batches" in facts)
    more = placed.facts.more.get("pass_over", "")
    assert (f"if both sides have batch {batch_id} too" in more) is placed.lacking


@pytest.mark.parametrize(("row_id", "owed"), [(3, "owed batch 3"), (None, "another query")])
def test_an_owed_batch_is_named(row_id: int | None, owed: str) -> None:
    placed = halted(RowStatus.OWED, row_id, 4)
    assert owed in placed.reason
    assert placed.facts.batch == row_id


def test_a_decided_row_is_refused() -> None:
    """Recovery comes first: beside an undecided outcome no batch can be placed."""
    with pytest.raises(AssertionError, match="recovered"):
        place_batch(status=RowStatus.DECIDED, row_batch_id=3, batch_id=3)


@pytest.mark.parametrize(
    ("row_batch_id", "batch_id", "noted", "placed"),
    [
        (None, 0, False, Placement.RUN),
        (None, 20260131, False, Placement.RUN),
        (7, 8, False, Placement.RUN),
        (7, 70, False, Placement.RUN),
        (7, 7, False, Placement.SKIP),
        (7, 3, True, Placement.SKIP),
        (7, 3, False, None),
    ],
)
def test_numbers_by_hand_ascend_and_may_leave_others_out(
    row_batch_id: int | None, batch_id: int, noted: bool, placed: Placement | None
) -> None:
    """An id that the row has passed is skipped where the history has it: a restarted loop begins again."""
    found = place_explicit_id(status=RowStatus.DONE, row_batch_id=row_batch_id, batch_id=batch_id, noted=noted)
    assert found is placed


def test_beside_an_owed_batch_only_that_one_is_written_by_hand() -> None:
    """Those before it, which both sides have, are skipped."""
    owed = RowStatus.OWED
    assert place_explicit_id(status=owed, row_batch_id=7, batch_id=7, noted=False) is Placement.RESEND
    assert place_explicit_id(status=owed, row_batch_id=7, batch_id=3, noted=True) is Placement.SKIP
    for batch_id in (3, 8):
        halt = place_explicit_id(status=owed, row_batch_id=7, batch_id=batch_id, noted=False)
        assert isinstance(halt, Halt)
        assert halt.cause is HaltCause.OTHER_BATCH_OWED
    with pytest.raises(AssertionError, match="recovered"):
        place_explicit_id(status=RowStatus.DECIDED, row_batch_id=7, batch_id=7, noted=False)


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
def test_every_combination_of_what_spark_shows(finished: frozenset[int], empty: frozenset[int]) -> None:
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
