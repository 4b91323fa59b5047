"""Rows into the table while the job runs: begun late, never twice, nothing left running behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from spark_2pc_sink.errors import BatchRetryError, ConstraintError
from spark_2pc_sink.sink.contract.receipts import EncodeReceipt, LaneRows
from spark_2pc_sink.sink.contract.row_transfer import Transfer
from spark_2pc_sink.sink.transfer.copy_channel import CopyChannel, TransferEnd
from spark_2pc_sink.sink.transfer.copy_thread import CopyTarget, CopyThread
from spark_2pc_sink.sink.written_rows import WrittenRows
from spark_2pc_sink.testing import wait_until

ATTEMPT = ("orders", 1, 1)
REFUSED = ConstraintError(table="t", constraint="t_pkey", column="", sqlstate="23505", detail="twice")


class JobFailedError(Exception):
    """What Spark raises."""


class Table:
    """Counts what is written; can refuse, or wait for a server that does not answer."""

    def __init__(self) -> None:
        self.copied: list[bytes] = []
        self.finished: int | None = None
        self.done: list[str] = []
        self.refuse: Exception | None = None
        self.answer: socket.socket | None = None
        self.waiting = threading.Event()

    def copy(self, stream: Sequence[Any]) -> int:
        if self.answer is not None:
            self.waiting.set()
            self.answer.recv(1)
            raise ConnectionResetError
        if self.refuse is not None:
            raise self.refuse
        self.copied.append(b"".join(stream))
        return len(stream)

    def delete(self) -> None:
        self.done.append("delete")

    def write(self) -> None:
        self.done.append("write")

    def finish(self, rows: int) -> WrittenRows:
        self.done.append("finish")
        self.finished = rows
        return WrittenRows(given=rows, written=rows)

    def forget(self) -> None:
        """Nothing is beside it."""


class Staged:
    """What tasks have staged: one stream for each look."""

    def __init__(self) -> None:
        self.streams: list[bytes] = []
        self.taken: dict[int, tuple[int, int]] = {}
        self.looks = 0
        self.look: Callable[[], None] = lambda: None

    def arrived(self) -> Iterator[Sequence[Any]]:
        self.looks += 1
        self.look()
        while self.streams:
            self.taken[1] = (7, self.taken.get(1, (7, 0))[1] + 1)
            yield [self.streams.pop(0)]


def copied(task: int, rows: int, *, task_attempt: int, staged_parts: int = 0, lane: int = 0) -> EncodeReceipt:
    """What a task says that has encoded so many rows for one table."""
    return EncodeReceipt(task, task_attempt=task_attempt, lanes={lane: LaneRows(rows, rows, staged_parts)})


class Rig:
    """A channel, a table, and what is between them."""

    def __init__(self) -> None:
        self.channel = CopyChannel()
        self.table = Table()
        self.staged = Staged()
        self.begun = 0
        self.refusals = 0
        self.server, self.client = socket.socketpair()

    def open_decision(self) -> Any:
        self.begun += 1
        return SimpleNamespace(connection=SimpleNamespace(driver_connection=self.client))

    def copying(self, *, look_s: float = 60.0, idle_s: float = 60.0, early: bool = False) -> CopyThread:
        staged: Any = self.staged
        return CopyThread(
            self.channel,
            ATTEMPT,
            open_decision=self.open_decision,
            targets=[CopyTarget(0, lambda _: self.table, lambda _: staged)],
            look_s=look_s,
            idle_s=idle_s,
            early=early,
            refused=self.refused,
        )

    def refused(self) -> None:
        self.refusals += 1

    def finish(self, copy: CopyThread, *encoded: EncodeReceipt) -> int:
        return copy.finish(self.open_decision(), encoded).given

    def run(self, *attempts: int, fail: bool = False) -> None:
        """A job of one encode_task that runs so often, and fails at last or not."""
        with self.copying():
            for task_attempt in attempts:
                self.arrive(0, b"a", task_attempt=task_attempt)
            if self.table.answer is not None:
                assert self.table.waiting.wait(10)
            if fail:
                raise JobFailedError

    def arrive(self, encode_task: int, *stream: bytes, task_attempt: int = 7) -> None:
        self.channel.extend([Transfer(ATTEMPT, encode_task, task_attempt, stream)])


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    before = set(threading.enumerate())
    yield made
    # A thread that another test has left may end meanwhile.
    assert set(threading.enumerate()) <= before
    made.server.close()
    made.client.close()


def test_rows_are_written_while_the_job_runs(rig: Rig) -> None:
    with rig.copying() as copy:
        rig.arrive(0, b"a", b"b")
        wait_until(lambda: rig.table.copied == [b"ab"], deadline_s=10, what="the first rows")
        rig.arrive(1, b"c")
    assert rig.table.copied == [b"ab", b"c"]
    assert rig.begun == 1
    encoded = (
        copied(0, 2, task_attempt=7),
        copied(1, 1, task_attempt=7),
        EncodeReceipt(2),
    )
    assert rig.finish(copy, *encoded) == rig.table.finished == 3
    assert rig.table.done == ["delete", "write", "finish"]
    assert rig.staged.looks == 0


def test_a_job_that_is_quick_begins_no_transaction(rig: Rig) -> None:
    with rig.copying() as copy:
        pass
    assert (rig.begun, rig.staged.looks) == (0, 0)
    assert rig.finish(copy, EncodeReceipt(0)) == 0


def test_a_transaction_can_be_begun_before_the_rows(rig: Rig) -> None:
    with rig.copying(early=True):
        wait_until(lambda: rig.begun == 1, deadline_s=10, what="the transaction")
        rig.arrive(0, b"a")
    assert (rig.begun, rig.table.copied) == (1, [b"a"])


def test_rows_that_are_staged_are_written_while_the_job_runs(rig: Rig) -> None:
    """And those that come last, when it has ended."""
    with rig.copying(look_s=0.001) as copy:
        wait_until(lambda: rig.staged.looks > 1, deadline_s=10, what="a look without anything to see")
        rig.staged.streams += [b"a", b"b"]
        wait_until(lambda: rig.table.copied == [b"a", b"b"], deadline_s=10, what="the staged rows")
        rig.arrive(0, b"c")
    rig.staged.streams.append(b"d")
    encoded = (
        copied(0, 1, task_attempt=7),
        copied(1, 3, task_attempt=7, staged_parts=3),
    )
    assert rig.finish(copy, *encoded) == 4
    assert rig.table.copied == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("look_s", "idle_s", "took_s", "streams", "pauses_s"),
    [
        (0.05, 20, 0.001, [], [0.05, 0.05]),
        (0.05, 20, 0.02, [], [0.05, 0.08]),
        (0.05, 20, 0.9, [], [0.05, 0.2]),
        (0.05, 20, 0.9, [b"a"], [0.05, 0.05]),
        (3.0, 20, 0.9, [], [3.0, 3.0]),
        (0.05, 0.1, 0.9, [], [0.05, 0.1]),
        (0.05, 0.01, 0.9, [], [0.01, 0.01]),
    ],
    ids=["quick", "long", "very long", "long, with rows", "long, and rare already", "hasty server", "hastier server"],
)
def test_a_look_that_takes_long_and_finds_nothing_is_followed_by_a_pause(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    look_s: float,
    idle_s: float,
    took_s: float,
    streams: list[bytes],
    pauses_s: list[float],
) -> None:
    """Each task's table is asked in it: of hundreds of tasks, the server would do nothing else. It hears in time."""
    now, pauses = [100.0], []
    monkeypatch.setattr("spark_2pc_sink.sink.transfer.looks.time", SimpleNamespace(monotonic=lambda: now[0]))

    def look() -> None:
        now[0] += took_s

    def take(_: object, pause: float) -> TransferEnd | None:
        pauses.append(pause)
        return TransferEnd(ATTEMPT) if len(pauses) == 2 else None

    rig.staged.look, rig.staged.streams = look, streams
    monkeypatch.setattr(rig.channel, "take", take)
    with rig.copying(look_s=look_s, idle_s=idle_s):
        pass
    assert pauses == pytest.approx(pauses_s)


def test_a_transaction_that_cannot_be_begun_ends_the_attempt(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no row ever comes."""

    def refuse() -> Any:
        raise REFUSED

    monkeypatch.setattr(rig, "open_decision", refuse)
    with pytest.raises(ConstraintError), rig.copying(early=True):
        pass


def test_an_encode_task_that_ran_again_ends_the_attempt(rig: Rig) -> None:
    """A4: its rows would be in the table twice, or be refused by a key as if they were wrong."""
    with pytest.raises(BatchRetryError, match="encode task 0 ran again"):
        rig.run(7, 8)
    assert rig.table.copied == [b"a"]


@pytest.mark.parametrize(
    "encoded",
    [
        [],
        [copied(0, 1, task_attempt=8)],
        [copied(0, 1, task_attempt=7, staged_parts=1)],
        [
            copied(0, 1, task_attempt=7),
            copied(1, 1, task_attempt=7),
        ],
    ],
    ids=["of no encode task", "of another attempt", "by another way", "one encode task missing"],
)
def test_rows_that_are_not_those_of_the_receipts_are_refused(rig: Rig, encoded: list[EncodeReceipt]) -> None:
    """B22: Spark's job says what was made, and PostgreSQL what has arrived."""
    with rig.copying() as copy:
        rig.arrive(0, b"a")
    with pytest.raises(BatchRetryError, match="were written"):
        rig.finish(copy, *encoded)
    assert rig.table.finished is None


def test_a_refused_row_ends_the_attempt(rig: Rig) -> None:
    """Unless the job has failed by itself: its error says why there are no more rows."""
    rig.table.refuse = REFUSED
    with pytest.raises(ConstraintError):
        rig.run(7)
    with pytest.raises(JobFailedError):
        rig.run(7, fail=True)


def test_tasks_are_told_of_a_refused_row_while_they_run_and_their_end_does_not_hide_it(rig: Rig) -> None:
    rig.table.refuse = REFUSED

    def run_and_end_early() -> None:
        rig.arrive(0, b"a")
        wait_until(lambda: rig.refusals == 1, deadline_s=10, what="the word to the tasks")
        raise BatchRetryError(reason="the database has refused a row of this attempt")

    with pytest.raises(ConstraintError) as refused, rig.copying():
        run_and_end_early()
    assert refused.value is REFUSED
    assert isinstance(refused.value.__cause__, BatchRetryError)


def test_nothing_is_told_of_any_other_end(rig: Rig) -> None:
    with pytest.raises(BatchRetryError, match="encode task 0 ran again"):
        rig.run(7, 8)
    assert rig.refusals == 0


def test_a_job_that_fails_does_not_wait_for_a_server_that_does_not_answer(rig: Rig) -> None:
    """The connection is cut, so that nobody uses it when the transaction is rolled back."""
    rig.table.answer = rig.client
    with pytest.raises(JobFailedError):
        rig.run(7, fail=True)


def test_a_connection_that_waits_for_rows_says_so(rig: Rig) -> None:
    """The server ends transactions that are idle for long, and a slow task is no reason to."""
    with rig.copying(look_s=0.001):
        rig.arrive(0, b"a")
        wait_until(lambda: rig.staged.looks > 1, deadline_s=10, what="signs of life")
