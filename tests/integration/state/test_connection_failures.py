"""Why no connection to the database could be made, and the remedy, which is carried out: then there is one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import trustme
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from jdbc_state import StoreSettings
from jdbc_state.connections import Database
from jdbc_state.errors import DatabaseRefusedError, DatabaseUnreachableError
from spark_2pc_sink.testing import free_port
from tests.harness.pgbouncer import far_postgres
from tests.harness.remedies import sql_in
from tests.integration.postgres.database_tables import rows, run, run_alone

if TYPE_CHECKING:
    from tests.harness.providers import Database as Server

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
        (("ALTER DATABASE {database} ALLOW_CONNECTIONS false",), {}, "not currently accepting", "ALTER DATABASE"),
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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["", "reject", "ident", "trust"])
def test_the_line_for_pg_hba_lets_the_role_in(start_postgres: Callable[[], Server], method: str) -> None:
    """By the message's own line and statement; a role that is missing is made by its statement."""
    server = start_postgres()
    url = make_url(server.create_database("shop"))
    admin = url.render_as_string(hide_password=False)
    if method != "trust":
        run(admin, f"CREATE ROLE \"{ROLE}\" LOGIN PASSWORD 'right'")
    [(name,)] = rows(admin, "SHOW hba_file")
    file = Path(str(name))
    others = f"host all {url.username} all scram-sha-256\n"
    file.write_text(others + (f"host all all all {method}\n" if method else ""))
    run_alone(admin, "SELECT pg_reload_conf()")
    job = url.set(username=ROLE, password="right")
    with pytest.raises(DatabaseRefusedError) as raised:
        connect(job)
    message = str(raised.value)
    if method == "trust":
        [statement] = sql_in(message)
        run_alone(admin, statement.replace("<password>", "right"))
    elif method == "ident":
        assert "scram-sha-256" in message
        file.write_text(others + "host all all all scram-sha-256\n")
    else:
        line = re.search(r": (host .*? scram-sha-256)", message)
        assert line is not None
        file.write_text(f"{line[1]}\n{file.read_text()}")
    run_alone(admin, "SELECT pg_reload_conf()")
    connect(job)


@pytest.mark.parametrize(
    ("url", "said", "remedy"),
    [
        ({"host": "no-such-host.invalid"}, "could not translate host name", "Correct the host"),
        ({"port": 0}, "Connection refused", "Start the server, or correct host and port"),
        ({"host": None}, "No such file", "Name the host"),
        ({"query": {"sslmode": "require"}}, "does not support SSL", "remove sslmode from the URL"),
        ({"query": {"sslmode": "sure"}}, "invalid sslmode value", "only parameters of libpq"),
        ({"query": {"pool_size": "5"}}, "invalid connection option", "only parameters of libpq"),
        ({"query": {"service": "nowhere"}, "host": None}, "nowhere", "Define it in ~/.pg_service.conf"),
        ({"query": {"target_session_attrs": "standby"}}, "standby", "target_session_attrs"),
        ({"password": None}, "no password supplied", "database_password or password_command"),
    ],
)
def test_what_cannot_be_reached_has_a_remedy(url: dict[str, Any], said: str, remedy: str, role: URL) -> None:
    """The network, TLS, the URL's own parameters, and a password that is missing."""
    if url.get("port") == 0:
        url = {"port": free_port()}
    with pytest.raises(DatabaseUnreachableError, match=said) as raised:
        connect(role._replace(**url))
    assert remedy in str(raised.value)
    assert "right" not in str(raised.value)


def test_the_authority_of_a_certificate_is_asked_for(database: str, tmp_path: Path) -> None:
    """With the file that the remedy asks for, the server is known."""
    with far_postgres(database, tmp_path) as text:
        far = make_url(text)
        trustme.CA().cert_pem.write_to_path(tmp_path / "stranger.pem")
        for name, said in (("none.pem", "does not exist"), ("stranger.pem", "certificate verify failed")):
            query = {"sslmode": "verify-full", "sslrootcert": str(tmp_path / name)}
            with pytest.raises(DatabaseUnreachableError, match=f"{said}.*sslrootcert=<file>"):
                connect(far.set(query=query))
        connect(far.set(query={"sslmode": "verify-full", "sslrootcert": str(tmp_path / "authority.pem")}))
