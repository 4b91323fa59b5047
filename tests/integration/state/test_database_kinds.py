"""What is behind an address: look-alikes are refused by name, services of PostgreSQL are told with their limits.

A real server answers as they do: in a database of its own, version() is another function, and others are gone. QuestDB
and H2 are tried themselves.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
import pytest

from jdbc_state import SqlStateStore
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.testing import free_port, wait_until
from spark_2pc_sink.testing.java import find_java_home
from spark_2pc_sink.testing.processes import ServerProcess
from tests.conftest import or_skip
from tests.harness.kafka_tools import find_jars
from tests.harness.sql import run_sql
from tests.integration.state.state_stores import role, settings

_OF_17 = "PostgreSQL 17.4 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 12.4.0, 64-bit"
_REDSHIFT = "PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2 20041017, Redshift 1.0.117891"
_WITHOUT_END = ("ALTER FUNCTION pg_catalog.pg_terminate_backend(integer, bigint) RENAME TO gone",)
_OF_DSQL = ("CREATE SCHEMA sys", "CREATE VIEW sys.jobs AS SELECT 1 AS job_id", "DROP EXTENSION plpgsql")
_AURORA = "CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '17.4.2' $$"
_EXTENSION = (
    "INSERT INTO pg_extension SELECT 1, 'NAME', extowner, extnamespace, true, '1', NULL, NULL FROM pg_extension LIMIT 1"
)
_SETTING = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET NAME = ''on''', current_database()); END $$"


def answer(database: str, version: str, *statements: str) -> None:
    """Let a database answer as another kind of database does."""
    run_sql(database, "ALTER FUNCTION pg_catalog.version() RENAME TO version_of_this_server")
    run_sql(database, f"CREATE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql AS $$ SELECT '{version}' $$")
    for statement in statements:
        run_sql(database, statement)


@contextmanager
def store_of(database: str, **changes: str) -> Iterator[SqlStateStore]:
    with closing(SqlStateStore(database, settings(**changes))) as store:
        yield store


@pytest.mark.parametrize(
    ("version", "statements", "name", "lacks"),
    [
        ("CockroachDB CCL v26.3.0 (x86_64-pc-linux-gnu, built 2026/08/10)", (), "CockroachDB", "pg_terminate_backend"),
        ("PostgreSQL 15.12-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu", (), "YugabyteDB", "COPY"),
        (_REDSHIFT, (), "Amazon Redshift", "ON CONFLICT"),
        ("SomeDB 1.0, compatible with PostgreSQL 18", (), "SomeDB", "version()"),
        ("PostgreSQL 16", _OF_DSQL, "Aurora DSQL", "temporary tables"),
        (_OF_17, _WITHOUT_END, "not PostgreSQL", "pg_terminate_backend"),
    ],
)
def test_a_look_alike_is_refused_by_name_and_accepted_by_name(
    database: str, version: str, statements: tuple[str, ...], name: str, lacks: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C20: whatever version number it has. Nothing is made there, and only its own name lets it pass."""
    answer(database, version, *statements)
    for accepted in ("", "OtherDB"):
        with store_of(database, accept_database=accepted) as store, pytest.raises(ConfigurationError) as refused:
            store.prepare_schema()
        assert f"it is {name} ({version}), which lacks " in refused.value.rule
        assert lacks in refused.value.rule
        assert f"accept_database={name!r}" in refused.value.remedy
    assert run_sql(database, "SELECT to_regclass('kafka_transaction_state')") == [(None,)]
    with store_of(database, accept_database=name.upper()) as store:
        store.prepare_schema()
        assert store.read_all() == []
    assert f"is {name}, which lacks" in caplog.text


@contextmanager
def running(name: str, folder: Path, libs: Path) -> Iterator[str]:
    """One of `make look-alikes`, as a process; its URL."""
    port = free_port()
    folder.chmod(0o755)
    java, own = [str(find_java_home() / "bin" / "java"), "-Xmx256m", "-cp", f"{libs}/*"], {}
    if name == "QuestDB":
        words = ["io.questdb.ServerMain", "-d", str(folder)]
        url = f"postgresql://admin:quest@127.0.0.1:{port}/qdb"
        own = {"QDB_PG_NET_BIND_TO": f"127.0.0.1:{port}", "QDB_TELEMETRY_ENABLED": "false"}
        own |= {f"QDB_{each}_ENABLED": "false" for each in ("HTTP", "HTTP_MIN", "LINE_TCP", "LINE_UDP")}
    else:
        words = ["org.h2.tools.Server", "-pg", "-pgPort", str(port), "-ifNotExists", "-baseDir", str(folder)]
        url = f"postgresql://sa:sa@127.0.0.1:{port}/test"

    def answers() -> bool:
        try:
            psycopg2.connect(url).close()
        except psycopg2.OperationalError:
            assert server.running, (folder / "log").read_text()
            return False
        return True

    server = ServerProcess([*java, *words], log=folder / "log", environment={**os.environ, **own})
    try:
        wait_until(answers, deadline_s=60, what=f"{name} to answer")
        yield url
    finally:
        server.end(signal.SIGTERM, deadline_s=20)


@pytest.mark.thorough
@pytest.mark.java
@pytest.mark.parametrize(("name", "lacks"), [("QuestDB", "transactions"), ("H2", "COPY FROM STDIN")])
def test_a_real_look_alike_is_refused_by_name(
    name: str, lacks: str, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """C20: whatever else it answers to a connection."""
    place = {"jar": name.lower(), "target": "look-alikes"}
    libs = or_skip(pytestconfig, lambda: find_jars("LOOK_ALIKES_LIBS", ".cache/look-alikes-1/libs", **place))
    with running(name, tmp_path, libs) as url, store_of(url) as store:
        with pytest.raises(ConfigurationError) as refused:
            store.prepare_schema()
        assert f"it is {name} (PostgreSQL " in refused.value.rule
        assert lacks in refused.value.rule


def test_catalogs_that_are_not_postgresql_s_are_refused(database: str) -> None:
    """C20: of a database that copies version() too."""
    answer(database, _OF_17, "ALTER FUNCTION pg_catalog.to_regclass(text) RENAME TO gone")
    with store_of(database) as store, pytest.raises(ConfigurationError, match=r"not PostgreSQL .*lacks its system cat"):
        store.prepare_schema()


def test_a_question_that_fails_otherwise_says_nothing_about_the_kind(database: str) -> None:
    """C20: such as one that ran into a time-out. The start fails by that error, and not as a refused database."""
    made = "CREATE FUNCTION pg_catalog.to_regclass(text) RETURNS regclass LANGUAGE plpgsql"
    renamed = "ALTER FUNCTION pg_catalog.to_regclass(text) RENAME TO gone"
    answer(database, _OF_17, renamed, f"{made} AS $$ BEGIN RETURN 1 / 0; END $$")
    with store_of(database) as store, pytest.raises(StateStoreError, match="division by zero"):
        store.prepare_schema()


@pytest.mark.parametrize(
    ("statement", "name", "limits"),
    [
        ("SELECT", "PostgreSQL", ""),
        (_AURORA, "PostgreSQL (Amazon Aurora)", "cluster endpoint"),
        (_EXTENSION.replace("NAME", "timescaledb"), "PostgreSQL (TimescaleDB)", "time column"),
        (_SETTING.replace("NAME", "neon.tenant_id"), "PostgreSQL (Neon)", "scales to zero"),
    ],
)
def test_a_service_of_postgresql_is_used_and_its_limits_are_told(
    database: str, statement: str, name: str, limits: str
) -> None:
    """C20: it is PostgreSQL."""
    run_sql(database, statement)
    with store_of(database) as store:
        store.prepare_schema()
        assert store.database.kind is not None
        assert (store.database.kind.name, store.database.kind.lacks) == (name, "")
        assert limits in store.database.kind.limits


def test_a_catalog_that_the_role_may_not_read_is_postgresql_s(database: str) -> None:
    """C20: some operators take it from their roles."""
    run_sql(database, "REVOKE SELECT ON pg_catalog.pg_roles FROM PUBLIC")
    with role(database) as (_, url), store_of(url) as store:
        assert store.read_all() == []
        assert store.database.kind is not None
        assert (store.database.kind.name, store.database.kind.lacks) == ("PostgreSQL", "")
