"""Threads that run one at a time: each driver has one, and only the one whose turn it is goes on.

Threads, because the product's code is synchronous and must be stopped in the middle of any call. Passing the turn
costs about 20 µs; it is passed only where a schedule says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final


class DriverCrashedError(BaseException):
    """Unwinds a driver that dies. Not an `Exception`: the product's handlers must not see it."""


class _Worker:
    """A thread that runs one job after another; threads are costly to start."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.job: Callable[[], None] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.turn.acquire()
            job, self.job = self.job, None
            if job is None:
                raise AssertionError("woken without a job")
            job()


_idle: Final[list[_Worker]] = []


class Actor:
    """Something that runs, is stopped, and goes on.

    Args:
        body: what it runs; must catch its own errors.
    """

    def __init__(self, body: Callable[[], None]) -> None:
        self.finished = False
        self._body = body
        self._worker: _Worker | None = None
        self._back = threading.Lock()
        self._back.acquire()
        self._killed = False
        self._error: BaseException | None = None

    def resume(self) -> None:
        """Let it run until it stops or ends; called by the scheduler.

        Raises:
            BaseException: what its body raised.
        """
        worker = self._worker
        if worker is None:
            worker = self._worker = _idle.pop() if _idle else _Worker()
            worker.job = self._run
        worker.turn.release()
        self._back.acquire()
        if self.finished:
            _idle.append(worker)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Give the turn back; called by the actor itself.

        Raises:
            DriverCrashedError: it is not to go on.
        """
        worker = self._worker
        if worker is None:
            raise AssertionError("only what runs can stop")
        self._back.release()
        worker.turn.acquire()
        if self._killed:
            raise DriverCrashedError

    def kill(self) -> None:
        """Unwind it; called by the scheduler."""
        if self._worker is not None and not self.finished:
            self._killed = True
            self.resume()

    def _run(self) -> None:
        try:
            self._body()
        except DriverCrashedError:
            self._error = None
        except BaseException as error:  # noqa: BLE001 - handed to the scheduler, which raises it
            self._error = error
        self.finished = True
        self._back.release()
