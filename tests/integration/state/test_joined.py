"""The decision in a transaction of the caller's: one COMMIT for both, with the note of the one before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from jdbc_state import KeptRecords, SqlStateStore
from jdbc_state.errors import CommitsLostError, LocalProtocolError, StateStoreError, SupersededError
from tests.harness.sql import sessions
from tests.integration.state.state_stores import (
    FIRST,
    ID,
    claim,
    decide,
    execute,
    role,
    row_of,
    set_of,
    settings,
    sql_store,
)

SETTINGS_SHOWN = ("application_name", "synchronous_commit", "idle_in_transaction_session_timeout")
KEPT = KeptRecords(0, ("orders-0", "orders-1"), b"\x00two batches")


@pytest.fixture(params=[0, 1_000], ids=["no history", "history"])
def store(request: pytest.FixtureRequest, database: str) -> Iterator[SqlStateStore]:
    with sql_store(database, history_batches=request.param, keep_records=True) as sql:
        yield sql


@pytest.fixture(params=["psycopg2", "psycopg"])
def connection(request: pytest.FixtureRequest, database: str) -> Iterator[Connection]:
    """The caller's, by each driver."""
    engine = create_engine(make_url(database).set(drivername=f"postgresql+{request.param}"))
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def shown(connection: Connection) -> dict[str, Any]:
    return {name: connection.scalar(text(f"SHOW {name}")) for name in SETTINGS_SHOWN}


def test_commit_decides_and_rollback_leaves_nothing(store: SqlStateStore, connection: Connection) -> None:
    row = claim(store)
    store.decide_within(connection, ID, row.generation, FIRST, kept=KEPT)
    connection.rollback()
    assert (row_of(store).status, store.read_kept(ID)) == ("none", None)
    store.decide_within(connection, ID, row.generation, FIRST, kept=KEPT)
    connection.commit()
    decided = row_of(store)
    assert (decided.status, decided.prepared_transaction_state) == ("decided", FIRST.prepared)
    assert decided.kafka_offsets == FIRST.kafka_offsets
    assert store.read_kept(ID) == KEPT


def test_the_note_of_the_one_before_travels_with_the_next(store: SqlStateStore, connection: Connection) -> None:
    row = claim(store)
    store.decide_within(connection, ID, row.generation, FIRST, kept=KEPT)
    connection.commit()
    following = replace(FIRST, prepared="5:1", expected="5:0", batch_id=1)
    with pytest.raises(LocalProtocolError, match="decided"):
        store.decide_within(connection, ID, row.generation, following)
    connection.rollback()
    newer = replace(KEPT, batch_id=1, batches=b"")
    store.decide_within(connection, ID, row.generation, following, settled="5:1", kept=newer)
    connection.commit()
    decided = row_of(store)
    assert (decided.status, decided.prepared_transaction_state, decided.settled) == ("decided", "5:1", "")
    assert store.read_kept(ID) == newer
    lines = store.read_history(ID, last=10)
    assert [(line.row.batch_id, line.row.status) for line in lines[:2]] in ([], [(1, "decided"), (0, "done")])


def test_a_claim_that_is_lost_is_refused(store: SqlStateStore, connection: Connection) -> None:
    old, new = claim(store), claim(store)
    with pytest.raises(SupersededError):
        store.decide_within(connection, ID, old.generation, FIRST)
    connection.rollback()
    decide(store, new)
    with pytest.raises(CommitsLostError, match="lost commits"):
        store.decide_within(connection, ID, new.generation, replace(FIRST, expected="9:9"), settled="5:1")
    connection.rollback()
    connection.execute(text("DELETE FROM kafka_transaction_state"))
    connection.commit()
    with pytest.raises(SupersededError):
        store.decide_within(connection, ID, new.generation, FIRST)


def test_a_row_that_has_changed_since_the_snapshot_is_no_lost_commit(
    store: SqlStateStore, connection: Connection
) -> None:
    """Above READ COMMITTED the caller sees the row as it was, and hears what every program there repeats for."""
    claim(store)
    connection.execution_options(isolation_level="REPEATABLE READ")
    connection.execute(text("SELECT 1"))
    row = claim(store)
    with pytest.raises(DBAPIError, match="could not serialize"):
        store.decide_within(connection, ID, row.generation, FIRST)
    connection.rollback()
    store.decide_within(connection, ID, row.generation, FIRST)
    connection.commit()
    assert row_of(store).status == "decided"


def test_its_settings_hold_to_the_end_of_the_transaction(
    store: SqlStateStore, connection: Connection, database: str
) -> None:
    """C6: a newer claim finds the transaction by its name; and a decision is durable, whatever the role is set to."""
    set_of(database, synchronous_commit="off")
    connection.invalidate()
    connection.rollback()
    row = claim(store)
    before = shown(connection)
    store.decide_within(connection, ID, row.generation, FIRST)
    assert shown(connection) == {
        "application_name": f"2pc:{ID}:{row.generation}",
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": "20s",
    }
    newer = claim(store)
    assert newer.status == "none"
    with pytest.raises(Exception, match="connection"):
        connection.commit()
    connection.invalidate()
    assert before["synchronous_commit"] == "off"


def test_a_role_that_may_not_make_the_table_is_told_how(store: SqlStateStore, database: str) -> None:
    execute(database, f"DROP TABLE {store._tables.records.name}")
    with role(database) as (name, url):
        execute(database, f"GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state TO {name}")
        refused = SqlStateStore(url, settings(keep_records=True, history_batches=0))
        with closing(refused), pytest.raises(StateStoreError) as caught:
            refused.prepare_schema()
    assert "CREATE TABLE public.kafka_transaction_state_records" in str(caught.value)
    assert store.read_kept(ID) is None


def test_one_session_shows_all_claims_of_a_run(database: str) -> None:
    with (
        sql_store(database) as operator,
        closing(SqlStateStore(database, settings(), shown_by_run=True)) as service,
    ):
        rows = [claim(service, f"shop-{number}", run_id="run") for number in range(3)]
        other = claim(operator, "shop-3", run_id=None)
        assert [operator.liveness(row).alive for row in [*rows, other]] == [True, True, True, False]
        assert len(sessions(database, "application_name LIKE '2pc@run:%'")) == 1
        assert operator.liveness(replace(rows[0], run_id="another run")).alive is False
