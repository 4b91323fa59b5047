"""Connections to the database: why one could not be made, its passwords, and who on the way can read it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from jdbc_state import SqlStateStore, StoreSettings, connections
from jdbc_state.connections import Database, driver_connection, readable_by
from jdbc_state.errors import ConfigurationError, DatabaseRefusedError, DatabaseUnreachableError
from tests.conftest import or_skip
from tests.harness.acts import later
from tests.harness.helper_servers import far_postgres, own_address
from tests.harness.remedies import sql_in
from tests.harness.sql import ChangingRole, changing_role, run_sql
from tests.integration.state.state_stores import CLUSTER, ID, QUERY, RUN, settings, sql_store

pytestmark = pytest.mark.postgres
#: Quoted as a name, and as a part of a URL.
ROLE: Final = "Job-Rôle"
_REFUSED = r"require_tls=True: connections must use TLS.* does not; nothing was written; add sslmode=verify-full"


def connect(url: URL) -> None:
    """Connect once, or raise why not."""
    with closing(Database(url.render_as_string(hide_password=False), StoreSettings())) as database:
        database.open("test").close()


@pytest.fixture
def role(database: str) -> Iterator[URL]:
    run_sql(database, f"CREATE ROLE \"{ROLE}\" LOGIN PASSWORD 'right'")
    yield make_url(database).set(username=ROLE, password="right")
    run_sql(database, f'DROP OWNED BY "{ROLE}"; DROP ROLE "{ROLE}"')


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
        run_sql(admin, statement.format(database=f'"{role.database}"'))
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
    run_sql(admin, statement.replace("<password>", str(wrong.password)))
    connect(wrong)
    if "database" in url:
        run_sql(admin, statement.replace("CREATE", "DROP"))


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


# --- passwords -----------------------------------------------------------------------------------------------------


@pytest.fixture
def changing(database: str) -> Iterator[ChangingRole]:
    with changing_role(database) as made:
        yield made


def text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def test_each_new_connection_has_the_password_of_now(changing: ChangingRole) -> None:
    """Of the claim's, of the decision's, and of the session that shows the driver."""
    with sql_store(text(changing.url), password=changing.ask) as store:
        for run in range(3):
            claimed = store.claim(transactional_id=ID, cluster_id=CLUSTER, query_id=QUERY, run_id=f"{RUN}-{run}")
            asked = changing.asked
            changing.change()
            assert store.read(ID) == claimed  # by the connection that is kept
            assert changing.asked == asked
            changing.cut()
            assert store.read(ID) is not None  # by a new one
            assert changing.asked > asked


def test_a_password_that_comes_late_is_waited_for(changing: ChangingRole) -> None:
    """As a server that is away for a moment: the one who gives passwords may be, too."""
    with sql_store(text(changing.url), password=changing.ask) as store:
        assert store.read(ID) is None
        right, changing.password = changing.password, "of yesterday"
        changing.cut()
        with later(0.5, setattr, changing, "password", right):
            assert store.read(ID) is None


def test_the_log_of_the_pool_has_no_secret_of_the_url(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy logs each connection by its repr, in which psycopg2 hides the password and nothing else."""
    monkeypatch.setattr(logging.getLogger("sqlalchemy"), "level", logging.DEBUG)
    url = text(make_url(database).update_query_dict({"sslpassword": "planted"}))
    with caplog.at_level(logging.DEBUG):
        kept = Database(url, settings())
        kept.open("look").close()
        alone = kept.session("look")
        kept.close()
    assert "Created new connection <connection 0x" in caplog.text
    assert "planted" not in caplog.text + repr(alone) + str(alone)
    alone.close()


# --- who can read it ----------------------------------------------------------------------------------------------


@pytest.fixture
def far(pytestconfig: pytest.Config, database: str, tmp_path: Path) -> Iterator[str]:
    """The database by an address of this machine's network card."""
    or_skip(pytestconfig, own_address)
    with far_postgres(database, tmp_path) as url:
        yield url


def by(url: str, **query: str) -> str:
    return make_url(url).update_query_dict(query).render_as_string(hide_password=False)


def test_one_warning_however_many_connections(
    far: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the engine and past it, in several stores; the remedy is in it, and the password is not."""
    monkeypatch.setattr(connections, "_told", set())
    for _ in range(2):
        database = Database(by(far, sslmode="disable"), StoreSettings())
        with database.open("look") as first, database.open("look") as second:
            assert driver_connection(first) is not driver_connection(second)
        database.session("look").close()
        database.close()
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "has no TLS" in line
    assert "sslmode=verify-full and sslrootcert=FILE" in line
    assert str(make_url(far).password) not in line


def test_what_is_required_is_refused_before_anything_is_written(far: str) -> None:
    """Also where the URL does not say so: libpq's default goes on without TLS where a server has none."""
    url, settings = by(far, sslmode="disable"), StoreSettings(require_tls=True)
    store = SqlStateStore(url, settings)
    with pytest.raises(ConfigurationError, match=_REFUSED):
        store.claim(transactional_id="t", cluster_id="c", query_id="q", run_id="r")
    with pytest.raises(ConfigurationError, match=_REFUSED):
        store.database.session("look")
    store.close()
    assert run_sql(far, "SELECT relname FROM pg_class WHERE relname ~ '^kafka'") == []


def test_what_has_tls_is_taken(far: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the name compared, and by libpq's default at a server that has TLS."""
    verified = by(far, sslmode="verify-full", sslrootcert=str(tmp_path / "authority.pem"))
    for url in (verified, far):
        database = Database(url, StoreSettings(require_tls=True))
        with database.open("look") as connection:
            driver = driver_connection(connection)
            assert (driver.info.ssl_attribute("library"), readable_by(driver)) == ("OpenSSL", None)
        database.close()
    assert "has no TLS" not in caplog.text


def test_what_does_not_leave_the_machine_needs_none(database: str, caplog: pytest.LogCaptureFixture) -> None:
    """Loopback, and a Unix socket."""
    (directory,) = run_sql(database, "SHOW unix_socket_directories")[0]
    loopback = make_url(database)
    socket = loopback.set(host=None, port=None).update_query_dict({"host": str(directory), "port": str(loopback.port)})
    for url in (loopback, socket):
        text = by(url.render_as_string(hide_password=False), sslmode="disable")
        direct = Database(text, StoreSettings(require_tls=True))
        direct.open("look").close()
        direct.close()
    assert "has no TLS" not in caplog.text
