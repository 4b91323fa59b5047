"""Connections to the database: refused, cut, kept from request to request, and the passwords for them."""

from __future__ import annotations

import errno
import os

import psycopg2
import pytest

from jdbc_state import StoreSettings, claiming
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


def test_a_function_returns_the_password_or_is_tried_again_like_a_server_that_is_away() -> None:
    def password() -> str:
        raise RuntimeError("no metadata service")

    assert ask_password(lambda: " s3cret ") == " s3cret "
    text = "the password function failed: RuntimeError: no metadata service"
    with pytest.raises(PasswordUnavailableError, match=text) as caught:
        ask_password(password)
    assert isinstance(caught.value, psycopg2.OperationalError)


@pytest.mark.parametrize("returned", [None, "", b"bytes"])
def test_a_function_that_returns_no_text_is_refused(returned: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ask_password(lambda: returned)  # type: ignore[arg-type,return-value]
    assert "bytes" not in str(caught.value)
