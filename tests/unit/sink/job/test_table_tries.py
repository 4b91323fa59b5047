"""Tries of a table: while tasks still send rows, each part once, and nothing is left running after the job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_2pc_sink.sink.job import batch_sift
from spark_2pc_sink.sink.job.batch_sift import TableTries
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, LocalStream
from spark_2pc_sink.sink.stream.background_task import AttemptThreads
from spark_2pc_sink.testing import wait_until


class TryFailedError(Exception):
    """What the database raises."""


class JobFailedError(Exception):
    """What Spark raises."""


class Table:
    """Takes the place of `TableSift`."""

    def __init__(self, connection: object, _table: object, *, output: str, most: int) -> None:
        assert (connection, output) == ("connection", "table t")
        self.tried: list[bytes] = []
        self.most = most

    @property
    def too_many(self) -> bool:
        return len(self.tried) > self.most

    def take(self, part: bytes) -> None:
        if part == b"!":
            raise TryFailedError
        self.tried.append(part)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> AttemptInput:
    """No database: each byte is a part."""
    monkeypatch.setattr(batch_sift, "TableSift", Table)
    parts = SimpleNamespace(all_of=lambda sent: [bytes([byte]) for byte in sent])
    monkeypatch.setattr(batch_sift, "SiftedPart", parts)
    return AttemptInput(2**20, 2)


def tries(source: AttemptInput, *, most: int = 100) -> TableTries:
    opened: list[Any] = ["connection"]
    table: Any = None
    return TableTries(source, table, opened.pop, "table t", most)


def send(source: AttemptInput, task: int, parts: bytes) -> None:
    stream = LocalStream(source, task, 7)
    stream.rows(0, parts, len(parts))
    stream.finish()


def test_parts_are_tried_while_the_job_runs(source: AttemptInput) -> None:
    """The transaction is opened once."""
    running = tries(source)
    with AttemptThreads(source, running.task):
        send(source, 0, b"ab")
        wait_until(lambda: source.held_bytes == 0, deadline_s=10, what="the parts to be tried")
        send(source, 1, b"c")
    table: Any = running.finish()
    assert table.tried == [b"a", b"b", b"c"]


def test_no_more_is_tried_than_is_wanted(source: AttemptInput) -> None:
    """What comes after that is taken, so that tasks end, and not looked at."""
    running = tries(source, most=1)
    with AttemptThreads(source, running.task):
        send(source, 0, b"abcd")
    table: Any = running.finish()
    assert (table.tried, source.held_bytes) == ([b"a", b"b"], 0)


def test_the_error_of_a_try_ends_the_tasks(source: AttemptInput) -> None:
    with pytest.raises(TryFailedError), AttemptThreads(source, tries(source).task):
        send(source, 0, b"!")
    assert isinstance(source.failure, TryFailedError)


def test_a_job_that_failed_leaves_nothing_running(source: AttemptInput) -> None:
    running = tries(source)
    with pytest.raises(JobFailedError), AttemptThreads(source, running.task):
        raise JobFailedError
    assert not running.task._thread.is_alive()
