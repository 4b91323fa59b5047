"""Spark counts the bytes of Arrow batches unless the batch before shows that it need not."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.sink.arrow_bound import ARROW_BATCH_BYTES_MAX, UNBOUNDED_BYTES_MAX, ArrowBound
from spark_2pc_sink.sink.receipts import EncodedSource, TaskReceipt, TaskResults

SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
UNBOUNDED = str(2**31 - 1)
BOUNDED = str(ARROW_BATCH_BYTES_MAX)


class Session:
    """A session's settings, and how often one was set."""

    def __init__(self, value: str | None = None) -> None:
        self.conf: Any = self
        self.value = value
        self.times = 0

    def get(self, name: str, default: str) -> str:
        assert name == SETTING
        return default if self.value is None else self.value

    def set(self, name: str, value: str) -> None:
        assert name == SETTING
        self.value = value
        self.times += 1


def read(*sources: tuple[int, int]) -> TaskResults:
    """What tasks return that read so many bytes of Arrow, and the largest batch of them."""
    accounts = tuple(
        EncodedSource(source=number, arrow_bytes=total, arrow_batch_bytes=largest)
        for number, (total, largest) in enumerate(sources)
    )
    return TaskResults((TaskReceipt(task=0, sources=accounts),), {})


def test_the_first_batch_is_bounded_and_the_setting_is_set_once() -> None:
    session, bound = Session(), ArrowBound()
    assert [bound.apply(session), bound.apply(session)] == [None, None]  # type: ignore[arg-type]
    assert (session.value, session.times) == (BOUNDED, 1)


@pytest.mark.parametrize(
    ("sources", "one_task", "roomy"),
    [
        ([(UNBOUNDED_BYTES_MAX // 2, ARROW_BATCH_BYTES_MAX // 2)] * 2, False, True),
        ([], False, True),
        ([(UNBOUNDED_BYTES_MAX // 2, 1), (UNBOUNDED_BYTES_MAX // 2 + 1, 1)], False, False),
        ([(1, 1), (1, ARROW_BATCH_BYTES_MAX // 2 + 1)], False, False),
        ([(1, 1)], True, False),
    ],
)
def test_what_the_last_batch_says_of_the_next(sources: list[tuple[int, int]], one_task: bool, roomy: bool) -> None:
    session, bound = Session(), ArrowBound()
    bound.apply(session)  # type: ignore[arg-type]
    bound.note(read(*sources), one_task=one_task)
    assert bound.apply(session) == (UNBOUNDED_BYTES_MAX if roomy else None)  # type: ignore[arg-type]
    assert session.value == (UNBOUNDED if roomy else BOUNDED)


def test_after_a_failure_it_is_bounded_again() -> None:
    session, bound = Session(), ArrowBound()
    bound.note(read((1, 1)), one_task=False)
    bound.apply(session)  # type: ignore[arg-type]
    bound.note_failed()
    assert bound.apply(session) is None  # type: ignore[arg-type]
    assert session.value == BOUNDED


def test_what_somebody_else_has_set_stays() -> None:
    session, bound = Session("1000000"), ArrowBound()
    bound.note(read((1, 1)), one_task=False)
    assert bound.apply(session) is None  # type: ignore[arg-type]
    assert (session.value, session.times) == ("1000000", 0)
