"""Sizes: rows of an Arrow batch, batches that the driver writes itself, the first one, and the tries of a table."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.sink.job.batch_size import (
    AIMED_ROWS_MAX,
    AIMED_ROWS_MIN,
    ARROW_BATCH_BYTES,
    FIRST_ROWS_MAX,
    PATIENCE_BATCHES,
    SMALL_BYTES_MAX,
    SMALL_ROWS_MAX,
    SMALL_S_MAX,
    UNBOUNDED_ROWS_BYTES_MAX,
    ArrowBatchSize,
    SmallBatches,
)
from spark_2pc_sink.sink.job.classic_query import is_known_large
from spark_2pc_sink.sink.job.task_plan import TaskReceipt, TaskResults

SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
ROWS_MAX = 1_000
#: Of rows that are as heavy as they may be.
ROW_BYTES = UNBOUNDED_ROWS_BYTES_MAX // ROWS_MAX
UNBOUNDED = str(2**31 - 1)
BOUNDED = str(ARROW_BATCH_BYTES)


class Session:
    def __init__(self, value: str | None = None) -> None:
        self.conf: Any = self
        self.values = {SETTING: value, ROWS_SETTING: str(ROWS_MAX)}
        self.sets: list[tuple[str, str]] = []

    def isModifiable(self, name: str) -> bool:  # noqa: N802 - Spark's name
        return name in self.values

    @property
    def value(self) -> str | None:
        return self.values[SETTING]

    def get(self, name: str, default: str | None) -> str | None:
        value = self.values[name]
        return default if value is None else value

    def set(self, name: str, value: str) -> None:
        self.values[name] = value
        self.sets.append((name, value))


def read(*tasks: tuple[int, int]) -> TaskResults:
    """The results of tasks: rows and Arrow bytes of each."""
    receipts = (TaskReceipt(number, rows=rows, arrow_bytes=size) for number, (rows, size) in enumerate(tasks))
    return TaskResults(tuple(receipts))


def after(size: ArrowBatchSize, *tasks: tuple[int, int]) -> tuple[int, bool]:
    size.note(read(*tasks))
    return size.rows, size.unbounded


@pytest.mark.parametrize(
    ("tasks", "unbounded"),
    [([], True), ([(10, 10 * ROW_BYTES), (1, ROW_BYTES)], True), ([(10, 10 * ROW_BYTES), (1, 2 * ROW_BYTES)], False)],
)
def test_what_the_last_batch_says_of_the_next(tasks: list[tuple[int, int]], unbounded: bool) -> None:
    assert after(ArrowBatchSize(ROWS_MAX, rows_given=True, unbounded=not unbounded), *tasks) == (ROWS_MAX, unbounded)


def test_where_there_is_room_the_bound_is_lifted() -> None:
    session, bound = Session(), ArrowBatchSize()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read((1, 1)))
    bound.apply(session)  # type: ignore[arg-type]
    assert session.sets == [(SETTING, BOUNDED), (SETTING, UNBOUNDED)]


def test_what_somebody_else_has_set_stays() -> None:
    session, bound = Session("1000000"), ArrowBatchSize()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read((1, 1)))
    bound.apply(session)  # type: ignore[arg-type]
    assert (session.value, session.sets) == ("1000000", [])


@pytest.mark.parametrize(
    ("row_bytes", "rows"),
    [
        (ARROW_BATCH_BYTES // AIMED_ROWS_MAX, AIMED_ROWS_MAX),
        (ARROW_BATCH_BYTES // AIMED_ROWS_MAX + 1, AIMED_ROWS_MAX // 2),
        (ARROW_BATCH_BYTES, AIMED_ROWS_MIN),
    ],
)
def test_heavy_rows_come_in_small_numbers(row_bytes: int, rows: int) -> None:
    # There is room by the number that is chosen, not by Spark's own.
    unbounded = rows * row_bytes <= UNBOUNDED_ROWS_BYTES_MAX
    assert after(ArrowBatchSize(), (3, 3 * row_bytes)) == (rows, unbounded)


def note_small(batches: SmallBatches) -> None:
    batches.note(read((1, 100)), 0.1, collected=False)


def note_slow(batches: SmallBatches, *, collected: bool, seconds: float = SMALL_S_MAX + 1) -> None:
    batches.note(read((1, 100)), seconds, collected=collected)


def test_a_first_batch_that_is_cheap_to_get_is_tried_with_a_few_rows() -> None:
    batches = SmallBatches()
    batches.try_first()
    assert (batches.expected, batches.rows_max) == (True, FIRST_ROWS_MAX)
    note_small(batches)
    assert (batches.expected, batches.rows_max) == (True, SMALL_ROWS_MAX)


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
    batches.note(read((rows, arrow_bytes)), seconds, collected=False)
    assert batches.expected is small


def test_a_slow_batch_in_one_task_is_not_soon_repeated() -> None:
    batches = SmallBatches()
    note_small(batches)
    note_slow(batches, collected=True)
    for _ in range(PATIENCE_BATCHES):
        assert not batches.expected
        note_small(batches)
    assert batches.expected


@pytest.mark.parametrize(
    ("estimated_bytes", "large"),
    [(0, False), (4 << 20, False), ((4 << 20) + 1, True), (2**63 - 1, False), (6 << 60, False)],
)
def test_a_first_batch_known_to_be_large_is_not_tried_by_the_driver(estimated_bytes: int, large: bool) -> None:
    """Beyond that are Spark's estimates for sources that do not tell their size, as they are and after a select."""
    assert is_known_large(estimated_bytes) is large
