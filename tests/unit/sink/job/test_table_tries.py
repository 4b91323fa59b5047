"""Tries of a table: begun while tasks still stage rows, each part once, and nothing left running behind the job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.sink.contract.sift_plan import SiftReceipt
from spark_2pc_sink.sink.job import table_tries
from spark_2pc_sink.sink.job.table_tries import TableTries
from spark_2pc_sink.testing import wait_until


class TryFailedError(Exception):
    """What the database raises."""


class JobFailedError(Exception):
    """What Spark raises."""


class Staged:
    """What tasks have staged so far."""

    look_s = 0.001

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.taken: dict[int, tuple[int, int]] = {}

    def staged(self, _connection: object) -> Staged:
        return self

    def arrived(self) -> Iterator[str]:
        while self.parts:
            self.taken[0] = (7, self.taken.get(0, (7, 0))[1] + 1)
            yield self.parts.pop(0)


class Table:
    """Takes the place of `TableSift`."""

    made: Table

    def __init__(self, connection: object, _table: object, *, output: str, most: int) -> None:
        assert (connection, output) == ("connection", "table t")
        self.tried: list[str] = []
        self.threads: set[str] = set()
        self.most = most
        Table.made = self

    @property
    def too_many(self) -> bool:
        return len(self.tried) > self.most

    def take(self, part: str) -> None:
        if part == "fails":
            raise TryFailedError
        self.threads.add(threading.current_thread().name)
        self.tried.append(part)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Staged:
    """No database: parts are their own rows."""
    monkeypatch.setattr(table_tries, "TableSift", Table)
    monkeypatch.setattr(table_tries, "SiftedPart", SimpleNamespace(of=lambda part: part))
    return Staged()


def tries(staged: Staged, *, most: int = 100) -> TableTries:
    plan: Any = SimpleNamespace(lanes=[SimpleNamespace(row_encoder=SimpleNamespace(staging=staged))])
    opened: list[Any] = ["connection"]
    table: Any = None
    return TableTries(table, plan, opened.pop, "table t", most)


def said(parts: int) -> list[SiftReceipt]:
    return [SiftReceipt(0, 7, staged_parts=parts), SiftReceipt(1, 8)]


def test_parts_are_tried_while_the_job_runs_and_the_last_behind_it(staged: Staged) -> None:
    """The transaction is opened once."""
    with tries(staged) as running:
        staged.parts += ["first", "second"]
        wait_until(lambda: staged.taken == {0: (7, 2)}, deadline_s=10, what="the parts to be tried")
    staged.parts.append("last")
    table: Any = running.finish(said(3))
    assert table.tried == ["first", "second", "last"]
    assert table.threads == {"spark_2pc_sink sift", threading.current_thread().name}


def test_what_was_tried_is_what_the_tasks_say(staged: Staged) -> None:
    """A task that ran again has staged its rows twice, or others."""
    with tries(staged) as running:
        staged.parts.append("part")
    with pytest.raises(BatchRetryError, match=r"tasks staged rows as \{0: \(7, 2\)\} says.*and \{0: \(7, 1\)\} were"):
        running.finish(said(2))


def test_no_more_is_tried_than_is_wanted(staged: Staged) -> None:
    """Nor is it compared with the tasks, since not all of it was read."""
    staged.parts += ["a", "b", "c", "d"]
    with tries(staged, most=1) as running:
        wait_until(lambda: len(staged.parts) == 2, deadline_s=10, what="two parts to be tried")
    table: Any = running.finish(said(4))
    assert table.tried == ["a", "b"]


def test_the_error_of_a_try_comes_with_the_end_of_the_job(staged: Staged) -> None:
    staged.parts.append("fails")
    with pytest.raises(TryFailedError), tries(staged):
        wait_until(lambda: not staged.parts, deadline_s=10, what="the part to be tried")


def test_a_job_that_failed_leaves_nothing_running(staged: Staged) -> None:
    with pytest.raises(JobFailedError), tries(staged) as running:
        raise JobFailedError
    assert not running._beside._thread.is_alive()


def test_rows_for_no_table_are_refused() -> None:
    plan: Any = SimpleNamespace(lanes=[SimpleNamespace(row_encoder=None)])
    nobody: Any = None
    with pytest.raises(LocalProtocolError, match="no table"):
        TableTries(nobody, plan, nobody, "", 1)


@pytest.mark.parametrize(("parts", "pause_s"), [([], 0.2), (["a"], Staged.look_s)])
def test_a_look_that_takes_long_and_finds_nothing_is_followed_by_a_pause(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, parts: list[str], pause_s: float
) -> None:
    clock = SimpleNamespace(monotonic=iter(range(100, 200)).__next__)
    monkeypatch.setattr("spark_2pc_sink.sink.transfer.looks.time", clock)
    pauses: list[float] = []

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) == 2

    staged.parts = parts
    searching: Any = tries(staged)
    searching._ended = SimpleNamespace(wait=wait)
    searching._take_arriving()
    assert pauses == [Staged.look_s, pause_s]
