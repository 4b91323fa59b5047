"""Connections to the database: refused, cut, their passwords, what an error means, and the bound on a wait."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from types import SimpleNamespace

import psycopg2
import pytest
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from jdbc_state import StoreSettings, store, watchdog
from jdbc_state.connections import Database, ask_password
from jdbc_state.errors import ConfigurationError, DatabaseUnreachableError, StateStoreError
from jdbc_state.sqlstate import is_retriable, sqlstate_of, store_error, translated
from jdbc_state.store import retry_when_cut
from jdbc_state.watchdog import Watchdog, cut
from spark_2pc_sink.testing import wait_until


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Database:
    """Libpq says nothing when it cannot make a socket."""

    def refuse(*_: object, **__: object) -> None:
        raise psycopg2.OperationalError("")

    monkeypatch.setattr(psycopg2, "connect", refuse)
    return Database("postgresql://127.0.0.1:1/shop", StoreSettings())


def test_an_error_without_a_word_is_told_as_one(silent: Database) -> None:
    with pytest.raises(DatabaseUnreachableError, match=r"libpq gave no reason$"):
        silent.session("look")


def test_it_says_so_where_the_process_has_no_more_files(silent: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DatabaseUnreachableError, match="reason: Too many open files; raise the limit of open files"):
        silent.session("look")


def test_a_claim_does_not_wait_again_for_a_database_that_was_waited_for() -> None:
    begun: list[int] = []

    def step() -> None:
        begun.append(1)
        raise DatabaseUnreachableError(operation="claiming", detail="refused", retriable=True)

    with pytest.raises(DatabaseUnreachableError, match="refused"):
        retry_when_cut(step, end_s=float("inf"))
    assert begun == [1]


def test_a_connection_that_is_always_cut_at_once_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the deadline is."""
    monkeypatch.setattr(store, "CLAIM_ATTEMPTS_MAX", 3)
    begun: list[int] = []

    def step() -> None:
        begun.append(1)
        raise StateStoreError(operation="claiming", detail="cut", sqlstate="08006")

    with pytest.raises(StateStoreError, match="cut"):
        retry_when_cut(step, end_s=float("inf"))
    assert begun == [1, 1, 1]


def test_a_function_returns_the_password_or_is_tried_again_like_a_server_that_is_away() -> None:
    def password() -> str:
        raise RuntimeError("no metadata service")

    assert ask_password(lambda: " s3cret ") == " s3cret "
    text = "the password function failed: RuntimeError: no metadata service"
    with pytest.raises(psycopg2.OperationalError, match=text):
        ask_password(password)


@pytest.mark.parametrize("returned", [None, "", b"bytes"])
def test_a_function_that_returns_no_text_is_refused(returned: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ask_password(lambda: returned)  # type: ignore[arg-type,return-value]
    assert "bytes" not in str(caught.value)


@pytest.mark.parametrize(
    "sqlstate",
    [
        "40001",
        "40P01",
        "55P03",
        "25P03",
        "57P01",
        "57P02",
        "57P03",
        "08000",
        "08003",
        "08006",
        "08007",
        "53000",
        "53100",
        "53200",
        "53300",
        "53400",
    ],
)
def test_what_may_succeed_when_it_is_run_again(sqlstate: str) -> None:
    """C1, C7, C12."""
    assert is_retriable(sqlstate)


@pytest.mark.parametrize(
    ("error", "sqlstate"),
    [
        (psycopg2.OperationalError("server closed the connection unexpectedly"), "08006"),
        (psycopg2.InterfaceError("connection already closed"), "08006"),
        (psycopg2.DatabaseError("error with status PGRES_TUPLES_OK and no message from the libpq"), "08006"),
        (psycopg2.ProgrammingError("can't execute COPY FROM: use the copy_from() method instead"), ""),
        (DBAPIError("SELECT 1", None, psycopg2.OperationalError("SSL SYSCALL error: EOF detected")), "08006"),
        (InvalidRequestError("no connection"), ""),
        (RuntimeError(), ""),
    ],
)
def test_a_connection_that_broke_has_a_code(error: Exception, sqlstate: str) -> None:
    """C1: libpq gives none when there was no answer that could have carried one."""
    assert sqlstate_of(error) == sqlstate


def test_errors_of_the_driver_are_translated_and_others_pass() -> None:
    with pytest.raises(StateStoreError, match="claim: lost") as raised, translated("claim"):
        raise psycopg2.OperationalError("lost")
    assert (raised.value.sqlstate, raised.value.retriable) == ("08006", True)
    with pytest.raises(ZeroDivisionError), translated("claim"):
        raise ZeroDivisionError
    assert not store_error("claim", RuntimeError("odd")).retriable


@pytest.mark.parametrize(
    ("sqlstate", "source_function", "remedy"),
    [
        ("42501", "aclcheck_error", "Have its owner grant the role"),
        ("42501", "ExecWithCheckOptions", "DISABLE ROW LEVEL SECURITY"),
        ("25006", "PreventCommandIfReadOnly", "default_transaction_read_only"),
    ],
)
def test_what_a_person_settles_has_its_remedy(sqlstate: str, source_function: str, remedy: str) -> None:
    said = {"message_primary": "no", "source_function": source_function}
    refused = type("Refused", (psycopg2.Error,), {"pgcode": sqlstate, "diag": SimpleNamespace(**said)})
    assert remedy in str(store_error("claim", refused()))


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
        wait_until(lambda: watch._thread is None, what="the end of the thread")
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
