"""Connections to the database: refused, cut, kept from request to request, and the passwords for them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
from sqlalchemy.exc import DisconnectionError

from jdbc_state import StoreSettings, claiming, connections
from jdbc_state.claiming import retry_when_cut
from jdbc_state.connections import Database, PasswordUnavailableError, ask_password
from jdbc_state.errors import ConfigurationError, DatabaseUnreachableError, StateStoreError


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
    monkeypatch.setattr(claiming, "CLAIM_ATTEMPTS_MAX", 3)
    begun: list[int] = []

    def step() -> None:
        begun.append(1)
        raise StateStoreError(operation="claiming", detail="cut", sqlstate="08006")

    with pytest.raises(StateStoreError, match="cut"):
        retry_when_cut(step, end_s=float("inf"))
    assert begun == [1, 1, 1]


def test_a_text_is_the_password() -> None:
    assert ask_password(lambda: " s3cret ") == " s3cret "


def test_a_function_that_fails_is_tried_again_like_a_server_that_is_away() -> None:
    def password() -> str:
        raise RuntimeError("no metadata service")

    text = "the password function failed: RuntimeError: no metadata service"
    with pytest.raises(PasswordUnavailableError, match=text) as caught:
        ask_password(password)
    assert isinstance(caught.value, psycopg2.OperationalError)


@pytest.mark.parametrize("returned", [None, "", b"bytes"])
def test_a_function_that_returns_no_text_is_refused(returned: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ask_password(lambda: returned)  # type: ignore[arg-type,return-value]
    assert "bytes" not in str(caught.value)


class Driver:
    """A connection of psycopg2's as far as it matters here, and the server's end of its socket."""

    def __init__(self) -> None:
        self._ours, self.server = socket.socketpair()
        self.autocommit = False
        self.asked = 0
        self.lost = False

    def fileno(self) -> int:
        return self._ours.fileno()

    def cursor(self) -> Driver:
        return self

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    def execute(self, _statement: str) -> None:
        self.asked += 1
        if self.lost:
            raise psycopg2.OperationalError("gone")

    def close(self) -> None:
        self._ours.close()
        self.server.close()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


@pytest.fixture
def record() -> Any:
    """What SQLAlchemy's pool keeps beside a connection."""
    return SimpleNamespace(info={})


def lend(driver: Driver, record: Any) -> None:
    connections._check_kept(driver, record, None, limit_ms=1_000)


def test_a_new_one_and_one_that_was_lent_a_moment_ago_are_not_asked(driver: Driver, record: Any) -> None:
    """A small batch has three requests within some milliseconds, and the question is one more for each."""
    for _ in range(3):
        lend(driver, record)
    assert driver.asked == 0


def test_one_that_was_kept_for_longer_is_asked(driver: Driver, record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: a link that was cut without a word says nothing."""
    lend(driver, record)
    monkeypatch.setattr(connections, "_TRUSTED_S", 0.0)
    lend(driver, record)
    assert (driver.asked, driver.autocommit) == (1, False)


@pytest.mark.parametrize("word", [b"FATAL", b""])
def test_one_whose_server_has_said_something_since_is_asked(driver: Driver, record: Any, word: bytes) -> None:
    """C11: a server that ends a session says so, or only closes it."""
    lend(driver, record)
    driver.server.sendall(word)
    if not word:
        driver.server.shutdown(socket.SHUT_WR)
    driver.lost = True
    with pytest.raises(DisconnectionError, match="gone"):
        lend(driver, record)
    assert driver.asked == 1
