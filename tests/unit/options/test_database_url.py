"""The URL of the database: what is refused, and how libpq's programs are told the same."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg2.extensions import parse_dsn
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2

from spark_2pc_sink.options.database import as_libpq_uri, parse_database_url


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        (" postgresql+psycopg2://u:p%40@h:1/d ", "postgresql+psycopg2://u:p%40@h:1/d"),
        ("postgresql+psycopg://u:p@h/d", "postgresql+psycopg2://u:p@h/d"),
        ("postgresql:///d?host=/run/pg", "postgresql+psycopg2:///d?host=%2Frun%2Fpg"),
        ("postgresql:///d?host=a&host=b&port=7", "postgresql+psycopg2:///d?host=a&host=b&port=7"),
    ],
)
def test_a_url_names_its_driver(given: str, parsed: str) -> None:
    assert parse_database_url(given) == parsed


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("postgresql+psycopg2://db:5433/d?sslmode=require&sslpassword=x", "postgresql://db:5433/d?sslmode=require"),
        ("postgresql://a%20b@db/d?options=-c%20jit%3Doff", "postgresql://a%20b@db/d?options=-c%20jit%3Doff"),
        (
            "postgresql://job@/shop?host=a:5432&host=b:5433&target_session_attrs=read-write",
            "postgresql://job@a:5432,b:5433/shop?target_session_attrs=read-write",
        ),
        ("postgresql://job@/shop?host=/var/run", "postgresql://job@%2Fvar%2Frun/shop"),
        ("postgresql://[::1]:5432/my shop", "postgresql://[::1]:5432/my%20shop"),
    ],
)
def test_libpq_is_told_the_same(url: str, uri: str) -> None:
    """What SQLAlchemy writes has spaces and plus signs, and names a host twice: psql refuses it, or goes elsewhere."""
    assert as_libpq_uri(url) == uri
    dialect: Any = PGDialect_psycopg2
    _, told = dialect().create_connect_args(make_url(url))
    public = {name: str(value) for name, value in told.items() if "password" not in name}
    assert parse_dsn(uri) == public
