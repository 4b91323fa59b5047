"""The bound on a wait for an answer."""

from __future__ import annotations

import socket
import time

from jdbc_state.watchdog import Watchdog


def test_a_late_answer_ends_the_wait() -> None:
    """C1: the reader of a silent connection is woken, and sees its end."""
    near, far = socket.socketpair()
    begun = time.monotonic()
    with far, near, Watchdog(near, 100):
        near.settimeout(10)
        assert near.recv(1) == b""
    assert 0.05 < time.monotonic() - begun < 5


def test_an_answer_in_time_leaves_the_connection_as_it_is() -> None:
    near, far = socket.socketpair()
    with far, near:
        with Watchdog(near, 60_000):
            far.send(b"x")
            assert near.recv(1) == b"x"
        far.send(b"y")
        assert near.recv(1) == b"y"


def test_a_connection_that_ended_meanwhile_is_no_error() -> None:
    with socket.socket() as unconnected:
        watchdog = Watchdog(unconnected, 1)
        with watchdog:
            time.sleep(0.1)
        assert unconnected.fileno() >= 0
