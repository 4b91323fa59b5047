"""The driver's guess that the next batch is small."""

from __future__ import annotations

import pytest

from spark_2pc_sink.sink.job.batch_size import (
    FIRST_ROWS_MAX,
    PATIENCE_BATCHES,
    SMALL_BYTES_MAX,
    SMALL_ROWS_MAX,
    SMALL_S_MAX,
    SmallBatches,
)


def note_small(batches: SmallBatches) -> None:
    batches.note(rows=1, arrow_bytes=100, seconds=0.1, collected=False)


def note_slow(batches: SmallBatches, *, collected: bool, seconds: float = SMALL_S_MAX + 1) -> None:
    batches.note(rows=1, arrow_bytes=100, seconds=seconds, collected=collected)


def test_the_first_batch_is_shared_out() -> None:
    assert not SmallBatches().expected


def tried() -> SmallBatches:
    batches = SmallBatches()
    batches.try_first()
    return batches


def test_a_first_batch_that_is_cheap_to_get_is_tried_with_a_few_rows() -> None:
    batches = tried()
    assert (batches.expected, batches.rows_max) == (True, FIRST_ROWS_MAX)
    note_small(batches)
    assert (batches.expected, batches.rows_max) == (True, SMALL_ROWS_MAX)


def test_a_first_batch_that_was_too_large_says_nothing_of_the_next() -> None:
    """A query begins with what has gathered, and goes on with what comes."""
    batches = tried()
    batches.note_too_large()
    assert (batches.expected, batches.rows_max) == (False, SMALL_ROWS_MAX)
    note_small(batches)
    assert batches.expected


def test_a_first_batch_that_was_slow_says_nothing_of_the_next() -> None:
    """A young session takes seconds for any job."""
    batches = tried()
    note_slow(batches, collected=True)
    assert batches.expected
    note_slow(batches, collected=True)
    assert not batches.expected


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
    batches = SmallBatches()
    batches.note(rows=rows, arrow_bytes=arrow_bytes, seconds=seconds, collected=False)
    assert batches.expected is small


def test_a_slow_batch_in_one_task_is_not_soon_repeated() -> None:
    batches = SmallBatches()
    note_small(batches)
    note_slow(batches, collected=True)
    for _ in range(PATIENCE_BATCHES):
        assert not batches.expected
        note_small(batches)
    assert batches.expected


def test_where_tasks_take_as_long_batches_are_collected_for_a_while() -> None:
    """Many sinks on few cores: whoever needs more of them because they are short makes them shorter."""
    batches = SmallBatches()
    note_small(batches)
    note_slow(batches, collected=True, seconds=SMALL_S_MAX + 1)
    collected = [batches.expected]
    note_slow(batches, collected=False, seconds=SMALL_S_MAX + 1)
    for _ in range(PATIENCE_BATCHES + 1):
        collected.append(batches.expected)
        note_slow(batches, collected=True, seconds=SMALL_S_MAX + 2)
    assert collected == [False, *[True] * (PATIENCE_BATCHES + 1)]
    assert not batches.expected


def test_where_tasks_are_quicker_batches_are_shared_out() -> None:
    """Work stands before the rows, and one task would do it alone."""
    batches = SmallBatches()
    note_small(batches)
    note_slow(batches, collected=True, seconds=SMALL_S_MAX + 2)
    for _ in range(PATIENCE_BATCHES):
        note_slow(batches, collected=False, seconds=SMALL_S_MAX + 1)
        assert not batches.expected


def test_a_slow_batch_of_many_rows_is_shared_out_whatever_was_before() -> None:
    batches = SmallBatches()
    note_small(batches)
    note_slow(batches, collected=True)
    batches.note(rows=SMALL_ROWS_MAX + 1, arrow_bytes=100, seconds=SMALL_S_MAX + 1, collected=False)
    assert not batches.expected


def test_a_batch_that_was_too_large_is_not_soon_tried_again() -> None:
    batches = SmallBatches()
    note_small(batches)
    batches.note_too_large()
    assert not batches.expected
    note_small(batches)
    assert not batches.expected
