"""Spark counts the bytes of Arrow batches unless the batch before shows that it need not."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.sink.arrow_bound import (
    ARROW_BATCH_BYTES_MAX,
    UNBOUNDED_BYTES_MAX,
    UNBOUNDED_ROWS_BYTES_MAX,
    ArrowBound,
)
from spark_2pc_sink.sink.receipts import EncodedSource, TaskReceipt, TaskResults

SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
ROWS_MAX = 1_000
#: Of rows that are as heavy as they may be.
ROW_BYTES = UNBOUNDED_ROWS_BYTES_MAX // ROWS_MAX
UNBOUNDED = str(2**31 - 1)
BOUNDED = str(ARROW_BATCH_BYTES_MAX)


class Session:
    """A session's settings, and how often the bound was set."""

    def __init__(self, value: str | None = None, rows_max: int = ROWS_MAX) -> None:
        self.conf: Any = self
        self.value = value
        self.rows_max = rows_max
        self.times = 0

    def get(self, name: str, default: str) -> str:
        if name == ROWS_SETTING:
            return str(self.rows_max)
        assert name == SETTING
        return default if self.value is None else self.value

    def set(self, name: str, value: str) -> None:
        assert name == SETTING
        self.value = value
        self.times += 1


def read(*sources: tuple[int, ...]) -> TaskResults:
    """What tasks return that read so many rows, and bytes of Arrow, and perhaps made so many bytes of pieces."""
    accounts = tuple(
        EncodedSource(source=number, rows=rows, arrow_bytes=arrow_bytes, piece_bytes=sum(pieces))
        for number, (rows, arrow_bytes, *pieces) in enumerate(sources)
    )
    return TaskResults((TaskReceipt(task=0, sources=accounts),))


def test_the_first_batch_is_bounded_and_the_setting_is_set_once() -> None:
    session, bound = Session(), ArrowBound()
    assert [bound.apply(session), bound.apply(session)] == [None, None]  # type: ignore[arg-type]
    assert (session.value, session.times) == (BOUNDED, 1)


@pytest.mark.parametrize(
    ("sources", "roomy"),
    [
        ([(1_000_000, 0, UNBOUNDED_BYTES_MAX // 2)] * 2, True),
        ([], True),
        ([(1_000_000, 0, UNBOUNDED_BYTES_MAX // 2), (1_000_000, 0, UNBOUNDED_BYTES_MAX // 2 + 1)], False),
        # Many rows, of which little is left when they are compressed.
        ([(100_000_000, 10 * UNBOUNDED_BYTES_MAX, UNBOUNDED_BYTES_MAX)], True),
        ([(10, 10 * ROW_BYTES), (1, ROW_BYTES)], True),
        ([(10, 10 * ROW_BYTES), (1, 2 * ROW_BYTES)], False),
    ],
)
def test_what_the_last_batch_says_of_the_next(sources: list[tuple[int, ...]], roomy: bool) -> None:
    session, bound = Session(), ArrowBound()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read(*sources))
    assert bound.apply(session) == (UNBOUNDED_BYTES_MAX if roomy else None)  # type: ignore[arg-type]
    assert session.value == (UNBOUNDED if roomy else BOUNDED)


def test_where_spark_does_not_count_rows_it_counts_bytes() -> None:
    session, bound = Session(rows_max=0), ArrowBound()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read((1, 1)))
    assert bound.apply(session) is None  # type: ignore[arg-type]
    assert session.value == BOUNDED


def test_after_a_failure_or_a_small_batch_it_is_bounded_again() -> None:
    session, bound = Session(), ArrowBound()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read((1, 1)))
    bound.apply(session)  # type: ignore[arg-type]
    bound.forget()
    assert bound.apply(session) is None  # type: ignore[arg-type]
    assert session.value == BOUNDED


def test_what_somebody_else_has_set_stays() -> None:
    session, bound = Session("1000000"), ArrowBound()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read((1, 1)))
    assert bound.apply(session) is None  # type: ignore[arg-type]
    assert (session.value, session.times) == ("1000000", 0)
