"""The URL of the database: what is refused, and how libpq's programs are told the same."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg2.extensions import parse_dsn
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.database import as_libpq_uri, parse_database_url


@pytest.mark.parametrize("password", ["p@secret", "@secret", "p@secret@"])
def test_a_password_with_an_at_that_is_not_encoded_is_in_no_message(password: str) -> None:
    """SQLAlchemy takes what is behind its @ for the host, which errors of connections name."""
    with pytest.raises(ConfigurationError, match="a host has no @") as raised:
        parse_database_url(f"postgresql://u:{password}@h:5432/d")
    assert "secret" not in str(raised.value)
    assert "%40" in str(raised.value)


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("postgresql://ops:secret@db/shop", "postgresql://ops@db/shop"),
        ("postgresql+psycopg2://db:5433/d?sslmode=require&sslpassword=x", "postgresql://db:5433/d?sslmode=require"),
        ("postgresql://a%20b@db/d?options=-c%20jit%3Doff", "postgresql://a%20b@db/d?options=-c%20jit%3Doff"),
        (
            "postgresql://job@/shop?host=a:5432&host=b:5433&target_session_attrs=read-write",
            "postgresql://job@a:5432,b:5433/shop?target_session_attrs=read-write",
        ),
        ("postgresql://job@/shop?host=/var/run", "postgresql://job@%2Fvar%2Frun/shop"),
        ("postgresql://[::1]:5432/my shop", "postgresql://[::1]:5432/my%20shop"),
        ("postgresql:///shop", "postgresql:///shop"),
    ],
)
def test_libpq_is_told_the_same(url: str, uri: str) -> None:
    """What SQLAlchemy writes has spaces and plus signs, and names a host twice: psql refuses it, or goes elsewhere."""
    assert as_libpq_uri(url) == uri
    dialect: Any = PGDialect_psycopg2
    _, told = dialect().create_connect_args(make_url(url))
    public = {name: str(value) for name, value in told.items() if "password" not in name}
    assert parse_dsn(uri) == public
