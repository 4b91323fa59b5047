"""The URL of the database: what is refused, and how libpq's programs are told the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
from psycopg2.extensions import parse_dsn
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.database import as_libpq_uri, parse_database_url


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (
            "jdbc:postgresql://h:5432/shop?user=u&password=secret&ssl=true",
            "postgresql://u:***@h:5432/shop?sslmode=require",
        ),
        ("jdbc:postgresql://h/shop?user=u&currentSchema=s", "postgresql://u@h/shop?options=-csearch_path%3Ds"),
        ("jdbc:postgresql://a:1,b:2/shop", "postgresql:///shop?host=a%3A1&host=b%3A2"),
        ("postgres://u:secret@h/shop", "postgresql://u:***@h/shop"),
        ("postgresql+asyncpg://u:secret@h/shop?ssl=require", "postgresql://u:***@h/shop?sslmode=require"),
        ("host=h port=5433 dbname=shop user=u password=secret", "postgresql://u:***@h:5433/shop"),
        ("u:secret@h:5432/shop", "postgresql://u:***@h:5432/shop"),
        ("postgres:5432/shop", "postgresql://postgres:5432/shop"),
    ],
)
def test_the_remedy_of_another_form_is_the_url_that_means_the_same(given: str, url: str) -> None:
    """It is taken, with the password in the place that it names."""
    with pytest.raises(ConfigurationError) as raised:
        parse_database_url(given)
    found = re.search("pass '(.*?)'", raised.value.remedy)
    assert found is not None
    assert found[1] == url
    assert "secret" not in str(raised.value)
    assert ("in place of ***" in raised.value.remedy) == ("***" in url)
    taken = make_url(parse_database_url(url.replace("***", "secret")))
    assert taken.password == ("secret" if "***" in url else None)


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
