"""Passwords that are requested for each connection, because they change."""

from __future__ import annotations

from collections.abc import Callable

import psycopg2

from jdbc_state.errors import ConfigurationError


class PasswordUnavailableError(psycopg2.OperationalError):
    """No password is available, so a connection cannot be made; handled like any other connection failure."""


def ask(password: Callable[[], str]) -> str:
    """The password for a new connection.

    Raises:
        PasswordUnavailableError: the function failed, which may be temporary.
        ConfigurationError: it returned something else.
    """
    try:
        given: object = password()
    except Exception as error:
        raise PasswordUnavailableError(f"asking for the password failed: {type(error).__name__}: {error}") from error
    if not isinstance(given, str) or not given:
        raise ConfigurationError(
            option="database_password",
            value="***",
            rule="the function returned something else than a text that is not empty",
            remedy="return the password",
        )
    return given
