"""What a batch id means beside the state row, over every combination."""

from __future__ import annotations

import itertools

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recipe.placement import Placement, place_batch, place_by_hand
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
        (None, 4, "the first batch is 4, and the state row knows none", {"batches": "0..3"}),
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
    with pytest.raises(ValueError, match="recovered"):
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
    found = place_by_hand(status=RowStatus.DONE, row_batch_id=row_batch_id, batch_id=batch_id, noted=noted)
    assert found is placed


def test_beside_an_owed_batch_only_that_one_is_written_by_hand() -> None:
    """Those before it, which both sides have, are skipped."""
    owed = RowStatus.OWED
    assert place_by_hand(status=owed, row_batch_id=7, batch_id=7, noted=False) is Placement.RESEND
    assert place_by_hand(status=owed, row_batch_id=7, batch_id=3, noted=True) is Placement.SKIP
    for batch_id in (3, 8):
        halt = place_by_hand(status=owed, row_batch_id=7, batch_id=batch_id, noted=False)
        assert isinstance(halt, Halt)
        assert halt.cause is HaltCause.OTHER_BATCH_OWED
    with pytest.raises(ValueError, match="recovered"):
        place_by_hand(status=RowStatus.DECIDED, row_batch_id=7, batch_id=7, noted=False)
