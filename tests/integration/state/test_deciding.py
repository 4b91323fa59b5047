"""The deciding transaction against real faults and limits of PostgreSQL: what COMMIT leaves unknown, and what not."""

from __future__ import annotations

import errno
import io
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import psycopg2
import pytest
from sqlalchemy import Connection, event, make_url, text

from jdbc_state import DecidingTransaction, SqlStateStore, connections
from jdbc_state.connections import Database, driver_connection
from jdbc_state.deciding import SqlDecidingTransaction
from spark_2pc_sink import errors
from spark_2pc_sink.testing import wait_until
from tests.harness.acts import later
from tests.harness.providers import Database as Server
from tests.harness.sql import end_sessions, run_sql, sessions
from tests.integration.state.state_stores import (
    FIRST,
    ID,
    SETTINGS,
    attempt,
    claim,
    decide,
    decide_first,
    row_of,
    set_of,
    settings,
    sql_store,
)


@pytest.fixture
def store(sql: SqlStateStore, database: str) -> SqlStateStore:
    """A store with its tables, beside a target table."""
    run_sql(database, "CREATE TABLE target (id int PRIMARY KEY, twin int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    return sql


def write(transaction: DecidingTransaction, values: str = "(1, 1)") -> None:
    transaction.connection.execute(text(f"INSERT INTO target VALUES {values}"))


SHOWN = ("application_name", "synchronous_commit", "lock_timeout", "statement_timeout", "transaction_isolation")
QUESTION = ", ".join(f"current_setting('{name}')" for name in (*SHOWN, "idle_in_transaction_session_timeout"))


def show(connection: Connection) -> list[str]:
    """The values of SHOWN, and the bound of an idle transaction."""
    cursor = driver_connection(connection).cursor()
    cursor.execute(f"SELECT {QUESTION}")
    return list(cursor.fetchone())


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_hold_inside_and_are_gone_outside(store: SqlStateStore, database: str) -> None:
    """C6, C12: behind a pooler the next transaction of this session is somebody else's."""
    set_of(database, synchronous_commit="off", default_transaction_isolation="serializable")
    row = claim(store)
    connection = Database(database, SETTINGS).open("test")
    before = show(connection)
    connection.rollback()
    transaction = SqlDecidingTransaction(connection, store._moves, ID, row.generation)
    transaction.begin()
    inside = show(connection)
    transaction.decide(FIRST)
    transaction.commit()
    after = show(connection)
    connection.close()
    assert inside == ["2pc:orders:1", "on", "10s", "20s", "read committed", "20s"]
    assert before[1] == "off"
    assert after == before


def test_requests_are_durable_and_leave_no_settings_behind(store: SqlStateStore, database: str) -> None:
    """C5, C6: a note that a crash of the server undid would be a lie; it is one message, so no client can hold it."""
    set_of(database, synchronous_commit="off", default_transaction_isolation="serializable")
    with Database(database, SETTINGS).requests("test", lock_timeout_ms=123) as connection:
        before = show(connection)
        inside = connection.execute(text(f"SELECT {QUESTION}")).one()
        assert show(connection) == before
        assert driver_connection(connection).info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE
    assert tuple(inside)[:5] == ("jdbc_state", "on", "123ms", "20s", "read committed")
    assert before[1:3] == ["off", "0"]


def test_a_stricter_durability_is_left_alone(store: SqlStateStore, database: str) -> None:
    """C5: remote_apply waits for standbys, and 'on' in its place would weaken it."""
    set_of(database, synchronous_commit="remote_apply")
    store.close()  # a session keeps what it began with
    row = claim(store)
    with store.deciding(ID, row.generation) as transaction:
        assert show(transaction.connection)[1] == "remote_apply"


# --- COMMIT ----------------------------------------------------------------------------------------------------------


def test_a_commit_that_is_never_answered_is_unknown_in_bounded_time(
    store: SqlStateStore, postgres: Server, database: str
) -> None:
    """C1: no time-out of the server bounds COMMIT, so the driver cuts the connection."""
    row = claim(store)
    name = database.rpartition("/")[2]
    with postgres.proxy() as proxy:
        far = SqlStateStore(postgres.database_url(name, port=proxy.port), settings(commit_timeout_ms=500))
        begun = time.monotonic()
        with pytest.raises(errors.CommitUnknownError):
            attempt(far, row, decide_first, lambda _: proxy.hold_answers())
        assert 0.4 < time.monotonic() - begun < 5
    assert claim(store).status == "decided"


@pytest.mark.parametrize("error", [RuntimeError("COMMIT"), psycopg2.errors.UniqueViolation("COMMIT")])
def test_whatever_commit_raises_is_unknown(store: SqlStateStore, error: Exception) -> None:
    """C1: the kind of error and its code are not looked at."""
    row = claim(store)

    def failing(_: object) -> None:
        raise error

    event.listen(store.database._engine, "commit", failing)
    with pytest.raises(errors.CommitUnknownError) as raised:
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
    deciding = "application_name LIKE '2pc:%'"
    wait_until(lambda: sessions(database, deciding) == [], what="its session to be gone")
    assert claim(store).status == "none"


def test_a_deferred_constraint_fails_before_commit(store: SqlStateStore, database: str) -> None:
    """C12: inside COMMIT the same violation would look like an unknown outcome, on every attempt again."""
    row = claim(store)
    with pytest.raises(errors.StateStoreError, match=r"duplicate key.*23505") as raised:
        attempt(store, row, lambda transaction: write(transaction, "(1, 7), (2, 7)"), decide_first)
    assert not isinstance(raised.value, errors.CommitUnknownError)
    assert (raised.value.sqlstate, raised.value.retriable) == ("23505", False)
    assert run_sql(database, "SELECT * FROM target") == []


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

    with pytest.raises(errors.StateStoreError, match="failed after the decision"):
        swallowed()
    assert row_of(store).status == "none"
    assert run_sql(database, "SELECT * FROM target") == []


# --- before COMMIT ---------------------------------------------------------------------------------------------------


def test_an_overtaken_decision_writes_nothing(store: SqlStateStore, database: str) -> None:
    """C2, D1: also where the newer claim did not end the session: the generation in the UPDATE is what decides."""
    row = claim(store)
    newer = "UPDATE kafka_transaction_state SET generation = 2"
    with pytest.raises(errors.SupersededError, match="generation 2"):
        attempt(store, row, write, lambda _: run_sql(database, newer), decide_first)
    assert run_sql(database, "SELECT * FROM target") == []


def test_a_deadlock_may_be_run_again(store: SqlStateStore, database: str) -> None:
    """C7: 40P01 between this batch and somebody else's transaction."""
    row = claim(store)
    write_rows = "INSERT INTO target VALUES (1, 1), (2, 2)"
    run_sql(database, write_rows)
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

    with pytest.raises(errors.StateStoreError, match="deadlock detected") as raised:
        crossed()
    other.close()
    assert (raised.value.sqlstate, raised.value.retriable) == ("40P01", True)


def test_a_driver_that_pauses_too_long_loses_its_transaction(store: SqlStateStore, database: str) -> None:
    """C12: its locks are given back by the server, and the batch may be run again."""
    row = claim(store)
    deciding = "application_name = '2pc:orders:1'"

    def pausing() -> None:
        with (
            sql_store(database, idle_in_transaction_timeout_ms=100) as hasty,
            hasty.deciding(ID, row.generation) as transaction,
        ):
            wait_until(lambda: sessions(database, deciding) == [], what="the server to end it")
            write(transaction)

    with pytest.raises(errors.StateStoreError) as raised:
        pausing()
    assert raised.value.sqlstate in {"25P03", "08006"}
    assert raised.value.retriable


# --- the way to the database -----------------------------------------------------------------------------------------


def test_a_database_that_was_there_is_waited_for(
    start_postgres: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    """A failover takes 10 to 20 seconds, and the sink survives it."""
    server = start_postgres()
    url = server.create_database("shop")
    with sql_store(url) as store, sql_store(url, connect_deadline_ms=300) as hasty:
        row = claim(store)
        assert hasty.read(ID) == row
        server.kill()
        with pytest.raises(errors.DatabaseUnreachableError) as raised:
            hasty.read(ID)
        assert raised.value.retriable
        with later(0.5, server.start):
            assert store.check_generation(ID, row.generation) == row
    waits = [line for line in caplog.messages if "trying again for up to" in line]
    assert [f":{make_url(url).port}/shop" in line for line in waits] == [True, True]  # one for each of the waits


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
        with pytest.raises(errors.DatabaseUnreachableError, match="read: connecting to"):
            SqlStateStore(url, settings(connect_timeout_s=2)).read(ID)


def test_a_stopped_server_is_not_waited_for_without_end(
    start_postgres: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B26: TCP still acknowledges, no time-out of the server runs; requests and COPY end all the same."""
    for module in ("connections", "deciding"):
        monkeypatch.setattr(f"jdbc_state.{module}.ANSWER_GRACE_MS", 0)
    server = start_postgres()
    url = server.create_database("shop")
    run_sql(url, "CREATE TABLE target (id int)")
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
            with pytest.raises(errors.StateStoreError) as raised:
                stopped()
            server.resume()
            assert (raised.value.sqlstate, raised.value.retriable) == ("08006", True)


def no_descriptor(_: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_transaction_that_cannot_be_watched_is_ended(
    store: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D16: no file descriptor is left in the middle of it. It holds no lock afterwards, and COMMIT was not sent."""
    row = claim(store)
    deciding = ExitStack()
    deciding.enter_context(store.deciding(ID, row.generation)).decide(FIRST)
    with monkeypatch.context() as patch:
        patch.setattr("jdbc_state.watchdog.os.dup", no_descriptor)
        with pytest.raises(errors.StateStoreError, match="cannot be watched") as raised:
            deciding.close()
    assert (raised.value.retriable, isinstance(raised.value, errors.CommitUnknownError)) == (True, False)
    assert run_sql(database, "SELECT status FROM kafka_transaction_state FOR UPDATE NOWAIT") == [("none",)]


# --- the connection that is kept ---------------------------------------------------------------------------------


#: The store's own.
KEPT = "application_name = 'jdbc_state'"


@pytest.mark.parametrize("trusted_s", [connections._TRUSTED_S, 0.0])
def test_a_kept_connection_that_is_gone_is_replaced(
    store: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch, trusted_s: float
) -> None:
    """C11: a restart, a failover or a pooler may have ended it meanwhile; one that was kept for long is asked."""
    monkeypatch.setattr(connections, "_TRUSTED_S", trusted_s)
    row = claim(store)
    store.check_generation(ID, row.generation)
    before = sessions(database, KEPT)
    assert end_sessions(database, KEPT) == 1
    assert store.check_generation(ID, row.generation).generation == row.generation
    assert sessions(database, KEPT) != before


@pytest.mark.parametrize(
    ("break_it", "ends"),
    [
        (lambda connection: connection.execute(text("SELECT 1 / 0")), pytest.raises(errors.StateStoreError)),
        (lambda connection: driver_connection(connection).close(), nullcontext()),
    ],
    ids=["failed", "closed without an error"],
)
def test_a_connection_that_is_broken_is_not_kept(
    store: SqlStateStore, database: str, break_it: Callable[[Connection], object], ends: AbstractContextManager[Any]
) -> None:
    """Nobody meets it again, not even to find it closed."""
    row = claim(store)
    before = set(sessions(database, KEPT))
    with ends, store.deciding(ID, row.generation) as transaction:
        break_it(transaction.connection)
    wait_until(lambda: not before & set(sessions(database, KEPT)), what="the session to be closed")
    assert store.check_generation(ID, row.generation).generation == row.generation


#: Of the database; and what takes longer.
TIMEOUT = "300ms"
LONGER = "SELECT pg_sleep(0.6)"


@pytest.fixture
def impatient(database: str) -> str:
    """A database that ends long transactions, where the server can. On an older one the tests show that none fails."""
    if int(run_sql(database, "SHOW server_version_num")[0][0]) >= 170_000:
        set_of(database, transaction_timeout=TIMEOUT)
    return database


def test_a_deciding_transaction_may_take_longer(impatient: str) -> None:
    """C12: it waits for tasks; its statements have bounds of their own. The setting is the session's again after it."""
    with sql_store(impatient) as store:
        row = claim(store)
        with store.deciding(ID, row.generation) as transaction:
            driver = driver_connection(transaction.connection)
            transaction.connection.execute(text(LONGER))
            transaction.decide(FIRST)
        assert row_of(store).status == "decided"
        with driver.cursor() as cursor:
            cursor.execute("SELECT current_setting('transaction_timeout', true)")
            assert cursor.fetchall() in ([(TIMEOUT,)], [(None,)])


def test_a_short_request_may_wait_longer(impatient: str) -> None:
    """C12: for a lock, for instance, or for a standby that a COMMIT waits for."""
    with Database(impatient, SETTINGS).requests("test", lock_timeout_ms=10_000) as connection:
        connection.execute(text(LONGER))
