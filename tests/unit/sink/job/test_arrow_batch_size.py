"""The batch before says how many rows an Arrow batch has, and whether Spark has to count bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink.sink.job.batch_size import (
    AIMED_ROWS_MAX,
    AIMED_ROWS_MIN,
    ARROW_BATCH_BYTES,
    UNBOUNDED_ROWS_BYTES_MAX,
    ArrowBatchLimits,
    ArrowBatchSize,
)
from spark_2pc_sink.sink.job.receipts import TaskReceipt, TaskResults

SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
ROWS_MAX = 1_000
#: Of rows that are as heavy as they may be.
ROW_BYTES = UNBOUNDED_ROWS_BYTES_MAX // ROWS_MAX
UNBOUNDED = str(2**31 - 1)
BOUNDED = str(ARROW_BATCH_BYTES)


class Session:
    """A session's settings, and what was set."""

    def __init__(self, value: str | None = None, rows_max: int | None = ROWS_MAX, *, counts: bool = True) -> None:
        self.conf: Any = self
        self._counts = counts
        self.values = {SETTING: value, ROWS_SETTING: None if rows_max is None else str(rows_max)}
        self.sets: list[tuple[str, str]] = []

    def isModifiable(self, name: str) -> bool:  # noqa: N802 - Spark's name
        return name == ROWS_SETTING or self._counts

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


def test_the_first_batch_is_bounded_and_the_setting_is_set_once() -> None:
    session, bound = Session(), ArrowBatchSize()
    for _ in range(2):
        bound.apply(session)  # type: ignore[arg-type]
    assert session.sets == [(SETTING, BOUNDED)]


@pytest.mark.parametrize(
    ("tasks", "roomy"),
    [
        ([], True),
        ([(10, 10 * ROW_BYTES), (1, ROW_BYTES)], True),
        ([(10, 10 * ROW_BYTES), (1, 2 * ROW_BYTES)], False),
    ],
)
def test_what_the_last_batch_says_of_the_next(tasks: list[tuple[int, int]], roomy: bool) -> None:
    before = ArrowBatchLimits(rows=ROWS_MAX, rows_given=True, roomy=not roomy)
    assert before.after(read(*tasks)) == replace(before, roomy=roomy)


def test_where_spark_does_not_count_rows_it_counts_bytes() -> None:
    assert not ArrowBatchLimits(rows=0, rows_given=True).after(read((1, 1))).roomy


def test_where_there_is_room_the_bound_is_lifted() -> None:
    session, bound = Session(), ArrowBatchSize()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read((1, 1)))
    bound.apply(session)  # type: ignore[arg-type]
    assert session.sets == [(SETTING, BOUNDED), (SETTING, UNBOUNDED)]


def test_after_a_failure_or_a_small_batch_it_is_bounded_again() -> None:
    session, bound = Session(), ArrowBatchSize()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read((1, 1)))
    bound.apply(session)  # type: ignore[arg-type]
    bound.forget()
    bound.apply(session)  # type: ignore[arg-type]
    assert session.value == BOUNDED


def test_what_somebody_else_has_set_stays() -> None:
    session, bound = Session("1000000"), ArrowBatchSize()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read((1, 1)))
    bound.apply(session)  # type: ignore[arg-type]
    assert (session.value, session.sets) == ("1000000", [])


@pytest.mark.parametrize(
    ("row_bytes", "rows"),
    [
        (1, AIMED_ROWS_MAX),
        (ARROW_BATCH_BYTES // AIMED_ROWS_MAX, AIMED_ROWS_MAX),
        (ARROW_BATCH_BYTES // AIMED_ROWS_MAX + 1, AIMED_ROWS_MAX // 2),
        (ARROW_BATCH_BYTES // AIMED_ROWS_MIN, AIMED_ROWS_MIN),
        (ARROW_BATCH_BYTES, AIMED_ROWS_MIN),
    ],
)
def test_heavy_rows_come_in_small_numbers(row_bytes: int, rows: int) -> None:
    # There is room by the number that is chosen, not by Spark's own.
    roomy = rows * row_bytes <= UNBOUNDED_ROWS_BYTES_MAX
    assert ArrowBatchLimits().after(read((3, 3 * row_bytes))) == ArrowBatchLimits(rows=rows, roomy=roomy)


@pytest.mark.parametrize(("counts", "rows"), [(True, [str(AIMED_ROWS_MAX)]), (False, [])])
def test_the_first_batch_has_many_rows_in_an_arrow_batch_where_bytes_bound_it(counts: bool, rows: list[str]) -> None:
    session, bound = Session(rows_max=None, counts=counts), ArrowBatchSize()
    bound.apply(session)  # type: ignore[arg-type]
    assert [value for name, value in session.sets if name == ROWS_SETTING] == rows


def test_a_number_of_rows_is_set_once() -> None:
    session, bound = Session(rows_max=None), ArrowBatchSize()
    bound.apply(session)  # type: ignore[arg-type]
    for _ in range(2):
        bound.note(read((3, 3)))
        bound.apply(session)  # type: ignore[arg-type]
    assert [value for name, value in session.sets if name == ROWS_SETTING] == [str(AIMED_ROWS_MAX)]


def test_a_batch_without_rows_says_nothing_about_their_number() -> None:
    """So it is not more than Spark's own, where the next batch has no bound of bytes."""
    assert ArrowBatchLimits(rows=512).after(read()) == ArrowBatchLimits(rows=512, roomy=True)
    assert ArrowBatchLimits(rows=AIMED_ROWS_MAX).after(read()) == ArrowBatchLimits(rows=10_000, roomy=True)
