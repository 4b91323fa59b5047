"""The PostgreSQL server under test: databases of one's own, and the ways it breaks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from spark_2pc_sink.testing import CapabilityError, PostgresServer, ServerError
from spark_2pc_sink.testing.postgres import BINARIES_VARIABLE, find_binaries
from tests.harness.providers import Database

StartPostgres = Callable[..., Database]


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection that commits at the end and gives up connecting after ten seconds."""
    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 10})
    with engine.begin() as connection:
        yield connection


def scalar(url: str, query: str) -> object:
    with connected(url) as connection:
        return connection.execute(text(query)).scalar()


def test_committed_rows_survive_kill_and_open_transactions_do_not(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    url = server.create_database("d")
    with connected(url) as connection:
        connection.execute(text("CREATE TABLE t AS SELECT 1 AS a"))
    with pytest.raises(OperationalError), connected(url) as connection:  # noqa: PT012 - the kill is in the middle
        connection.execute(text("INSERT INTO t VALUES (2)"))
        server.kill()
        connection.execute(text("INSERT INTO t VALUES (3)"))
    with pytest.raises(OperationalError):
        scalar(url, "SELECT 1")
    server.start()
    assert scalar(url, "SELECT array_agg(a) FROM t") == [1]
    server.restart()
    assert scalar(url, "SELECT array_agg(a) FROM t") == [1]


def test_paused_answers_nobody(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    server.pause()
    with pytest.raises(OperationalError, match="timeout"):
        scalar(server.url, "SELECT 1")
    server.resume()
    assert scalar(server.url, "SELECT 1") == 1


def test_says_what_is_wrong_when_it_does_not_start() -> None:
    server = PostgresServer(settings={"max_connections": "many"})
    try:
        with pytest.raises(ServerError, match="max_connections"):
            server.start()
    finally:
        server.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a server as another user")
def test_binaries_below_a_private_folder_are_copied(tmp_path: Path) -> None:
    """A virtual environment in root's home cannot be read by the user as whom the server has to run."""
    installation = find_binaries().parent
    package = installation.parent
    private = tmp_path / "private"
    shutil.copytree(installation, private / package.name / installation.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, private / libraries.name)
    private.chmod(0o700)
    with PostgresServer(binaries=private / package.name / installation.name / "bin") as server:
        executable = psutil.Process(server.pid).exe()
        assert scalar(server.url, "SELECT 1") == 1
    assert not executable.startswith(str(tmp_path))


def test_says_what_to_do_without_binaries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And copies nothing: the folder above the one that is wrong may hold anything, and any amount of it."""
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    os.mkfifo(tmp_path / "a named pipe cannot be copied")
    monkeypatch.setenv(BINARIES_VARIABLE, str(wrong))
    with pytest.raises(CapabilityError, match=rf"no PostgreSQL runs from {wrong}: .*; set {BINARIES_VARIABLE} to"):
        PostgresServer()
