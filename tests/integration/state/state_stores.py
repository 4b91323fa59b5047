"""What the tests of state stores share: settings with short time-outs, stores, and rows in a given status."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

from jdbc_state import DecidingTransaction, Decision, SqlStateStore, StateRow, StateStore, StoreSettings
from spark_2pc_sink.choices.choice import state_command
from spark_2pc_sink.errors import StateStoreError
from tests.harness.sql import run_sql

ID = "orders"
CLUSTER = "cluster-a"
QUERY = "query-1"
RUN = "run-1"

#: Short where a test waits for it, long where nothing should ever wait.
SETTINGS = StoreSettings(
    state_schema="public",
    state_table="kafka_transaction_state",
    history_table="kafka_transaction_state_history",
    history_batches=1_000,
    connect_timeout_s=5,
    connect_deadline_ms=10_000,
    claim_lock_timeout_ms=200,
    claim_deadline_ms=10_000,
    lock_timeout_ms=10_000,
    statement_timeout_ms=20_000,
    idle_in_transaction_timeout_ms=20_000,
    commit_timeout_ms=20_000,
    schema_help=state_command,
)

FIRST = Decision(
    prepared="5:0",
    expected="",
    batch_id=0,
    row_count=2,
    record_count=3,
    digest="00000000000000000000000000000abc",
    kafka_offsets={"orders-0": (0, 1), "orders-1": (7, 7)},
    topic_ids={"orders": "AAAAAAAAAAAAAAAAAAAAAQ"},
)
#: An operation of the store -> what to call it with, beside id and generation.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "mark_initialized": {"settled": "5:0"},
    "mark_done": {"settled": "5:1"},
    "mark_owed": {},
    "take_empty_batch": {"batch_id": 1},
    "accept_open": {"prepared": "5:0", "batch_id": 3, "kafka_offsets": {"orders-0": (5, 5)}},
    "accept_replay": {},
    "drop_batch": {"settled": "5:1"},
    "accept_loss": {"settled": "5:9", "batch_id": 3, "record_count": 7, "kafka_offsets": {"orders-0": (8, 14)}},
}


def settings(**changes: Any) -> StoreSettings:
    return replace(SETTINGS, **changes)


@contextmanager
def sql_store(url: str, **changes: Any) -> Iterator[SqlStateStore]:
    """A store on PostgreSQL whose tables exist."""
    store = SqlStateStore(url, settings(**changes))
    store.prepare_schema()
    try:
        yield store
    finally:
        store.close()


def refused(url: str, **changes: Any) -> str:
    """Why the tables cannot be prepared."""
    with pytest.raises(StateStoreError) as raised:
        SqlStateStore(url, settings(**changes)).prepare_schema()
    return str(raised.value)


def claim(store: StateStore, transactional_id: str = ID, **changes: Any) -> StateRow:
    """A claim by QUERY, RUN and CLUSTER, unless ``changes`` say otherwise."""
    claimant = {"cluster_id": CLUSTER, "query_id": QUERY, "run_id": RUN, **changes}
    return store.claim(transactional_id=transactional_id, **claimant)


def decide(store: StateStore, row: StateRow, **changes: Any) -> None:
    """Decide a batch under the claim of ``row``, beside ``row``."""
    with store.deciding(row.transactional_id, row.generation) as transaction:
        transaction.decide(replace(FIRST, **{"expected": row.prepared_transaction_state, **changes}))


def attempt(store: StateStore, row: StateRow, *steps: Callable[[DecidingTransaction], object]) -> None:
    """A deciding transaction under the claim of ``row``, of these steps."""
    with store.deciding(row.transactional_id, row.generation) as transaction:
        for step in steps:
            step(transaction)


def decide_first(transaction: DecidingTransaction) -> None:
    transaction.decide(FIRST)


def call(store: StateStore, operation: str, transactional_id: str, generation: int) -> StateRow | None:
    """One of the operations of TRANSITIONS, with its arguments of ARGUMENTS, beside the row as it is."""
    row = store.read(transactional_id)
    expected = "" if row is None else row.prepared_transaction_state
    if operation == "decide":
        with store.deciding(transactional_id, generation) as transaction:
            transaction.decide(replace(FIRST, expected=expected))
        return store.read(transactional_id)
    arguments = ARGUMENTS[operation] | ({"expected": expected} if operation == "take_empty_batch" else {})
    answer: StateRow = getattr(store, operation)(transactional_id, generation, **arguments)
    return answer


def reach(store: StateStore, status: str, transactional_id: str = ID) -> StateRow:
    """A row in ``status``, claimed once."""
    row = claim(store, transactional_id)
    if status != "none":
        decide(store, row)
    if status == "done":
        store.mark_done(transactional_id, row.generation, "5:1")
    if status == "owed":
        store.mark_owed(transactional_id, row.generation)
    reached = row_of(store, transactional_id)
    assert reached.status == status
    return reached


def row_of(store: StateStore, transactional_id: str = ID) -> StateRow:
    row = store.read(transactional_id)
    assert row is not None
    return row


def set_of(url: str, **values: str) -> None:
    """What each new session of a database begins with."""
    for name, value in values.items():
        run_sql(url, f"ALTER DATABASE \"{make_url(url).database}\" SET {name} = '{value}'")


@contextmanager
def admin(url: str) -> Iterator[Engine]:
    """An engine in autocommit mode, for looking and for faults."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def role(url: str) -> Iterator[tuple[str, str]]:
    """A role that may log in and create nothing: its name, and its URL."""
    name = f"role_{secrets.token_hex(4)}"
    run_sql(url, f"CREATE ROLE {name} LOGIN PASSWORD 'of-the-role'")
    run_sql(url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # which PostgreSQL 14 gives to all
    try:
        yield name, make_url(url).set(username=name, password="of-the-role").render_as_string(hide_password=False)
    finally:
        run_sql(url, f"REASSIGN OWNED BY {name} TO CURRENT_USER")
        run_sql(url, f"DROP OWNED BY {name}")
        run_sql(url, f"DROP ROLE {name}")
