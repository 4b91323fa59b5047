"""What a batch id means beside the state row, over every combination."""

from __future__ import annotations

import itertools

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recipe.replay_decision import Placement, place_batch, place_by_hand
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
    ("row_batch_id", "reason", "written"),
    [
        (None, "knows none", "accept_loss='0..3' on the sink (once): what came before stays on both sides as it is"),
        (2, "the row is older than the checkpoint", "accept_loss='3..4' where both sides have batch 4 too"),
        (7, "the checkpoint is older than the row", "with a source that begins after what both sides have"),
    ],
)
def test_what_adopting_costs_is_said(row_batch_id: int | None, reason: str, written: str) -> None:
    """A8, D8: who adopts at night knows that rows may then be there twice."""
    placed = halted(RowStatus.DONE, row_batch_id, 4)
    assert reason in placed.reason
    assert "adopt=True" in placed.remedies[-1]
    assert written in placed.remedies[-1]


@pytest.mark.parametrize(
    ("row_id", "batch_id", "cause"),
    [(5, 0, HaltCause.BATCHES_RESTARTED), (1, 0, HaltCause.BATCHES_RESTARTED), (5, 1, HaltCause.GAP)],
)
def test_batches_that_start_again_are_told_from_an_older_checkpoint(
    row_id: int, batch_id: int, cause: HaltCause
) -> None:
    """A28: both ways on begin with a new checkpoint, and the first remedy adopts nothing."""
    placed = halted(RowStatus.DONE, row_id, batch_id)
    assert placed.cause is cause
    assert "adopt" not in placed.remedies[0]
    assert all("new checkpoint" in remedy and "adopt=True" in remedy for remedy in placed.remedies[1:])


def test_a_decided_row_is_refused() -> None:
    """Recovery comes first: beside an undecided outcome no batch can be placed."""
    with pytest.raises(ValueError, match="recovered"):
        place_batch(status=RowStatus.DECIDED, row_batch_id=3, batch_id=3)


def test_reasons_name_both_ids() -> None:
    """D8: a reset of one side is named, with what settles it."""
    gap = halted(RowStatus.DONE, 3, 7)
    assert "batch 7 follows batch 3" in gap.reason
    assert gap.lacking
    assert "adopt=True and accept_loss='4..6'" in gap.remedies[-1]
    first = halted(RowStatus.NONE, None, 7)
    assert "the first batch is 7" in first.reason
    assert first.remedies[0].startswith("if transactional_id, state_schema, state_table or database is another")
    assert first.remedies[1] == gap.remedies[0]
    owed = halted(RowStatus.OWED, 3, 4)
    assert "owed batch 3" in owed.reason
    assert any("--drop" in remedy for remedy in owed.remedies)
    foreign = halted(RowStatus.OWED, None, 0)
    assert "another query" in foreign.reason


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
