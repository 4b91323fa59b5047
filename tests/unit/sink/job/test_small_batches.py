"""The driver writes small batches, and never for long where that is wrong."""

from __future__ import annotations

import pytest

from spark_2pc_sink.sink.job.small_batches import PATIENCE_BATCHES, SMALL_BYTES_MAX, SMALL_ROWS_MAX, SMALL_S_MAX, Pace


def note_small(pace: Pace) -> None:
    pace.note(rows=1, arrow_bytes=100, seconds=0.1, collected=False)


def test_the_first_batch_is_shared_out() -> None:
    assert not Pace().small


@pytest.mark.parametrize(
    ("rows", "arrow_bytes", "seconds", "small"),
    [
        (SMALL_ROWS_MAX, SMALL_BYTES_MAX, SMALL_S_MAX, True),
        (SMALL_ROWS_MAX + 1, 0, 0.0, False),
        (1, SMALL_BYTES_MAX + 1, 0.0, False),
        (0, 0, SMALL_S_MAX + 0.01, False),
    ],
)
def test_a_small_and_quick_batch_is_followed_by_another(
    rows: int, arrow_bytes: int, seconds: float, small: bool
) -> None:
    """Few rows alone do not do: a large state may stand before them, which one task would go through alone."""
    pace = Pace()
    pace.note(rows=rows, arrow_bytes=arrow_bytes, seconds=seconds, collected=False)
    assert pace.small is small


def test_a_slow_batch_in_one_task_is_not_soon_repeated() -> None:
    pace = Pace()
    note_small(pace)
    pace.note(rows=1, arrow_bytes=100, seconds=SMALL_S_MAX + 1, collected=True)
    for _ in range(PATIENCE_BATCHES):
        assert not pace.small
        note_small(pace)
    assert pace.small


def test_a_batch_that_was_too_large_is_not_soon_tried_again() -> None:
    pace = Pace()
    note_small(pace)
    pace.note_too_large()
    assert not pace.small
    note_small(pace)
    assert not pace.small
