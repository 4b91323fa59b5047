"""A connection that is kept from request to request, and when the server is asked whether it still is one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
from sqlalchemy.exc import DisconnectionError

from jdbc_state import connections


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
