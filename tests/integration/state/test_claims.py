"""Claims against real sessions of PostgreSQL: who is ended, waited for or left alone; and cut connections."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError

from jdbc_state import SqlStateStore, StateRow, application_name, preparing
from jdbc_state.claim import Claimant
from jdbc_state.errors import CommitsLostError
from spark_2pc_sink.errors import ClaimRefusedError, StateStoreError, SupersededError
from spark_2pc_sink.testing import TcpProxy, postgres_query, wait_until
from tests.harness.acts import later
from tests.harness.providers import Database
from tests.harness.sql import run_sql, sessions
from tests.integration.state.state_stores import (
    FIRST,
    ID,
    admin,
    claim,
    decide,
    refused,
    role,
    row_of,
    settings,
    sql_store,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(sql: SqlStateStore) -> SqlStateStore:
    return sql


@contextmanager
def session(url: str, *, name: str = "") -> Iterator[Any]:
    """A session in an open transaction; yields its cursor."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg2.connect(plain, application_name=name)) as connection:
        yield connection.cursor()


# --- tables ----------------------------------------------------------------------------------------------------------


def test_first_starts_make_the_tables_together(database: str) -> None:
    """C3: CREATE … IF NOT EXISTS looks first and creates then; who loses the race must not fail."""
    names = settings(state_schema='Odd "schema"', state_table="Some state", history_batches=2)
    stores = [SqlStateStore(database, names) for _ in range(6)]
    barrier = threading.Barrier(len(stores))
    generations: list[int] = []

    def first(store: SqlStateStore) -> None:
        barrier.wait(10)
        store.prepare_schema()
        generations.append(claim(store).generation)

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(first, stores, timeout=30))
    for store in stores:
        store.close()
    assert sorted(generations) == [1, 2, 3, 4, 5, 6]


def test_a_race_that_is_always_lost_is_an_error(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def lose(*_: object) -> None:
        attempts.append(1)
        raise DBAPIError("CREATE TABLE", None, errors.lookup("23505")())

    monkeypatch.setattr(preparing, "_run", lose)
    monkeypatch.setattr(preparing, "_LOST_RACE", {""})
    refused(database)
    assert len(attempts) == preparing.CREATE_ATTEMPTS_MAX


def test_a_race_is_lost_to_a_table_that_can_be_used(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = preparing._run

    def lose(connection: Connection, statement: str) -> None:
        run(connection, statement)
        if "CREATE TABLE" in statement:
            raise DBAPIError("CREATE TABLE", None, errors.lookup("23505")())

    monkeypatch.setattr(preparing, "_run", lose)
    monkeypatch.setattr(preparing, "_LOST_RACE", {""})
    with closing(SqlStateStore(database, settings())) as store:
        store.prepare_schema()
        assert claim(store).generation == 1


@pytest.mark.parametrize(
    ("columns", "lacks"),
    [
        ("transactional_id text PRIMARY KEY, prepared_transaction_state text", "lacks columns status, settled"),
        ("LIKE public.kafka_transaction_state", "lacks the primary key (transactional_id)"),
    ],
)
def test_a_table_that_is_not_ours_is_refused(store: SqlStateStore, database: str, columns: str, lacks: str) -> None:
    """C3, D7: without the primary key two drivers could each have a row of their own."""
    run_sql(database, f"CREATE TABLE other ({columns})")
    assert lacks in refused(database, state_table="other")


# --- older drivers ---------------------------------------------------------------------------------------------------


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
        assert (row_of(store).run_id, row_of(store).generation) == ("by hand", 1)
        assert claim(store).generation == 2


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


def test_a_locked_table_is_waited_for_and_its_holder_named(database: str) -> None:
    """Somebody's ALTER TABLE, or a VACUUM FULL."""
    with sql_store(database, claim_deadline_ms=500) as store, session(database, name="psql") as cursor:
        cursor.execute("LOCK TABLE kafka_transaction_state")
        with pytest.raises(StateStoreError, match=r"stayed locked for 500 ms.*\(psql, role"):
            claim(store)


def test_a_claim_is_tried_a_bounded_number_of_times(
    store: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its deadline."""
    monkeypatch.setattr("jdbc_state.store.CLAIM_ATTEMPTS_MAX", 2)
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
        for decided in (False, True):
            if decided:
                transaction.decide(FIRST)
            for changes in ({"query_id": "query-2"}, {"cluster_id": "cluster-b"}):
                with pytest.raises(ClaimRefusedError):
                    claim(store, **changes)
        with pytest.raises(CommitsLostError):
            claim(store, expected_generation=row.generation + 1, run_id="run-2")
    assert (row_of(store).status, row_of(store).generation) == ("decided", 1)


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


def test_another_roles_session_is_named_and_left_alone(store: SqlStateStore, database: str) -> None:
    """Any role may choose any application_name; what the role itself has to end is said."""
    claim(store)
    with role(database) as (name, url):
        with session(url, name=application_name(ID, 0)) as cursor:
            cursor.execute("SELECT 1")
            with pytest.raises(StateStoreError, match=f"role {name}.*pg_terminate_backend"):
                claim(store)
            cursor.execute("SELECT 1")
        # The server takes a moment to notice that a client has gone.
        theirs = f"usename = '{name}'"
        wait_until(lambda: sessions(database, theirs) == [], what="the session to be gone")
        assert claim(store).generation == 3


def test_an_older_session_that_does_not_end_is_named(
    store: SqlStateStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that is stopped itself cannot act on the signal; the claim is not held up by it for ever."""
    monkeypatch.setattr("jdbc_state.store._END_WAIT_MS", 100)
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


#: More statements than any claim has: where a loop over them must have ended.
STATEMENTS_MAX = 60
#: Look, claim, and end older sessions.
LEAST_STATEMENTS = 3
#: The claim itself, as the server gets it.
CLAIM = postgres_query("INSERT INTO public.kafka_transaction_state ")


@pytest.fixture
def proxy(postgres: Database) -> Iterator[TcpProxy]:
    with postgres.proxy() as proxy:
        yield proxy


def through(url: str, proxy: TcpProxy) -> str:
    return make_url(url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)


def lose(proxy: TcpProxy, which: str, number: int) -> Callable[[], bool]:
    """Lose the statement with this number, or its answer; tells whether there was such a statement."""
    numbers, fired = count(), threading.Event()

    def wanted(chunk: bytes) -> bool:
        if not postgres_query("")(chunk) or next(numbers) != number:
            return False
        fired.set()
        return True

    (proxy.lose_requests if which == "request" else proxy.lose_answer)(wanted)
    return fired.is_set


@contextmanager
def open_decision(store: SqlStateStore, row: StateRow) -> Iterator[None]:
    """An older driver that has decided and does not commit, which the claim has to end."""
    ended = False
    try:
        with store.deciding(ID, row.generation) as transaction:
            transaction.decide(FIRST)
            yield
    except StateStoreError:
        ended = True
    assert ended


@contextmanager
def row_locked(url: str) -> Iterator[Callable[[], None]]:
    """Somebody else's lock on the row; yields what ends it."""
    with admin(url) as engine, engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        connection.execute(text("SELECT FROM kafka_transaction_state FOR UPDATE"))
        yield connection.commit


def claims(url: str) -> list[int]:
    """The generations that the lines of claims tell of."""
    return [one for (one,) in run_sql(url, "SELECT generation FROM kafka_transaction_state_actions ORDER BY number")]


@pytest.mark.parametrize("which", ["request", "answer"])
@pytest.mark.parametrize(
    "older", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["alone", "beside an older driver"]
)
def test_a_claim_is_cut_at_each_of_its_statements(database: str, proxy: TcpProxy, which: str, older: bool) -> None:
    """C18: the row is one generation on, whatever the server got, and an older driver is ended."""
    with sql_store(database) as direct, sql_store(through(database, proxy), claim_lock_timeout_ms=20) as store:
        taken = claim(direct, run_id="before")
        for number in range(STATEMENTS_MAX):
            with open_decision(direct, taken) if older else nullcontext():
                fired = lose(proxy, which, number)
                taken = claim(store, run_id=f"run {number}")
                proxy.restore()
            assert (taken.generation, taken.run_id, taken.status) == (number + 2, f"run {number}", "none")
            if not fired():
                break
        assert number > LEAST_STATEMENTS
        assert direct.read(ID) is not None
        assert claims(database) == list(range(1, number + 3))


@pytest.mark.parametrize("which", ["request", "answer"])
def test_the_making_of_the_tables_is_cut_at_each_statement(database: str, proxy: TcpProxy, which: str) -> None:
    """C18: the first statements of a start; tables that were made without an answer are found."""
    for number in range(STATEMENTS_MAX):
        with closing(SqlStateStore(through(database, proxy), settings(state_schema=f"s{number}"))) as store:
            # A database that has never answered is not waited for.
            assert store.read(ID) is None
            fired = lose(proxy, which, number)
            store.prepare_schema()
            proxy.restore()
            assert claim(store).generation == 1
        if not fired():
            break
    assert number > LEAST_STATEMENTS


def test_a_claim_whose_answer_is_lost_is_made_once(database: str, proxy: TcpProxy) -> None:
    """C18: of a new row, of a driver that claims once more, of a command, and of a lost row (C13)."""
    with sql_store(database) as direct, sql_store(through(database, proxy)) as store:
        # There is no generation yet that two claims could differ by.
        proxy.lose_answer(CLAIM)
        assert claim(store).generation == 1
        proxy.lose_answer(postgres_query("UPDATE public.kafka_transaction_state "))
        assert claim(store, expected_generation=1).generation == 2
        # Two commands have no run by which the row could tell them apart, and never share a claim.
        proxy.lose_answer(CLAIM)
        assert claim(store, query_id=None, run_id=None).generation == 4
        decide(direct, claim(direct))
        run_sql(database, "DELETE FROM kafka_transaction_state")
        # What it was made from is said, although the answer that said it was lost.
        proxy.lose_answer(CLAIM)
        taken = claim(store, run_id="run-2")
        assert (taken.generation, taken.status, taken.rebuilt_from) == (6, "decided", 1)
        assert claims(database) == [1, 2, 3, 4, 5, 6]


def test_a_claim_that_still_waits_in_the_server_is_not_granted_beside_its_repetition(
    database: str, proxy: TcpProxy
) -> None:
    """C18: the server does not notice that the client is gone, and carries the first one out when the lock is free."""

    def claims_waiting() -> int:
        return len(sessions(database, "wait_event_type = 'Lock'"))

    answers: SimpleQueue[StateRow] = SimpleQueue()
    with (
        sql_store(database) as direct,
        sql_store(through(database, proxy), claim_lock_timeout_ms=9_000) as store,
        ExitStack() as stack,
    ):
        claim(direct)
        unlock = stack.enter_context(row_locked(database))
        thread = threading.Thread(target=lambda: answers.put(claim(store, run_id="run-2")))
        thread.start()
        wait_until(lambda: claims_waiting() == 1, what="a claim to wait")
        proxy.reset_connections()
        wait_until(lambda: claims_waiting() == 2, what="its repetition to wait too")
        unlock()
        assert answers.get(timeout=20).generation == 2
        thread.join(10)
        wait_until(lambda: claims_waiting() == 0, what="the server to end the other one")
        assert (row_of(direct).generation, row_of(direct).run_id) == (2, "run-2")
        assert claims(database) == [1, 2]


def test_who_claims_while_a_claim_has_no_answer_keeps_the_row(
    database: str, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18, D1: the claim was carried out and then replaced; it is not made again over the newer driver's."""
    with sql_store(database) as direct, sql_store(through(database, proxy)) as store:
        claim(direct)
        newer, read = [], store.read

        def look_behind_another(transactional_id: str) -> StateRow | None:
            if proxy.answers_lost:
                newer.append(claim(direct, run_id="run-3"))
            return read(transactional_id)

        monkeypatch.setattr(store, "read", look_behind_another)
        proxy.lose_answer(CLAIM)
        with pytest.raises(SupersededError, match="of run run-3: a newer driver has taken over"):
            claim(store, run_id="run-2")
        assert [row.generation for row in newer] == [3]
        assert direct.read(ID) == newer[0]
