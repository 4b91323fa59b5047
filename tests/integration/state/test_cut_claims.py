"""Claims whose connection is cut, at each of their statements: repeated in time, and never granted twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import count
from queue import SimpleQueue

import pytest
from sqlalchemy import make_url, text

from jdbc_state import SqlStateStore, StateRow
from spark_2pc_sink.errors import StateStoreError, SupersededError
from spark_2pc_sink.testing import TcpProxy, postgres_query, wait_until
from tests.harness.providers import Database
from tests.harness.sql import sessions
from tests.integration.state.state_stores import FIRST, ID, admin, claim, decide, execute, row_of, settings, sql_store

#: More statements than any claim has: where a loop over them must have ended.
STATEMENTS_MAX = 60
#: Look, claim, and end older sessions.
LEAST_STATEMENTS = 3
#: The claim itself, as the server gets it.
CLAIM = postgres_query("INSERT INTO public.kafka_transaction_state ")


@pytest.fixture
def proxy(postgres: Database) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
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
    return [one for (one,) in execute(url, "SELECT generation FROM kafka_transaction_state_actions ORDER BY number")]


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
        execute(database, "DELETE FROM kafka_transaction_state")
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
        wait_until(lambda: claims_waiting() == 1, deadline_s=10, what="a claim to wait")
        proxy.reset_connections()
        wait_until(lambda: claims_waiting() == 2, deadline_s=10, what="its repetition to wait too")
        unlock()
        assert answers.get(timeout=20).generation == 2
        thread.join(10)
        wait_until(lambda: claims_waiting() == 0, deadline_s=10, what="the server to end the other one")
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
