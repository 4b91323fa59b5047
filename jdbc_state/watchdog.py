"""Watchdog: cuts a connection whose answer is late, in cases that no server time-out covers."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

import psycopg2.extensions

#: Longest sleep of the watching thread, which ends if it then has nothing to watch.
_IDLE_S: Final = 10.0


class HasFileNumber(Protocol):
    def fileno(self) -> int:
        """The socket's file descriptor."""


class Watchdog:
    """Shuts a connection's socket down when the block exceeds its time limit.

    psycopg2 waits for an answer without a limit. A server that is stopped (not dead: TCP still acknowledges) or a
    COMMIT that waits for a lost synchronous standby would block the driver forever; statement_timeout covers neither.
    After the cut psycopg2 raises as for any lost connection; so does a process that cannot open more files, or start a
    thread, before the block begins.
    """

    def __init__(self, connection: HasFileNumber, limit_ms: int) -> None:
        # A duplicate: psycopg2 may close its own descriptor meanwhile, and the number may be reused. Not as a socket:
        # making one takes five times as long, and hardly any is cut.
        try:
            self._descriptor = os.dup(connection.fileno())
        except OSError as error:
            raise psycopg2.OperationalError(f"the connection cannot be watched: {error}") from error
        self._limit_s = limit_ms / 1000

    def __enter__(self) -> None:
        try:
            _watch.add(self._descriptor, time.monotonic() + self._limit_s)
        except RuntimeError as error:
            self.__exit__()
            raise psycopg2.OperationalError(f"the connection cannot be watched: {error}") from error

    def __exit__(self, *_: object) -> None:
        _watch.remove(self._descriptor)
        os.close(self._descriptor)


class _WatchedCursor(psycopg2.extensions.cursor):
    """A cursor that waits for each of its answers under a `Watchdog`."""

    def __init__(self, connection: psycopg2.extensions.connection, name: str | None = None, *, limit_ms: int) -> None:
        super().__init__(connection, name)
        self._limit_ms = limit_ms

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 - psycopg2's name of it
        with Watchdog(self.connection, self._limit_ms):
            super().execute(query, vars)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        with Watchdog(self.connection, self._limit_ms):
            super().copy_expert(sql, file, size)


@contextmanager
def watched_statements(connection: psycopg2.extensions.connection, limit_ms: int) -> Iterator[None]:
    """Limit each statement whose cursor is made in the block; COMMIT and ROLLBACK need a `Watchdog` of their own."""
    # It acts on the connection, so no statement can be forgotten.
    before = connection.cursor_factory
    connection.cursor_factory = partial(_WatchedCursor, limit_ms=limit_ms)
    try:
        yield
    finally:
        connection.cursor_factory = before


class _Watch:
    """All guarded blocks of this process, and one thread for all: starting one costs more than the guarded request."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset in a forked process, which inherits the lock's state, but not the thread."""
        self._changed = threading.Condition()
        self._ends_s: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at_s = 0.0

    def add(self, watched: int, end_s: float) -> None:
        """Cut the connection with this descriptor at ``end_s``, on the monotonic clock, unless removed earlier."""
        with self._changed:
            self._ends_s[watched] = end_s
            if self._thread is None:
                # Set when it runs: a thread that could not be started must not count as watching.
                thread = threading.Thread(target=self._run, name="jdbc_state watchdog", daemon=True)
                thread.start()
                self._thread = thread
            elif end_s < self._wakes_at_s:
                # Most limits are later than that, and waking the thread for each costs as much as a block.
                self._changed.notify()

    def remove(self, watched: int) -> None:
        """Stop watching it: when this returns, no cut is in progress."""
        with self._changed:
            self._ends_s.pop(watched, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                for watched in [one for one, end_s in self._ends_s.items() if end_s <= now_s]:
                    del self._ends_s[watched]
                    _shut_down(watched)
                # A block that exits does not wake this thread either, so it checks periodically.
                self._wakes_at_s = min([now_s + _IDLE_S, *self._ends_s.values()])
                if not self._changed.wait(self._wakes_at_s - now_s) and not self._ends_s:
                    break
            self._thread = None


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.reset)


def cut(connection: HasFileNumber) -> None:
    """Shut a connection's socket down now: a wait for an answer on it then fails."""
    _shut_down(connection.fileno())


def _shut_down(descriptor: int) -> None:
    # An error means that the connection ended at the same moment, as intended.
    with socket.socket(fileno=os.dup(descriptor)) as connected, suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
