"""Passwords that are asked for: what a function gives, and what each failure says."""

from __future__ import annotations

import psycopg2
import pytest

from jdbc_state.connections import PasswordUnavailableError, ask_password
from jdbc_state.errors import ConfigurationError


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
