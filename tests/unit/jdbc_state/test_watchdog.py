"""The bound on a wait for an answer."""

from __future__ import annotations

import os
import socket
import threading
import time

import psycopg2
import pytest

from jdbc_state import watchdog
from jdbc_state.watchdog import Watchdog, cut
from spark_2pc_sink.testing import wait_until

DEADLINE_S = 10


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
        cut(unconnected)
        assert unconnected.fileno() >= 0


def test_each_block_has_its_own_bound() -> None:
    """Also one that is entered while the thread waits for a later one."""
    patient, patient_far = socket.socketpair()
    near, far = socket.socketpair()
    with patient, patient_far, near, far, Watchdog(patient, 60_000), Watchdog(near, 100):
        near.settimeout(DEADLINE_S)
        assert near.recv(1) == b""
        patient_far.send(b"x")
        assert patient.recv(1) == b"x"


def test_no_thread_is_left_where_there_is_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watchdog._Watch()
    monkeypatch.setattr(watchdog, "_watch", watch)
    monkeypatch.setattr(watchdog, "_IDLE_S", 0.05)
    near, far = socket.socketpair()
    with near, far:
        with Watchdog(near, 60_000):
            assert watch._thread is not None
            time.sleep(0.1)  # so that it waits for the end of the block
        wait_until(lambda: watch._thread is None, deadline_s=DEADLINE_S, what="the end of the thread")
        with Watchdog(near, 100):
            near.settimeout(DEADLINE_S)
            assert near.recv(1) == b""


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_was_forked_watches_by_itself() -> None:
    """It has none of its parent's threads."""
    near, far = socket.socketpair()
    with near, far, Watchdog(near, 60_000):
        child = os.fork()
        if child == 0:
            answer = b"none"
            try:
                own, _own_far = socket.socketpair()
                own.settimeout(DEADLINE_S)
                with Watchdog(own, 100):
                    answer = own.recv(1)
            finally:
                os._exit(len(answer))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def no_thread(*_: object) -> None:
    message = "can't start new thread"
    raise RuntimeError(message)


def test_a_connection_that_cannot_be_watched_is_as_one_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """D16: nothing is begun on it that could not be bounded, and no file is left open."""
    near, far = socket.socketpair()
    with near, far:
        monkeypatch.setattr(watchdog, "_watch", watchdog._Watch())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            watched = Watchdog(near, 60_000)
            with pytest.raises(psycopg2.OperationalError, match="cannot be watched: can't start new thread"), watched:
                pass
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(watched._descriptor)
            assert not watchdog._watch._ends_s
        with Watchdog(near, 60_000):
            far.send(b"x")
            assert near.recv(1) == b"x"
    with pytest.raises(psycopg2.OperationalError, match=r"cannot be watched: .*Bad file descriptor"):
        Watchdog(near, 60_000)
