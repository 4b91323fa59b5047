"""Tables of other versions and databases of other kinds: migrated, used, or refused by name with what helps.

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
from sqlalchemy import make_url

from jdbc_state import SqlStateStore
from jdbc_state.schema import HISTORY_PRIVILEGES, STATE_PRIVILEGES, VERSION
from spark_2pc_sink import cli
from spark_2pc_sink.cli import output
from spark_2pc_sink.errors import ConfigurationError, StateStoreError
from spark_2pc_sink.testing import free_port, wait_until
from spark_2pc_sink.testing.processes import ServerProcess, find_java_home
from tests.conftest import or_skip
from tests.harness.json_contract import read_output
from tests.harness.kafka_tools import find_jars
from tests.harness.sql import run_sql
from tests.integration.state.state_stores import ID, claim, decide, refused, role, row_of, settings, sql_store

#: As the manual of version 1 had it.
VERSION_1 = """
CREATE TABLE public.kafka_transaction_state (
    transactional_id varchar(255) PRIMARY KEY, prepared_transaction_state text NOT NULL,
    status text NOT NULL CHECK (status IN ('none', 'decided', 'done', 'owed')), settled text NOT NULL,
    generation bigint NOT NULL, query_id text, run_id text, batch_id bigint, cluster_id text,
    row_count bigint NOT NULL, record_count bigint NOT NULL, digest text NOT NULL, kafka_offsets jsonb NOT NULL,
    claimed_at timestamptz NOT NULL, decided_at timestamptz, settled_at timestamptz)
"""
ROW_OF_1 = f"""
INSERT INTO kafka_transaction_state VALUES
    ('{ID}', '5:3', 'decided', '', 7, 'query-1', 'run-1', 4, 'cluster-a', 2, 2, 'abc', '{{"orders-0": [5, 6]}}', now(),
     now(), NULL)
"""
COLUMNS = "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('kafka_transaction_state') AND attnum > 0"


#: What every later version has to go on with.
TABLES_OF_1_0_0 = (Path(__file__).parents[2] / "vectors" / "state-1.0.0.sql").read_text()
#: A sink in each status -> the state of its prepared transaction there, its batch, how many are decided, the next one.
SINKS_OF_1_0_0 = {
    "none": ("", None, 0, 0),
    "decided": ("5:0", 0, 1, 1),
    "done": ("5:1", 1, 2, 2),
    "owed": ("5:0", 0, 1, 0),
}


def test_a_job_migrates_a_table_of_its_own_role(database: str) -> None:
    """C13, C15: the row that version 1 has decided is settled by this one, and has a line from then on."""
    run_sql(database, VERSION_1)
    run_sql(database, ROW_OF_1)
    with sql_store(database) as store:
        row = claim(store)
        assert (row.status, row.prepared_transaction_state, row.batch_id, row.generation) == ("decided", "5:3", 4, 8)
        assert (row.topic_ids, row.decision, row.kafka_offsets) == ({}, 0, {"orders-0": (5, 6)})
        assert [line.row for line in store.read_history(ID, last=5)] == [row]
        row = store.mark_done(ID, row.generation, "5:4")
        decide(store, row, prepared="5:4", batch_id=5)
        run_sql(database, "DELETE FROM kafka_transaction_state")
        assert claim(store).batch_id == 5


@pytest.mark.parametrize("status", SINKS_OF_1_0_0)
def test_a_sink_of_1_0_0_goes_on(database: str, status: str) -> None:
    """C15: its row, its history and its actions are read, and its next batch is decided, without a command by hand."""
    name = f"{ID}-{status}"
    run_sql(database, TABLES_OF_1_0_0)
    state, batch_id, batches, next_batch = SINKS_OF_1_0_0[status]
    with sql_store(database) as store:
        row = claim(store, name)
        assert (row.status, row.prepared_transaction_state, row.batch_id) == (status, state, batch_id)
        assert (row.generation, row.row_count) == (2, 0 if batch_id is None else 2 - batch_id)
        lines = store.read_history(name, last=5)
        assert sum(line.event == "decided" for line in lines) == batches
        assert [action.action for action in store.read_actions(name, last=5)].count("claim") == 2
        if status == "decided":
            row = store.mark_done(name, row.generation, "5:9")
        decide(store, row, prepared="5:9", batch_id=next_batch)
        after = row_of(store, name)
        assert (after.status, after.prepared_transaction_state, after.batch_id) == ("decided", "5:9", next_batch)


def test_version_1_works_with_a_migrated_table(database: str) -> None:
    """C15: its statements name the columns that it knows, and the others have defaults."""
    with sql_store(database) as store:
        run_sql(
            database,
            "INSERT INTO kafka_transaction_state (transactional_id, prepared_transaction_state, status, settled, "
            "generation, cluster_id, row_count, record_count, digest, kafka_offsets, claimed_at) "
            "VALUES ('old', '', 'none', '', 1, 'cluster-a', 0, 0, '', '{}', now())",
        )
        run_sql(
            database,
            "UPDATE kafka_transaction_state SET status = 'decided', prepared_transaction_state = '5:0', batch_id = 0",
        )
        row = claim(store, "old")
        assert (row.status, row.topic_ids) == ("decided", {})
        assert store.read_history("old", last=1)[0].row == row


def test_a_job_alters_no_table_of_another_role(database: str) -> None:
    """C15: it says which table, which version, and the command for its owner; and leaves it as it is."""
    run_sql(database, VERSION_1)
    owner = run_sql(database, "SELECT current_user")[0][0]
    with role(database) as (name, url):
        run_sql(database, f"GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state TO {name}")
        run_sql(database, f"GRANT CREATE ON SCHEMA public TO {name}")
        said = refused(url)
        assert "table public.kafka_transaction_state: it has version 1, this package needs version 2" in said
        given = make_url(database)
        assert f"spark-2pc state migrate --database postgresql://{owner}@{given.host}:{given.port}/" in said
        assert "--state-schema public --state-table kafka_transaction_state --history-table" in said
        assert run_sql(database, COLUMNS) == [(16,)]
        with sql_store(database) as admin_store:
            assert admin_store.migrate()[-1].endswith(f"to {name}")
        with sql_store(url) as own:
            decide(own, claim(own))


def test_migrating_waits_for_nobody_without_end(database: str) -> None:
    """C12: a driver of version 1 inside its COPY holds the table; who stands in the way is said."""
    run_sql(database, VERSION_1)
    with sql_store(database, history_batches=0) as other:
        run_sql(database, "ALTER TABLE kafka_transaction_state DROP COLUMN topic_ids, DROP COLUMN decision")
        with other.database.transaction("reader", lock_timeout_ms=0, statement_timeout_ms=0) as connection:
            connection.exec_driver_sql("LOCK TABLE kafka_transaction_state IN SHARE UPDATE EXCLUSIVE MODE")
            with pytest.raises(StateStoreError, match=r"stayed locked for 300 ms.*pid .*Wait for them, and try"):
                SqlStateStore(database, settings(lock_timeout_ms=300)).migrate()
        assert SqlStateStore(database, settings()).migrate() != []


def test_a_job_makes_the_table_of_actions_where_it_may(database: str) -> None:
    """C15: its own role made the others; who could look at them can look at it, and who wrote them writes it."""
    with sql_store(database):
        pass
    # As they were before the table of actions came to version 2.
    run_sql(database, "DROP TABLE kafka_transaction_state_actions")
    with role(database) as (writer, url):
        for table, wanted in (("", STATE_PRIVILEGES), ("_history", HISTORY_PRIVILEGES)):
            run_sql(database, f"GRANT {', '.join(wanted)} ON kafka_transaction_state{table} TO {writer}")
        with sql_store(database), sql_store(url) as own:
            decide(own, claim(own))
            assert [line.role for line in own.read_actions(last=5)] == [writer]


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ("history", "transactional_id, prepared_transaction_state", "it is a history of version 1"),
        ("actions", "transactional_id", "reason, detail and the primary key (transactional_id, at, number): it"),
    ],
)
def test_a_table_that_is_not_of_this_version_is_named_and_left_alone(
    database: str, table: str, key: str, said: str
) -> None:
    """C15, D7: jobs of version 1 may still write it, or it is somebody else's."""
    with sql_store(database):
        name = f"kafka_transaction_state_{table}"
        run_sql(database, f"DROP TABLE {name}")
        columns = "transactional_id text, prepared_transaction_state text"
        run_sql(database, f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}))")
        assert said in refused(database)


@pytest.mark.parametrize("suffix", ["", "_history", "_actions"])
def test_a_later_version_is_refused_by_name(database: str, sql: SqlStateStore, suffix: str) -> None:
    """C15: nobody here knows what it means."""
    table = f"kafka_transaction_state{suffix}"
    run_sql(database, f"COMMENT ON TABLE {table} IS 'spark_2pc_sink state, version 9'")
    assert f"{table}: it has version 9, and this package supports versions up to {VERSION}" in refused(database)
    with pytest.raises(StateStoreError, match="version 9"):
        sql.migrate()


def test_the_comment_is_not_needed(database: str, sql: SqlStateStore) -> None:
    """C15: pg_dump --no-comments leaves it out, and who makes a table by hand may as well."""
    for comment in ("NULL", "'our state'"):
        run_sql(database, f"COMMENT ON TABLE kafka_transaction_state IS {comment}")
        sql.prepare_schema()


def test_a_role_that_may_not_make_the_history_is_told_how(database: str) -> None:
    """C15: the state table is there, as for a role without CREATE it had to be."""
    with role(database) as (name, url), sql_store(database, history_batches=0):
        run_sql(database, f"GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state TO {name}")
        said = refused(url)
        assert "creation of table public.kafka_transaction_state_history: it does not exist" in said
        assert "spark-2pc state migrate --database postgresql://OWNER@" in said
        assert "history_batches=0" in said
        with sql_store(url, history_batches=0):
            pass
        assert " --role ROLE  # changes nothing" in refused(url, state_table="elsewhere")


def test_the_command_line_makes_migrates_and_checks(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    """D2, C15: what it prints can be run as it is, and its exit codes are for scripts."""

    def state(command: str, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.main(["state", command, *options])
        out, err = capsys.readouterr()
        # A password on the command line is warned of, whatever else is said.
        return code, out or err

    at = ("--database", database)
    assert state("check", *at)[0] == output.EXIT_NOT_KNOWN
    code, text = state("migrate", *at)
    assert (code, "it does not exist" in text) == (output.EXIT_FAILED, True)
    run_sql(database, VERSION_1)
    assert state("check", *at)[0] == output.EXIT_IN_DOUBT
    code, text = state("migrate", *at)
    assert (code, text.splitlines()) == (
        output.EXIT_SETTLED,
        [
            "added columns topic_ids, decision to public.kafka_transaction_state",
            "created public.kafka_transaction_state_history",
            "created public.kafka_transaction_state_actions",
        ],
    )
    assert state("migrate", *at) == (0, "nothing to do: the tables have this version\n")
    code, text = state("check", *at, "--json")
    assert (code, read_output(text)["ready"]) == (output.EXIT_SETTLED, True)
    with role(database) as (name, url):
        code, text = state("check", *at, "--role", name)
        assert (code, f"{name} lacks SELECT, INSERT, UPDATE on" in text) == (output.EXIT_IN_DOUBT, True)
        code, text = state("ddl", "--state-schema", '"Own"', "--state-table", "mine", "--role", name)
        assert (code, 'CREATE TABLE IF NOT EXISTS "Own".mine_history' in text) == (0, True)
        run_sql(database, text)
        with sql_store(url, state_schema="Own", state_table="mine", history_table="mine_history") as own:
            decide(own, claim(own))
        run_sql(database, "REVOKE USAGE ON SCHEMA public FROM PUBLIC")
        code, text = state("check", *at, "--role", name)
        assert (code, f"{name} lacks USAGE on schema public: GRANT USAGE" in text) == (output.EXIT_IN_DOUBT, True)
    assert state("ddl", "--state-schema", "a.b")[0] == output.EXIT_USAGE


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
        ("PostgreSQL 13.22 on x86_64-pc-linux-gnu", (), "PostgreSQL 13", "a time limit of pg_terminate_backend"),
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
        wait_until(answers, what=f"{name} to answer")
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
