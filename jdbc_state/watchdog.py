"""A bound for waits that no time-out of the server can bound: the answer to a request that was sent."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Protocol

#: How long leaving waits for a cut that has just begun; it is one system call.
_JOIN_S = 5.0


class HasFileNumber(Protocol):
    """A connection of psycopg2, as far as it matters here."""

    def fileno(self) -> int:
        """The socket's file descriptor."""


class Watchdog:
    """Shuts a connection's socket down when the block takes longer than it may.

    psycopg2 waits for an answer without a limit. A server that is stopped (not dead: TCP still acknowledges) or a
    COMMIT that waits for a lost synchronous standby would hold the driver for ever; statement_timeout covers
    neither. After the cut psycopg2 raises as for any lost connection.

    Args:
        connection: psycopg2's.
        limit_ms: milliseconds until the cut.
    """

    def __init__(self, connection: HasFileNumber, limit_ms: int) -> None:
        # A duplicate: psycopg2 may close its own descriptor meanwhile, and the number may be somebody else's then.
        self._socket = socket.socket(fileno=socket.dup(connection.fileno()))
        self._timer = threading.Timer(limit_ms / 1000, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join(_JOIN_S)
        self._socket.close()

    def _cut(self) -> None:
        _shut_down(self._socket)


def cut(connection: HasFileNumber) -> None:
    """Shut a connection's socket down now: whoever waits for an answer on it gets an error."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as duplicate:
        _shut_down(duplicate)


def _shut_down(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The connection ended by itself at the same moment, which is what was wanted.
        return
