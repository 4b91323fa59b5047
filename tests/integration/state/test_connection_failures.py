"""Why no connection to the database could be made, and the remedy, which is carried out: then there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from jdbc_state import StoreSettings
from jdbc_state.connections import Database
from jdbc_state.errors import DatabaseRefusedError, DatabaseUnreachableError
from tests.harness.remedies import sql_in
from tests.integration.postgres.database_tables import run, run_alone

pytestmark = pytest.mark.postgres
#: Quoted as a name, and as a part of a URL.
ROLE: Final = "Job-Rôle"


def connect(url: URL) -> None:
    """Connect once, or raise why not."""
    with closing(Database(url.render_as_string(hide_password=False), StoreSettings())) as database:
        database.open("test").close()


@pytest.fixture
def role(database: str) -> Iterator[URL]:
    """The URL of a role that may log in."""
    run(database, f"CREATE ROLE \"{ROLE}\" LOGIN PASSWORD 'right'")
    yield make_url(database).set(username=ROLE, password="right")
    run(database, f'DROP OWNED BY "{ROLE}"', f'DROP ROLE "{ROLE}"')


@pytest.mark.parametrize(
    ("broken", "url", "said", "remedy"),
    [
        ((), {"password": "wrong"}, "password authentication failed", f'ALTER ROLE "{ROLE}" PASSWORD'),
        ((f'ALTER ROLE "{ROLE}" NOLOGIN',), {}, "not permitted to log in", f'ALTER ROLE "{ROLE}" LOGIN'),
        ((), {"database": 'Shop "2"'}, "does not exist", 'CREATE DATABASE "Shop ""2"""'),
        (("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",), {}, "permission denied", "GRANT CONNECT ON DATABASE"),
        ((f'ALTER ROLE "{ROLE}" CONNECTION LIMIT 0',), {}, "too many connections", ""),
    ],
)
def test_what_a_server_refuses_is_named_and_its_sql_remedies_it(
    broken: tuple[str, ...], url: dict[str, Any], said: str, remedy: str, role: URL, database: str
) -> None:
    """Each statement of the message is run by an administrator; then the same URL connects."""
    admin = make_url(database).set(database="postgres").render_as_string(hide_password=False)
    for statement in broken:
        run_alone(admin, statement.format(database=f'"{role.database}"'))
    wrong = role.set(**url)
    with pytest.raises(DatabaseUnreachableError, match=said) as raised:
        connect(wrong)
    assert f"connecting to {wrong.host}:{wrong.port}/{wrong.database}: " in str(raised.value)
    assert isinstance(raised.value, DatabaseRefusedError) == bool(remedy)
    if not remedy:
        assert "CONNECTION LIMIT" in str(raised.value)
        return
    [statement] = sql_in(raised.value)
    assert statement.startswith(remedy)
    run_alone(admin, statement.replace("<password>", str(wrong.password)))
    connect(wrong)
    if "database" in url:
        run_alone(admin, statement.replace("CREATE", "DROP"))


@pytest.mark.parametrize(
    ("url", "said", "remedy"),
    [
        ({"port": 1}, "[Cc]onnection refused", "correct host and port in the URL"),
        (
            {"host": None, "query": {"host": ("127.0.0.1:1", "localhost:2")}},
            "127.0.0.1:1,localhost:2/",
            "correct host and port",
        ),
        ({"host": "no-such-host.invalid"}, "could not translate host name", "Correct the host"),
        ({"query": {"sslmode": "require"}}, "does not support SSL", "remove sslmode from the URL"),
        ({"query": {"pool_size": "5"}}, "invalid connection option", "only parameters of libpq"),
        ({"query": {"service": "nowhere"}, "host": None}, "nowhere", "Define it in ~/.pg_service.conf"),
        ({"query": {"target_session_attrs": "standby"}}, "standby", "target_session_attrs"),
        ({"password": None}, "no password supplied", "database_password or password_command"),
    ],
)
def test_what_cannot_be_reached_has_a_remedy(url: dict[str, Any], said: str, remedy: str, role: URL) -> None:
    """The network, TLS, the URL's own parameters, and a password that is missing."""
    with pytest.raises(DatabaseUnreachableError, match=said) as raised:
        connect(role._replace(**url))
    assert remedy in str(raised.value)
    assert "right" not in str(raised.value)
