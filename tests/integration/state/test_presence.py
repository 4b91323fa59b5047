"""D10: the session by which a driver is seen to live, and what others see of it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import make_url

from jdbc_state import SqlStateStore, ddl
from jdbc_state.connections import Database, behind_pooler, takes_transactions
from jdbc_state.sessions import Liveness
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.testing import PostgresServer, wait_until
from tests.harness.postgres_standby import PostgresStandby
from tests.harness.providers import Database as Server
from tests.harness.sql import run_sql, sessions
from tests.integration.state.state_stores import (
    ID,
    SETTINGS,
    claim,
    decide,
    role,
    row_of,
    set_of,
    sql_store,
)

#: The sessions by which drivers are seen.
NAMED = "application_name LIKE '2pc@%'"


@pytest.fixture
def operator(sql: SqlStateStore) -> SqlStateStore:
    """A store that looks, and holds nothing."""
    return sql


def seen(operator: SqlStateStore) -> Liveness:
    """What is seen of the driver with the newest claim."""
    return operator.liveness(row_of(operator))


def wait_to_be_seen(operator: SqlStateStore, alive: bool) -> None:
    """Wait until the driver is seen to live, or to be gone."""
    wait_until(lambda: seen(operator).alive is alive, what=f"a driver that is alive: {alive}")


def generations(url: str) -> list[str]:
    return [name.rpartition(":")[2] for name, _ in sessions(url, NAMED)]


def test_a_driver_is_seen_from_its_claim_to_its_end(operator: SqlStateStore, database: str) -> None:
    """D10: at once, and in no transaction; it is named by process, host and role."""
    with sql_store(database) as driver:
        row = claim(driver)
        liveness = seen(operator)
        assert liveness.alive is True
        assert "from 127.0.0.1, role postgres; claim 1, made at " in liveness.detail
        assert str(row.claimed_at) in liveness.detail
        states = run_sql(database, "SELECT state, xact_start FROM pg_stat_activity WHERE application_name LIKE '2pc@%'")
        assert states == [("idle", None)]
    wait_to_be_seen(operator, False)
    assert "no database session of claim 1" in seen(operator).detail


def test_a_server_that_does_not_answer_holds_no_end_up(
    operator: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jdbc_state.sessions._CLOSE_MS", 50)
    with sql_store(database) as driver, caplog.at_level(logging.INFO):
        claim(driver)
        ((_, pid),) = sessions(database, NAMED)
        os.kill(pid, signal.SIGSTOP)
        try:
            driver.close()
        finally:
            os.kill(pid, signal.SIGCONT)
    assert "could not clear application_name" in caplog.text
    wait_to_be_seen(operator, False)


def test_an_older_driver_is_not_taken_for_the_newest(operator: SqlStateStore, database: str) -> None:
    """D1, D10: nor is its session ended; it goes when the older driver notices."""
    with sql_store(database) as older:
        claim(older)
        with sql_store(database) as newer:
            claim(newer)
            assert sorted(generations(database)) == ["1", "2"]
        wait_to_be_seen(operator, False)
        assert generations(database) == ["1"]


def test_another_sink_is_not_taken_for_this_one(operator: SqlStateStore, database: str) -> None:
    """D10: neither the same id with another state table, nor an id that begins like it."""
    claim(operator, query_id="q", run_id=None)
    with sql_store(database, state_schema="elsewhere") as elsewhere, sql_store(database) as other:
        claim(elsewhere)
        claim(other, f"{ID}:more")
        assert len(sessions(database, NAMED)) == 2
        assert operator.liveness(replace(row_of(operator), run_id="run-1")).alive is False


def test_a_database_that_was_started_anew_sees_its_drivers_again(start_postgres: Callable[..., Server]) -> None:
    """D10: nobody has to claim again for it."""
    server = start_postgres()
    url = server.create_database("shop")
    with sql_store(url) as driver, sql_store(url) as operator:
        claim(driver)
        server.restart()
        wait_to_be_seen(operator, True)


def test_a_session_outlives_the_idle_timeout_of_its_role(operator: SqlStateStore, database: str) -> None:
    """D10: a trigger may leave hours between two batches."""
    longer = f"{NAMED} AND state = 'idle' AND state_change < clock_timestamp() - interval '3 s'"
    set_of(database, idle_session_timeout="2s")
    with sql_store(database) as driver:
        claim(driver)
        first = sessions(database, NAMED)
        wait_until(lambda: sessions(database, longer) == first, what="a session that was idle")


def test_a_driver_whose_query_has_ended_is_not_seen(operator: SqlStateStore, database: str) -> None:
    """D10: the process may go on, as a notebook's does; and the next claim is seen again."""
    running = threading.Event()
    running.set()
    with closing(SqlStateStore(database, operator._settings, shown_while=running.is_set)) as store:
        claim(store)
        assert seen(operator).alive is True
        running.clear()
        wait_to_be_seen(operator, False)
        running.set()
        claim(store)
        assert seen(operator).alive is True


def test_a_claim_stands_where_no_session_is_left_for_it(
    operator: SqlStateStore, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C11, D10: it is said, and tried again."""
    with role(database) as (name, url):
        run_sql(database, ddl(operator._settings, role=name))
        run_sql(database, f"ALTER ROLE {name} CONNECTION LIMIT 1")
        with closing(SqlStateStore(url, operator._settings)) as driver:
            row = claim(driver)
            assert "cannot open the heartbeat session" in caplog.text
            assert "of-the-role" not in caplog.text
            decide(driver, row)
            run_sql(database, f"ALTER ROLE {name} CONNECTION LIMIT 10")
            wait_to_be_seen(operator, True)
        wait_to_be_seen(operator, False)


def test_a_driver_in_its_deciding_transaction_is_seen_by_that_too(operator: SqlStateStore, database: str) -> None:
    """D10: where it has no other session, as behind a pooler; told from that of another state table by its lock."""
    with sql_store(database) as driver, sql_store(database, state_schema="elsewhere") as elsewhere:
        row = claim(driver)
        there = claim(elsewhere)
        driver._presence.end()
        elsewhere._presence.end()
        with elsewhere.deciding(ID, there.generation):
            wait_to_be_seen(operator, False)
            with driver.deciding(ID, row.generation):
                assert seen(operator).alive is True


def test_a_standby_does_not_know() -> None:
    """D10: drivers are at the primary."""
    with PostgresServer() as primary, PostgresStandby(primary) as standby:
        with sql_store(primary.url) as driver:
            claim(driver)
            standby.wait_until_caught_up()
            looking = SqlStateStore(standby.database_url("postgres"), driver._settings)
            liveness = seen(looking)
            looking.close()
        detail = "this is a standby; sessions of drivers are visible only on the primary"
        assert (liveness.alive, liveness.detail) == (None, detail)


# --- behind a pooler ------------------------------------------------------------------------------------------------


def test_a_pooler_in_session_mode_shows_drivers(
    operator: SqlStateStore, database: str, pooled: Callable[..., str]
) -> None:
    """C6, D10: by its own address. That none is there proves nothing to who looks through a pooler."""
    url = pooled(database, "session")
    with sql_store(url) as driver, sql_store(url) as looking:
        claim(driver)
        assert seen(operator).alive is True
        assert seen(looking).alive is True
        driver.close()
        wait_to_be_seen(operator, False)
        assert seen(looking).alive is None


def test_a_pooler_in_transaction_mode_shows_them_in_their_transactions(
    operator: SqlStateStore, database: str, pooled: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """C6, D10: the driver says so at its claim, leaves no name to the next user of a session, and works."""
    caplog.set_level(logging.INFO, "jdbc_state")
    url = pooled(database, "transaction")
    with sql_store(url) as driver, sql_store(url) as looking:
        row = claim(driver)
        assert "a pooler in transaction mode" in caplog.text
        assert sessions(database, NAMED) == []
        liveness = seen(looking)
        assert (liveness.alive, liveness.detail) == (
            None,
            "behind a pooler, a driver is visible only during its transactions",
        )
        with driver.deciding(ID, row.generation):
            assert seen(looking).alive is True
        settings = "SELECT current_setting('idle_session_timeout'), current_setting('tcp_keepalives_idle')"
        assert run_sql(url, settings) == run_sql(database, settings)


def test_what_takes_transactions_is_not_refused(database: str, pooled: Callable[..., str]) -> None:
    """C6: what has failed for another reason is told as that."""
    for url in (database, pooled(database, "session"), pooled(database, "transaction")):
        reached = Database(url, SETTINGS)
        with closing(reached.session("test")) as session:
            assert behind_pooler(session) == (url != database)
            assert takes_transactions(session)
        reached._refuse_statement_mode("test")


def test_a_pooler_in_statement_mode_is_refused_by_name(database: str, pooled: Callable[..., str]) -> None:
    """C6: there is no transaction in which a batch could be decided."""
    url = pooled(database, "statement")
    store = SqlStateStore(url, SETTINGS)
    with pytest.raises(ConfigurationError, match=r"PgBouncer in statement mode.*set pool_mode = transaction") as caught:
        store.prepare_schema()
    assert str(make_url(url).password) not in str(caught.value)
