"""Tables of version 1, of later versions and of nobody: migrated, or refused by name with the command that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from jdbc_state import SqlStateStore
from jdbc_state.schema import HISTORY_PRIVILEGES, STATE_PRIVILEGES, VERSION
from spark_2pc_sink import cli
from spark_2pc_sink.cli import exits
from spark_2pc_sink.errors import StateStoreError
from tests.harness.json_contract import read_output
from tests.integration.state.state_stores import ID, claim, decide, execute, role, row_of, settings, sql_store

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


def prepared(url: str, **changes: Any) -> SqlStateStore:
    store = SqlStateStore(url, settings(**changes))
    store.prepare_schema()
    return store


def refused(url: str, **changes: Any) -> str:
    with pytest.raises(StateStoreError) as raised:
        SqlStateStore(url, settings(**changes)).prepare_schema()
    return str(raised.value)


def test_a_job_migrates_a_table_of_its_own_role(database: str) -> None:
    """C13, C15: the row that version 1 has decided is settled by this one, and has a line from then on."""
    execute(database, VERSION_1)
    execute(database, ROW_OF_1)
    store = prepared(database)
    row = claim(store)
    assert (row.status, row.prepared_transaction_state, row.batch_id, row.generation) == ("decided", "5:3", 4, 8)
    assert (row.topic_ids, row.decision, row.kafka_offsets) == ({}, 0, {"orders-0": (5, 6)})
    assert [line.row for line in store.read_history(ID, last=5)] == [row]
    row = store.mark_done(ID, row.generation, "5:4")
    decide(store, row, prepared="5:4", batch_id=5)
    execute(database, "DELETE FROM kafka_transaction_state")
    assert claim(store).batch_id == 5
    store.close()


@pytest.mark.parametrize("status", SINKS_OF_1_0_0)
def test_a_sink_of_1_0_0_goes_on(database: str, status: str) -> None:
    """C15: its row, its history and its actions are read, and its next batch is decided, without a command by hand."""
    name = f"{ID}-{status}"
    execute(database, TABLES_OF_1_0_0)
    store = prepared(database)
    row = claim(store, name)
    state, batch_id, batches, next_batch = SINKS_OF_1_0_0[status]
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
    store.close()


def test_version_1_works_with_a_migrated_table(database: str) -> None:
    """C15: its statements name the columns that it knows, and the others have defaults."""
    with sql_store(database) as store:
        execute(
            database,
            "INSERT INTO kafka_transaction_state (transactional_id, prepared_transaction_state, status, settled, "
            "generation, cluster_id, row_count, record_count, digest, kafka_offsets, claimed_at) "
            "VALUES ('old', '', 'none', '', 1, 'cluster-a', 0, 0, '', '{}', now())",
        )
        execute(
            database,
            "UPDATE kafka_transaction_state SET status = 'decided', prepared_transaction_state = '5:0', batch_id = 0",
        )
        row = claim(store, "old")
        assert (row.status, row.topic_ids) == ("decided", {})
        assert store.read_history("old", last=1)[0].row == row


def test_a_job_alters_no_table_of_another_role(database: str) -> None:
    """C15: it says which table, which version, and the command for its owner; and leaves it as it is."""
    execute(database, VERSION_1)
    owner = execute(database, "SELECT current_user")[0][0]
    with role(database) as (name, url):
        execute(database, f"GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state TO {name}")
        execute(database, f"GRANT CREATE ON SCHEMA public TO {name}")
        said = refused(url)
        assert "table public.kafka_transaction_state: it has version 1, this package needs version 2" in said
        given = make_url(database)
        assert f"spark-2pc state migrate --database postgresql://{owner}@{given.host}:{given.port}/" in said
        assert "--state-schema public --state-table kafka_transaction_state --history-table" in said
        assert execute(database, COLUMNS) == [(16,)]
        with sql_store(database) as admin_store:
            assert admin_store.migrate()[-1].endswith(f"to {name}")
        with sql_store(url) as own:
            decide(own, claim(own))


def test_migrating_waits_for_nobody_without_end(database: str) -> None:
    """C12: a driver of version 1 inside its COPY holds the table; who stands in the way is said."""
    execute(database, VERSION_1)
    with sql_store(database, history_batches=0) as other:
        execute(database, "ALTER TABLE kafka_transaction_state DROP COLUMN topic_ids, DROP COLUMN decision")
        with other.database.transaction("reader", lock_timeout_ms=0, statement_timeout_ms=0) as connection:
            connection.exec_driver_sql("LOCK TABLE kafka_transaction_state IN SHARE UPDATE EXCLUSIVE MODE")
            with pytest.raises(StateStoreError, match=r"stayed locked for 300 ms.*pid .*Wait for them, and try"):
                SqlStateStore(database, settings(lock_timeout_ms=300)).migrate()
        assert SqlStateStore(database, settings()).migrate() != []


def test_a_job_makes_the_table_of_actions_where_it_may(database: str) -> None:
    """C15: its own role made the others; who could look at them can look at it, and who wrote them writes it."""
    prepared(database).close()
    # As they were before the table of actions came to version 2.
    execute(database, "DROP TABLE kafka_transaction_state_actions")
    with role(database) as (writer, url):
        for table, wanted in (("", STATE_PRIVILEGES), ("_history", HISTORY_PRIVILEGES)):
            execute(database, f"GRANT {', '.join(wanted)} ON kafka_transaction_state{table} TO {writer}")
        prepared(database).close()
        with sql_store(url) as own:
            decide(own, claim(own))
            assert [line.role for line in own.read_actions(last=5)] == [writer]


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ("history", "transactional_id, prepared_transaction_state", "it is a history of version 1"),
        ("actions", "transactional_id", "it exists and lacks columns at, number, action"),
    ],
)
def test_a_table_that_is_not_of_this_version_is_named_and_left_alone(
    database: str, table: str, key: str, said: str
) -> None:
    """C15, D7: jobs of version 1 may still write it, or it is somebody else's."""
    with sql_store(database):
        name = f"kafka_transaction_state_{table}"
        execute(database, f"DROP TABLE {name}")
        columns = "transactional_id text, prepared_transaction_state text"
        execute(database, f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}))")
        assert said in refused(database)


@pytest.mark.parametrize("suffix", ["", "_history", "_actions"])
def test_a_later_version_is_refused_by_name(database: str, sql: SqlStateStore, suffix: str) -> None:
    """C15: nobody here knows what it means."""
    table = f"kafka_transaction_state{suffix}"
    execute(database, f"COMMENT ON TABLE {table} IS 'spark_2pc_sink state, version 9'")
    assert f"{table}: it has version 9, and this package supports versions up to {VERSION}" in refused(database)
    with pytest.raises(StateStoreError, match="version 9"):
        sql.migrate()


def test_the_comment_is_not_needed(database: str, sql: SqlStateStore) -> None:
    """C15: pg_dump --no-comments leaves it out, and who makes a table by hand may as well."""
    del sql
    for comment in ("NULL", "'our state'"):
        execute(database, f"COMMENT ON TABLE kafka_transaction_state IS {comment}")
        prepared(database).close()


def test_a_role_that_may_not_make_the_history_is_told_how(database: str) -> None:
    """C15: the state table is there, as for a role without CREATE it had to be."""
    with role(database) as (name, url), sql_store(database, history_batches=0):
        execute(database, f"GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state TO {name}")
        said = refused(url)
        assert "creation of table public.kafka_transaction_state_history: it does not exist" in said
        assert "spark-2pc state migrate --database postgresql://OWNER@" in said
        assert "history_batches=0" in said
        prepared(url, history_batches=0).close()
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
    assert state("check", *at)[0] == exits.EXIT_NOT_KNOWN
    code, text = state("migrate", *at)
    assert (code, "it does not exist" in text) == (exits.EXIT_FAILED, True)
    execute(database, VERSION_1)
    assert state("check", *at)[0] == exits.EXIT_IN_DOUBT
    code, text = state("migrate", *at)
    assert (code, text.splitlines()) == (
        exits.EXIT_SETTLED,
        [
            "added columns topic_ids, decision to public.kafka_transaction_state",
            "created public.kafka_transaction_state_history",
            "created public.kafka_transaction_state_actions",
        ],
    )
    assert state("migrate", *at) == (0, "nothing to do: the tables have this version\n")
    code, text = state("check", *at, "--json")
    assert (code, read_output(text)["ready"]) == (exits.EXIT_SETTLED, True)
    with role(database) as (name, url):
        code, text = state("check", *at, "--role", name)
        assert (code, f"{name} lacks SELECT, INSERT, UPDATE on" in text) == (exits.EXIT_IN_DOUBT, True)
        code, text = state("ddl", "--state-schema", '"Own"', "--state-table", "mine", "--role", name)
        assert (code, 'CREATE TABLE IF NOT EXISTS "Own".mine_history' in text) == (0, True)
        execute(database, text)
        with sql_store(url, state_schema="Own", state_table="mine", history_table="mine_history") as own:
            decide(own, claim(own))
        execute(database, "REVOKE USAGE ON SCHEMA public FROM PUBLIC")
        code, text = state("check", *at, "--role", name)
        assert (code, f"{name} lacks USAGE on schema public: GRANT USAGE" in text) == (exits.EXIT_IN_DOUBT, True)
    assert state("ddl", "--state-schema", "a.b")[0] == exits.EXIT_USAGE
