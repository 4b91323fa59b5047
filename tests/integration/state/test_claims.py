"""Claims against real sessions of PostgreSQL: who is ended, who is waited for, and who is left alone."""

from __future__ import annotations

import io
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from jdbc_state import SqlStateStore, StateRow, application_name, ddl
from jdbc_state.claim import Claimant
from jdbc_state.connections import driver_connection
from jdbc_state.errors import CommitsLostError
from jdbc_state.preparing import CREATE_ATTEMPTS_MAX
from spark_2pc_sink.errors import ClaimRefusedError, StateStoreError
from spark_2pc_sink.testing import wait_until
from tests.harness.later import later
from tests.integration.postgres import database_tables
from tests.integration.state.state_stores import FIRST, ID, claim, decide, execute, settings, sql_store

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(database: str) -> Iterator[SqlStateStore]:
    """A store with its tables, beside a target table with a unique key."""
    execute(database, "CREATE TABLE target (id int PRIMARY KEY)")
    with sql_store(database) as sql:
        yield sql


@contextmanager
def session(url: str, *, name: str = "", user: str | None = None, password: str | None = None) -> Iterator[Any]:
    """A session in an open transaction; yields its cursor."""
    given = make_url(url)
    with closing(
        psycopg2.connect(
            host=given.host,
            port=given.port,
            dbname=given.database,
            user=user or given.username,
            password=password or given.password,
            application_name=name,
        )
    ) as connection:
        yield connection.cursor()


class Rows(io.RawIOBase):
    """COPY's input that says when the first row was asked for, and then gives nothing until it is let go."""

    def __init__(self, first: bytes) -> None:
        super().__init__()
        self._chunks = [first]
        self.copying = threading.Event()
        self.go_on = threading.Event()

    def read(self, _size: int = -1) -> bytes:
        if self._chunks:
            return self._chunks.pop()
        self.copying.set()
        assert self.go_on.wait(20)
        return b""


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", ["public", 'Odd "schema"'])
def test_first_starts_make_the_tables_together(database: str, schema: str) -> None:
    """C3: CREATE … IF NOT EXISTS looks first and creates then; who loses the race must not fail."""
    names = settings(state_schema=schema, state_table="Some state", history_batches=2)
    stores = [SqlStateStore(database, names) for _ in range(6)]
    barrier = threading.Barrier(len(stores))
    generations: list[int] = []

    def first(store: SqlStateStore) -> None:
        barrier.wait(10)
        store.prepare_schema()
        generations.append(claim(store).generation)

    threads = [threading.Thread(target=first, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for store in stores:
        store.close()
    assert sorted(generations) == [1, 2, 3, 4, 5, 6]


def test_a_lost_race_for_a_table_is_run_again(database: str) -> None:
    """C3: the other driver's CREATE TABLE is not yet visible, and its commit makes ours fail."""
    with closing(SqlStateStore(database, settings())) as other:
        with session(database) as cursor:
            cursor.execute(ddl(settings()))
            with later(0.5, cursor.connection.commit):
                other.prepare_schema()
        assert claim(other).generation == 1


def test_a_race_that_is_always_lost_is_an_error(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def lose(*_: object) -> None:
        attempts.append(1)
        raise DBAPIError("CREATE TABLE", None, errors.lookup("23505")())

    monkeypatch.setattr("jdbc_state.preparing._run", lose)
    monkeypatch.setattr("jdbc_state.preparing._LOST_RACE", {""})
    with sql_store_error(database):
        assert len(attempts) == CREATE_ATTEMPTS_MAX


@pytest.mark.parametrize(
    ("columns", "lacks"),
    [
        ("transactional_id text PRIMARY KEY, prepared_transaction_state text", "lacks columns status, settled"),
        ("LIKE public.kafka_transaction_state", "lacks the primary key (transactional_id)"),
    ],
)
def test_a_table_that_is_not_ours_is_refused(store: SqlStateStore, database: str, columns: str, lacks: str) -> None:
    """C3, D7: without the primary key two drivers could each have a row of their own."""
    execute(database, f"CREATE TABLE other ({columns})")
    with sql_store_error(database, state_table="other") as raised:
        assert lacks in str(raised.value)


@contextmanager
def sql_store_error(url: str, **changes: Any) -> Iterator[pytest.ExceptionInfo[StateStoreError]]:
    with pytest.raises(StateStoreError) as raised:
        SqlStateStore(url, settings(**changes)).prepare_schema()
    yield raised


@contextmanager
def role(url: str) -> Iterator[str]:
    """A role that may log in and read, and create nothing; its URL."""
    name = f"role_{secrets.token_hex(4)}"
    execute(url, f"CREATE ROLE {name} LOGIN PASSWORD 'of-the-role'")
    try:
        yield make_url(url).set(username=name, password="of-the-role").render_as_string(hide_password=False)
    finally:
        execute(url, f"DROP OWNED BY {name}")
        execute(url, f"DROP ROLE {name}")


def test_a_role_that_may_create_nothing_can_use_tables_that_are_there(store: SqlStateStore, database: str) -> None:
    with role(database) as url:
        name = make_url(url).username
        with sql_store_error(url, state_schema="missing") as raised:
            assert raised.value.sqlstate == "42501"
            assert "permission denied" in raised.value.detail
            assert raised.value.remedies[0].startswith("spark-2pc state ddl --state-schema missing ")
            assert "of-the-role" not in str(raised.value)
        execute(database, f"GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state TO {name}")
        execute(database, f"GRANT SELECT, INSERT, UPDATE, DELETE ON kafka_transaction_state_history TO {name}")
        execute(database, f"GRANT SELECT, INSERT, DELETE ON kafka_transaction_state_actions TO {name}")
        with sql_store(url) as own:
            decide(own, claim(own))


# --- older drivers ---------------------------------------------------------------------------------------------------


def test_a_driver_inside_copy_is_ended(store: SqlStateStore, database: str) -> None:
    """C2: it holds unique keys of the target, which the next driver's batch is about to insert."""
    row, rows, raised = claim(store), Rows(b"1\n"), []

    def older() -> None:
        try:
            with store.deciding(ID, row.generation) as transaction:
                cursor = driver_connection(transaction.connection).cursor()
                cursor.copy_expert("COPY target FROM STDIN", rows)
        except StateStoreError as error:
            raised.append(error)

    thread = threading.Thread(target=older)
    thread.start()
    assert rows.copying.wait(10)
    taken = claim(store)
    with store.deciding(ID, taken.generation) as transaction:
        transaction.connection.execute(text("INSERT INTO target VALUES (1)"))
        transaction.decide(FIRST)
    rows.go_on.set()
    thread.join(20)
    assert [error.retriable for error in raised] == [True]
    assert execute(database, "SELECT id FROM target") == [(1,)]


STOPPED_DRIVER = """
    import os, signal, sys
    from jdbc_state import SqlStateStore
    from spark_2pc_sink.errors import CommitUnknownError
    from tests.integration.state.state_stores import FIRST, ID, SETTINGS, claim

    store = SqlStateStore(sys.argv[1], SETTINGS)
    row = claim(store)
    try:
        with store.deciding(ID, row.generation) as transaction:
            transaction.decide(FIRST)
            print("decided", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
    except CommitUnknownError:
        print("unknown", flush=True)
"""


def test_a_stopped_driver_is_defeated(store: SqlStateStore, database: str) -> None:
    """C2: stopped between the row's UPDATE and COMMIT, it must not land its COMMIT when it goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STOPPED_DRIVER), database], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "decided\n"
        begun = time.monotonic()
        taken = claim(store)
        assert time.monotonic() - begun < 5
        assert (taken.generation, taken.status) == (2, "none")
        driver.send_signal(signal.SIGCONT)
        assert driver.stdout.readline() == "unknown\n"
        assert driver.wait(10) == 0
    assert store.read(ID) == taken


def test_a_commit_under_way_is_waited_for(store: SqlStateStore, database: str) -> None:
    """C1: a holder that is not ours to end and that commits in time is read, not defeated."""
    row = claim(store)
    with session(database) as cursor:
        cursor.execute("UPDATE kafka_transaction_state SET status = 'decided'")
        with later(0.5, cursor.connection.commit):
            assert claim(store).status == "decided"
    assert row.status == "none"


def test_a_session_that_is_no_driver_is_named_and_left_alone(database: str) -> None:
    """An operator's open transaction is not ours to end; the claim says who is in its way, in bounded time."""
    with sql_store(database, claim_deadline_ms=500) as store:
        claim(store)
        with session(database, name="psql") as cursor:
            cursor.execute("UPDATE kafka_transaction_state SET run_id = 'by hand'")
            with pytest.raises(StateStoreError) as raised:
                claim(store)
            assert f"pid {cursor.connection.info.backend_pid} (psql, role" in raised.value.detail
            assert (raised.value.sqlstate, raised.value.retriable) == ("55P03", True)
            cursor.connection.commit()
        row = store.read(ID)
        assert row is not None
        assert (row.run_id, row.generation) == ("by hand", 1)
        assert claim(store).generation == 2


def test_a_locked_table_is_waited_for_and_its_holder_named(database: str) -> None:
    """Somebody's ALTER TABLE, or a VACUUM FULL."""
    with sql_store(database, claim_deadline_ms=500) as store, session(database, name="psql") as cursor:
        cursor.execute("LOCK TABLE kafka_transaction_state")
        with pytest.raises(StateStoreError, match=r"stayed locked for 500 ms.*\(psql, role"):
            claim(store)


def test_a_claim_that_cannot_look_who_is_in_its_way_says_why(
    store: SqlStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11: the server has no connection left for the second request. No session is ended for a row not seen."""
    row = claim(store)
    full = StateStoreError(operation="read", detail="too many clients already", sqlstate="53300", retriable=True)

    def refuse(_: Claimant) -> None:
        raise full

    with store.deciding(ID, row.generation) as transaction:
        transaction.decide(FIRST)
        with monkeypatch.context() as patch:
            patch.setattr(store, "judged_row", refuse)
            with pytest.raises(StateStoreError) as raised:
                claim(store)
        assert raised.value is full
    assert claim(store).status == "decided"


def test_a_claim_is_tried_a_bounded_number_of_times(
    store: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its deadline."""
    monkeypatch.setattr("jdbc_state.claiming.CLAIM_ATTEMPTS_MAX", 2)
    claim(store)
    with session(database) as cursor:
        cursor.execute("SELECT FROM kafka_transaction_state FOR UPDATE")
        with pytest.raises(StateStoreError, match="stayed locked"):
            claim(store)


def test_a_row_that_somebody_is_just_inserting_is_waited_for(
    store: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: the claim meets the key of a row that it cannot see yet, also when it looks who is in its way."""
    judged_row = store.judged_row
    with session(database) as cursor:

        def look_and_commit(claimant: Claimant) -> StateRow | None:
            found = judged_row(claimant)
            cursor.connection.commit()
            return found

        monkeypatch.setattr(store, "judged_row", look_and_commit)
        cursor.execute(
            "INSERT INTO kafka_transaction_state "
            "SELECT %s, '', 'none', '', 7, NULL, NULL, NULL, NULL, 0, 0, '', '{}', now(), NULL, NULL",
            [ID],
        )
        assert claim(store).generation == 8


def test_a_refused_claim_does_not_touch_the_healthy_driver(store: SqlStateStore) -> None:
    """A10, B21, D6: not even while that driver holds the row, when the refused one has to wait for it."""
    row = claim(store)
    with store.deciding(ID, row.generation) as transaction:
        for changes in ({"query_id": "query-2"}, {"cluster_id": "cluster-b"}):
            with pytest.raises(ClaimRefusedError):
                claim(store, **changes)
        transaction.decide(FIRST)
        for changes in ({"query_id": "query-2"}, {"cluster_id": "cluster-b"}):
            with pytest.raises(ClaimRefusedError):
                claim(store, **changes)
        with pytest.raises(CommitsLostError):
            claim(store, expected_generation=row.generation + 1, run_id="run-2")
    decided = store.read(ID)
    assert decided is not None
    assert (decided.status, decided.generation) == ("decided", 1)


def test_the_same_id_with_another_state_table_is_another_sink(store: SqlStateStore, database: str) -> None:
    with sql_store(database, state_schema="elsewhere") as elsewhere:
        row = claim(elsewhere)
        with elsewhere.deciding(ID, row.generation) as transaction:
            claim(store)
            claim(store)
            transaction.decide(FIRST)


def test_sessions_that_only_carry_the_claims_name_are_ended_too(store: SqlStateStore, database: str) -> None:
    """C10: a task of the older driver that copies into a staging table of its own."""
    row = claim(store)
    with session(database, name=application_name(ID, row.generation)) as cursor:
        cursor.execute("CREATE TABLE staging (id int)")
        with session(database, name=application_name(ID, row.generation + 1)) as newer:
            newer.execute("SELECT 1")
            claim(store)
            newer.execute("SELECT 1")
        with pytest.raises(psycopg2.OperationalError):
            cursor.execute("SELECT 1")


@pytest.mark.parametrize("generation", ["", "1x", "-1", "99999999999999999999999", "1:0"])
def test_a_name_without_a_generation_is_somebody_elses(store: SqlStateStore, database: str, generation: str) -> None:
    claim(store)
    with session(database, name=f"2pc:{ID}:{generation}") as cursor:
        cursor.execute("SELECT 1")
        claim(store)
        cursor.execute("SELECT 1")


def test_another_roles_session_is_named_and_left_alone(store: SqlStateStore, database: str) -> None:
    """Any role may choose any application_name; what the role itself has to end is said."""
    claim(store)
    with role(database) as url:
        name = make_url(url).username
        with session(url, name=application_name(ID, 0)) as cursor:
            cursor.execute("SELECT 1")
            with pytest.raises(StateStoreError, match=f"role {name}.*pg_terminate_backend"):
                claim(store)
            cursor.execute("SELECT 1")
            backend = cursor.connection.info.backend_pid
        # The server takes a moment to notice that a client has gone.
        there = f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend}"
        wait_until(lambda: not database_tables.rows(database, there), deadline_s=30, what="the session to be gone")
        assert claim(store).generation == 3


def test_an_older_session_that_does_not_end_is_named(
    store: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that is stopped itself cannot act on the signal; the claim is not held up by it for ever."""
    monkeypatch.setattr("jdbc_state.claiming._END_WAIT_MS", 100)
    with (
        sql_store(database, claim_deadline_ms=1_500) as hasty,
        session(database, name=application_name(ID, 0)) as cursor,
    ):
        backend = cursor.connection.info.backend_pid
        signal_backend(database, backend, signal.SIGSTOP)
        try:
            with pytest.raises(StateStoreError, match=f"have not ended yet: pid {backend} "):
                claim(hasty)
        finally:
            signal_backend(database, backend, signal.SIGCONT)
        assert claim(store).generation == 2


def signal_backend(url: str, pid: int, number: signal.Signals) -> None:
    """Send a signal to a backend of the test's own database, and to nothing else."""
    title = Path(f"/proc/{pid}/cmdline")
    if not title.exists() or f" {make_url(url).database} " not in title.read_text():
        pytest.skip("the server's processes are not visible here")
    os.kill(pid, number)


def test_reading_waits_for_nobody(store: SqlStateStore, database: str) -> None:
    """`status` looks at a running sink without being noticed."""
    row = claim(store)
    with session(database) as cursor:
        cursor.execute("UPDATE kafka_transaction_state SET run_id = 'by hand'")
        assert store.read(ID) == row
        cursor.execute("LOCK TABLE kafka_transaction_state IN ACCESS EXCLUSIVE MODE")
        begun = time.monotonic()
        with pytest.raises(StateStoreError) as raised:
            store.read(ID)
        assert time.monotonic() - begun < 5
        assert raised.value.sqlstate == "55P03"
