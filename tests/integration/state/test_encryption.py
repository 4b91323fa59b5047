"""Connections to the database that others on the way can read: warned of, or refused before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from jdbc_state import SqlStateStore, StoreSettings, connections
from jdbc_state.connections import Database, driver_connection, readable_by
from jdbc_state.errors import ConfigurationError
from tests.conftest import or_skip
from tests.harness.helper_servers import far_postgres, own_address
from tests.integration.postgres import database_tables

pytestmark = pytest.mark.postgres
_REFUSED = r"require_tls=True: connections must use TLS.* does not; nothing was written; add sslmode=verify-full"


@pytest.fixture
def far(pytestconfig: pytest.Config, database: str, tmp_path: Path) -> Iterator[str]:
    """The database by an address of this machine's network card."""
    or_skip(pytestconfig, own_address)
    with far_postgres(database, tmp_path) as url:
        yield url


def by(url: str, **query: str) -> str:
    return make_url(url).update_query_dict(query).render_as_string(hide_password=False)


def tables(url: str) -> list[tuple[object, ...]]:
    return database_tables.rows(url, "SELECT relname FROM pg_class WHERE relname ~ '^kafka'")


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
    assert tables(far) == []


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
    (directory,) = database_tables.rows(database, "SHOW unix_socket_directories")[0]
    loopback = make_url(database)
    socket = loopback.set(host=None, port=None).update_query_dict({"host": str(directory), "port": str(loopback.port)})
    for url in (loopback, socket):
        text = by(url.render_as_string(hide_password=False), sslmode="disable")
        direct = Database(text, StoreSettings(require_tls=True))
        direct.open("look").close()
        direct.close()
    assert "has no TLS" not in caplog.text
