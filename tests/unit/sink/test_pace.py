"""One task for small batches, and never for long where that is wrong."""

from __future__ import annotations

import pytest

from spark_2pc_sink.sink.pace import ONE_TASK_ROWS_MAX, ONE_TASK_S_MAX, PATIENCE_BATCHES, Pace


def test_the_first_batch_is_shared_out() -> None:
    assert not Pace().one_task


@pytest.mark.parametrize(
    ("rows", "seconds", "one_task"),
    [
        (ONE_TASK_ROWS_MAX, ONE_TASK_S_MAX, True),
        (ONE_TASK_ROWS_MAX + 1, 0.0, False),
        (0, ONE_TASK_S_MAX + 0.01, False),
    ],
)
def test_a_small_and_quick_batch_is_followed_by_one_task(rows: int, seconds: float, one_task: bool) -> None:
    """Few rows alone do not do: a large state may stand before them, which one task would go through alone."""
    pace = Pace()
    pace.note(rows=rows, seconds=seconds, one_task=False)
    assert pace.one_task is one_task


def test_a_slow_batch_in_one_task_is_not_soon_repeated() -> None:
    pace = Pace()
    pace.note(rows=1, seconds=0.1, one_task=False)
    pace.note(rows=1, seconds=ONE_TASK_S_MAX + 1, one_task=True)
    for _ in range(PATIENCE_BATCHES):
        assert not pace.one_task
        pace.note(rows=1, seconds=0.1, one_task=False)
    assert pace.one_task


def test_a_batch_that_was_too_large_is_not_soon_tried_again() -> None:
    pace = Pace()
    pace.note(rows=1, seconds=0.1, one_task=False)
    pace.note_too_large()
    assert not pace.one_task
    pace.note(rows=1, seconds=0.1, one_task=False)
    assert not pace.one_task
