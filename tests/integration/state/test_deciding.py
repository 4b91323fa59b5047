"""The deciding transaction against real faults of PostgreSQL: what COMMIT leaves unknown, and what it does not."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from sqlalchemy import event, text

from jdbc_state import SqlStateStore, connections
from jdbc_state.connections import Database, driver_connection
from jdbc_state.deciding import SqlDecidingTransaction
from spark_2pc_sink.errors import (
    CommitUnknownError,
    DatabaseUnreachableError,
    StateStoreError,
    SupersededError,
)
from spark_2pc_sink.testing import wait_until
from tests.harness.later import later
from tests.harness.providers import Database as Server
from tests.integration.state.state_stores import FIRST, ID, SETTINGS, claim, decide, execute, settings, sql_store


@pytest.fixture
def store(database: str) -> Iterator[SqlStateStore]:
    """A store with its tables, beside a target table."""
    execute(database, "CREATE TABLE target (id int PRIMARY KEY, twin int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with sql_store(database) as sql:
        yield sql


def status(store: SqlStateStore) -> str:
    row = store.read(ID)
    assert row is not None
    return row.status


def write(transaction: object, values: str = "(1, 1)") -> None:
    transaction.connection.execute(text(f"INSERT INTO target VALUES {values}"))  # type: ignore[attr-defined]


SHOWN = ("application_name", "synchronous_commit", "lock_timeout", "statement_timeout", "transaction_isolation")


def show(connection: object) -> dict[str, str]:
    cursor = driver_connection(connection).cursor()  # type: ignore[arg-type]
    shown = {}
    for name in (*SHOWN, "idle_in_transaction_session_timeout"):
        cursor.execute(f"SHOW {name}")
        shown[name] = cursor.fetchone()[0]
    return shown


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_hold_inside_and_are_gone_outside(store: SqlStateStore, database: str) -> None:
    """C6, C12: behind a pooler the next transaction of this session is somebody else's."""
    name = execute(database, "SELECT current_database()")[0][0]
    execute(database, f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    execute(database, f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
    row = claim(store)
    connection = Database(database, SETTINGS).open("test")
    before = show(connection)
    connection.rollback()
    transaction = SqlDecidingTransaction(connection, store._moves, SETTINGS, ID, row.generation)
    transaction.begin()
    inside = show(connection)
    transaction.decide(FIRST)
    transaction.commit()
    after = show(connection)
    connection.close()
    assert inside == {
        "application_name": "2pc:orders:1",
        "synchronous_commit": "on",
        "lock_timeout": "10s",
        "statement_timeout": "20s",
        "transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": "20s",
    }
    assert before["synchronous_commit"] == "off"
    assert after == before


def test_requests_are_durable_and_leave_no_settings_behind(store: SqlStateStore, database: str) -> None:
    """C5, C6: a note that a crash of the server undid would be a lie; it is one message, so no client can hold it."""
    name = execute(database, "SELECT current_database()")[0][0]
    execute(database, f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    execute(database, f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
    names = text(f"SELECT {', '.join(f'current_setting({name!r})' for name in SHOWN)}")
    with Database(database, SETTINGS).requests("test", lock_timeout_ms=123) as connection:
        before = show(connection)
        inside = connection.execute(names).one()
        assert show(connection) == before
        assert driver_connection(connection).info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE
    assert tuple(inside) == ("jdbc_state", "on", "123ms", "20s", "read committed")
    assert (before["synchronous_commit"], before["lock_timeout"]) == ("off", "0")


def test_a_short_transaction_is_bounded_and_whole(database: str) -> None:
    connections = Database(database, SETTINGS)
    limits = {"lock_timeout_ms": 123, "statement_timeout_ms": 4_567}
    with connections.transaction("test", **limits) as connection:
        connection.exec_driver_sql("CREATE TABLE kept ()")
        shown = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in ("lock_timeout", "statement_timeout")]
    assert shown == ["123ms", "4567ms"]
    both = "CREATE TABLE undone (); CREATE TABLE kept ()"
    refused = pytest.raises(StateStoreError, match='test: relation "kept" already exists')
    with refused, connections.transaction("test", **limits) as connection:
        connection.exec_driver_sql(both)
    with connections.transaction("test", **limits) as connection:
        found = connection.exec_driver_sql("SELECT to_regclass('kept') IS NOT NULL, to_regclass('undone')").one()
    assert tuple(found) == (True, None)
    connections.close()


def test_a_stricter_durability_is_left_alone(store: SqlStateStore, database: str) -> None:
    """C5: remote_apply waits for standbys, and 'on' in its place would weaken it."""
    name = execute(database, "SELECT current_database()")[0][0]
    execute(database, f'ALTER DATABASE "{name}" SET synchronous_commit = remote_apply')
    store.close()  # a session keeps what it began with
    row = claim(store)
    with store.deciding(ID, row.generation) as transaction:
        assert show(transaction.connection)["synchronous_commit"] == "remote_apply"


# --- COMMIT ----------------------------------------------------------------------------------------------------------


def test_a_commit_that_is_never_answered_is_unknown_in_bounded_time(
    store: SqlStateStore, postgres: Server, database: str
) -> None:
    """C1: no time-out of the server bounds COMMIT, so the driver cuts the connection."""
    row = claim(store)
    name = database.rpartition("/")[2]
    with postgres.proxy() as proxy:
        far = SqlStateStore(postgres.database_url(name, port=proxy.port), settings(commit_timeout_ms=500))

        def silence() -> None:
            with far.deciding(ID, row.generation) as transaction:
                transaction.decide(FIRST)
                proxy.hold_answers()

        begun = time.monotonic()
        with pytest.raises(CommitUnknownError):
            silence()
        assert 0.4 < time.monotonic() - begun < 5
    assert claim(store).status == "decided"


@pytest.mark.parametrize("error", [RuntimeError("COMMIT"), psycopg2.errors.UniqueViolation("COMMIT")])
def test_whatever_commit_raises_is_unknown(store: SqlStateStore, error: Exception) -> None:
    """C1: the kind of error and its code are not looked at."""
    row = claim(store)

    def failing(_: object) -> None:
        raise error

    event.listen(store.database._engine, "commit", failing)
    with pytest.raises(CommitUnknownError) as raised:
        decide(store, row)
    assert raised.value.__cause__ is error
    assert not raised.value.retriable


def test_an_interrupted_commit_closes_its_session(store: SqlStateStore, database: str) -> None:
    """A14, C1: Ctrl-C passes through as what it is, and no session stays behind that holds the row."""
    row = claim(store)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    event.listen(store.database._engine, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        decide(store, row)
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '2pc:%' AND datname = current_database()"
    )
    wait_until(lambda: execute(database, sessions) == [(0,)], deadline_s=5, what="its session to be gone")
    assert claim(store).status == "none"


def test_a_deferred_constraint_fails_before_commit(store: SqlStateStore, database: str) -> None:
    """C12: inside COMMIT the same violation would look like an unknown outcome, on every attempt again."""
    row = claim(store)

    def twins() -> None:
        with store.deciding(ID, row.generation) as transaction:
            write(transaction, "(1, 7), (2, 7)")
            transaction.decide(FIRST)

    with pytest.raises(StateStoreError, match=r"duplicate key.*23505") as raised:
        twins()
    assert not isinstance(raised.value, CommitUnknownError)
    assert (raised.value.sqlstate, raised.value.retriable) == ("23505", False)
    assert execute(database, "SELECT * FROM target") == []


def test_a_failed_transaction_is_not_taken_for_a_committed_one(store: SqlStateStore, database: str) -> None:
    """D3: PostgreSQL answers its COMMIT with ROLLBACK, and no error."""
    row = claim(store)

    def swallowed() -> None:
        with store.deciding(ID, row.generation) as transaction:
            write(transaction)
            cursor = driver_connection(transaction.connection).cursor()
            transaction.decide(FIRST)
            with pytest.raises(psycopg2.Error):
                cursor.execute("SELECT 1/0")

    with pytest.raises(StateStoreError, match="failed after the decision"):
        swallowed()
    assert status(store) == "none"
    assert execute(database, "SELECT * FROM target") == []


# --- before COMMIT ---------------------------------------------------------------------------------------------------


def test_an_overtaken_decision_writes_nothing(store: SqlStateStore, database: str) -> None:
    """C2, D1: also where the newer claim did not end the session: the generation in the UPDATE is what decides."""
    row = claim(store)

    def overtaken() -> None:
        with store.deciding(ID, row.generation) as transaction:
            write(transaction)
            execute(database, "UPDATE kafka_transaction_state SET generation = 2")
            transaction.decide(FIRST)

    with pytest.raises(SupersededError, match="generation 2"):
        overtaken()
    assert execute(database, "SELECT * FROM target") == []


def test_a_lock_that_is_not_to_be_had(store: SqlStateStore, database: str) -> None:
    """C7, C12: a definite failure, with PostgreSQL's code; nothing is left of the batch."""
    row = claim(store)
    blocker = Database(database, SETTINGS).open("test")
    blocker.execute(text("LOCK TABLE target"))

    def blocked() -> None:
        with sql_store(database, lock_timeout_ms=200) as hasty, hasty.deciding(ID, row.generation) as transaction:
            write(transaction)

    with pytest.raises(StateStoreError) as raised:
        blocked()
    blocker.close()
    assert (raised.value.sqlstate, raised.value.retriable) == ("55P03", True)


def test_a_deadlock_may_be_run_again(store: SqlStateStore, database: str) -> None:
    """C7: 40P01 between this batch and somebody else's transaction."""
    row = claim(store)
    write_rows = "INSERT INTO target VALUES (1, 1), (2, 2)"
    execute(database, write_rows)
    other = Database(database, SETTINGS).open("test")

    def crossed() -> None:
        with store.deciding(ID, row.generation) as transaction:
            # The one that waits longer finds out; this makes it always ours.
            transaction.connection.execute(text("SET LOCAL deadlock_timeout = '100ms'"))
            transaction.connection.execute(text("UPDATE target SET twin = 11 WHERE id = 1"))
            other.execute(text("UPDATE target SET twin = 12 WHERE id = 2"))
            thread = threading.Thread(target=lambda: other.execute(text("UPDATE target SET twin = 13 WHERE id = 1")))
            thread.start()
            try:
                transaction.connection.execute(text("UPDATE target SET twin = 14 WHERE id = 2"))
            finally:
                transaction.connection.rollback()
                thread.join(10)

    with pytest.raises(StateStoreError, match="deadlock detected") as raised:
        crossed()
    other.close()
    assert (raised.value.sqlstate, raised.value.retriable) == ("40P01", True)


def test_a_driver_that_pauses_too_long_loses_its_transaction(store: SqlStateStore, database: str) -> None:
    """C12: its locks are given back by the server, and the batch may be run again."""
    row = claim(store)
    idle = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '2pc:orders:1' AND datname = current_database()"
    )

    def pausing() -> None:
        with (
            sql_store(database, idle_in_transaction_timeout_ms=100) as hasty,
            hasty.deciding(ID, row.generation) as transaction,
        ):
            wait_until(lambda: execute(database, idle) == [(0,)], deadline_s=10, what="the server to end it")
            write(transaction)

    with pytest.raises(StateStoreError) as raised:
        pausing()
    assert raised.value.sqlstate in {"25P03", "08006"}
    assert raised.value.retriable


# --- the way to the database -----------------------------------------------------------------------------------------


def test_an_unreachable_database_is_named_without_its_password(postgres: Server) -> None:
    """D3: the first connection fails at once, and says where it went."""
    wrong = SqlStateStore("postgresql+psycopg2://user:the-password@127.0.0.1:1/shop", SETTINGS)
    with pytest.raises(
        DatabaseUnreachableError, match=r"connecting to 127.0.0.1:1/shop: .*[Cc]onnection refused"
    ) as raised:
        wrong.prepare_schema()
    assert "the-password" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert not raised.value.retriable
    with pytest.raises(DatabaseUnreachableError, match=r"connecting to 127.0.0.1:1,localhost:2/ci: "):
        SqlStateStore("postgresql+psycopg2:///ci?host=127.0.0.1:1&host=localhost:2", SETTINGS).read_all()
    missing = SqlStateStore(postgres.database_url("missing"), SETTINGS)
    with pytest.raises(DatabaseUnreachableError, match='database "missing" does not exist'):
        missing.read(ID)


def test_a_database_that_was_there_is_waited_for(start_postgres: object, caplog: pytest.LogCaptureFixture) -> None:
    """A failover takes 10 to 20 seconds, and the sink survives it."""
    server = start_postgres()  # type: ignore[operator]
    url = server.create_database("shop")
    with sql_store(url) as store, sql_store(url, connect_deadline_ms=300) as hasty:
        row = claim(store)
        assert hasty.read(ID) == row
        server.kill()
        with pytest.raises(DatabaseUnreachableError) as raised:
            hasty.read(ID)
        assert raised.value.retriable
        with later(0.5, server.start):
            assert store.check_generation(ID, row.generation) == row
    waits = [line for line in caplog.messages if "trying again for up to" in line]
    assert [f":{server.port}/shop" in line for line in waits] == [True, True]  # one for each of the waits


def test_a_server_that_falls_silent_when_it_is_reached_is_not_waited_for_without_end(
    postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B26: a pooler takes connections while no server is behind it, and SQLAlchemy asks something first of all."""
    connect = psycopg2.connect
    with postgres.proxy() as proxy:

        def silenced(*arguments: Any, **named: Any) -> Any:
            connection = connect(*arguments, **named)
            proxy.hold_answers()
            return connection

        monkeypatch.setattr(psycopg2, "connect", silenced)
        url = postgres.database_url(database.rpartition("/")[2], port=proxy.port)
        with pytest.raises(DatabaseUnreachableError, match="read: connecting to"):
            SqlStateStore(url, settings(connect_timeout_s=2)).read(ID)


def test_a_stopped_server_is_not_waited_for_without_end(
    start_postgres: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B26: TCP still acknowledges, no time-out of the server runs; requests and COPY end all the same."""
    for module in ("connections", "deciding"):
        monkeypatch.setattr(f"jdbc_state.{module}.ANSWER_GRACE_MS", 0)
    server = start_postgres()  # type: ignore[operator]
    url = server.create_database("shop")
    execute(url, "CREATE TABLE target (id int)")
    with sql_store(url, commit_timeout_ms=1_500, statement_timeout_ms=1_500) as store:
        row = claim(store)

        def in_a_request() -> None:
            with store.database.requests("test", lock_timeout_ms=1_000) as connection:
                server.pause()
                connection.execute(text("SELECT 1"))

        def in_copy() -> None:
            with store.deciding(ID, row.generation) as transaction:
                server.pause()
                cursor = driver_connection(transaction.connection).cursor()
                cursor.copy_expert("COPY target FROM STDIN", io.StringIO("1\n"))

        for stopped in (in_a_request, in_copy):
            with pytest.raises(StateStoreError) as raised:
                stopped()
            server.resume()
            assert (raised.value.sqlstate, raised.value.retriable) == ("08006", True)


# --- the connection that is kept ---------------------------------------------------------------------------------


def backends(database: str) -> set[int]:
    """Server processes of the store's own sessions."""
    statement = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'jdbc_state' AND datname = current_database()"
    )
    return {pid for (pid,) in execute(database, statement)}


@pytest.mark.parametrize("trusted_s", [connections._TRUSTED_S, 0.0])
def test_a_kept_connection_that_is_gone_is_replaced(
    store: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch, trusted_s: float
) -> None:
    """C11: a restart, a failover or a pooler may have ended it meanwhile; one that was kept for long is asked."""
    monkeypatch.setattr(connections, "_TRUSTED_S", trusted_s)
    row = claim(store)
    store.check_generation(ID, row.generation)
    (pid,) = backends(database)
    execute(database, f"SELECT pg_terminate_backend({pid}, 5000)")
    assert store.check_generation(ID, row.generation).generation == row.generation
    assert pid not in backends(database)


def test_a_connection_on_which_something_failed_is_not_kept(store: SqlStateStore, database: str) -> None:
    """A broken one is never met twice."""
    row = claim(store)
    before = backends(database)
    with pytest.raises(StateStoreError), store.deciding(ID, row.generation) as transaction:
        transaction.connection.execute(text("SELECT 1 / 0"))
    wait_until(lambda: not backends(database) & before, deadline_s=10, what="the session is closed")
    assert store.check_generation(ID, row.generation).generation == row.generation


def test_a_connection_that_was_closed_without_an_error_is_not_kept(store: SqlStateStore) -> None:
    """Nobody meets it again, not even to find it closed."""
    row = claim(store)
    with store.deciding(ID, row.generation) as transaction:
        driver_connection(transaction.connection).close()
    assert store.check_generation(ID, row.generation).generation == row.generation
