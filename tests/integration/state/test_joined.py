"""The decision with what a caller writes: in the caller's transaction, or by on_decide in the sink's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jdbc_state import KeptRecords, SqlStateStore
from jdbc_state.connections import driver_connection
from jdbc_state.errors import CommitsLostError, LocalProtocolError, SupersededError
from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.sink.driver.on_decide import DecidingBatch, run_on_decide
from tests.harness.sql import run_sql, sessions
from tests.integration.state.state_stores import (
    FIRST,
    ID,
    claim,
    decide,
    refused,
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
    run_sql(database, f"DROP TABLE {store._tables.records.name}")
    with role(database) as (name, url):
        run_sql(database, f"GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state TO {name}")
        said = refused(url, keep_records=True, history_batches=0)
    assert "CREATE TABLE public.kafka_transaction_state_records" in said
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


BATCH = DecidingBatch(
    transactional_id=ID, batch_id=7, prepared="5:0", row_count=2, record_count=3, rows_deleted=1, rows_left_out=4
)
AUDIT = "INSERT INTO audit VALUES (:batch_id, :row_count)"


@pytest.fixture
def audited(database: str, sql: SqlStateStore) -> SqlStateStore:
    run_sql(database, "CREATE TABLE audit (batch bigint PRIMARY KEY, rows bigint)")
    run_sql(database, "CREATE TABLE target (id int)")
    return sql


def decide_given(audited: SqlStateStore, given: Any) -> None:
    """Rows, what was given, and the decision."""
    row = claim(audited)
    with audited.deciding(ID, row.generation) as transaction:
        transaction.connection.execute(text("INSERT INTO target VALUES (1)"))
        run_on_decide(given, transaction.connection, BATCH)
        transaction.decide(FIRST)


def audit(database: str) -> list[tuple[Any, ...]]:
    return run_sql(database, "SELECT batch, rows FROM audit")


def left(database: str, audited: SqlStateStore) -> tuple[int, int, str]:
    """Lines of the audit, rows, and the decision."""
    ((rows,),) = run_sql(database, "SELECT count(*) FROM target")
    return len(audit(database)), rows, row_of(audited).prepared_transaction_state


def test_statements_know_the_batch(database: str, audited: SqlStateStore) -> None:
    """A percent sign, a cast and a colon in a text are no parameters."""
    more = "INSERT INTO audit SELECT 8, :rows_deleted + CAST(:rows_left_out AS int) - '0'::int WHERE 'a:b' LIKE '%:%'"
    decide_given(audited, [AUDIT, more])
    assert audit(database) == [(7, 2), (8, 5)]
    assert left(database, audited) == (2, 1, "5:0")


def test_a_function_has_the_connection_and_the_batch(database: str, audited: SqlStateStore) -> None:
    def write(connection: Connection, batch: DecidingBatch) -> None:
        with connection.begin_nested() as savepoint:
            connection.execute(text("INSERT INTO audit VALUES (0, 0)"))
            savepoint.rollback()
        with Session(connection) as session:
            session.execute(text("INSERT INTO audit VALUES (:batch, :rows)"), {"batch": batch.batch_id, "rows": 1})
            session.commit()  # of the session alone
        connection.exec_driver_sql(f"NOTIFY decided, '{batch.batch_id}'")

    decide_given(audited, write)
    assert audit(database) == [(7, 1)]


def raw(statement: str) -> Callable[[Connection, DecidingBatch], object]:
    return lambda connection, _: connection.exec_driver_sql(statement)


@pytest.mark.parametrize(
    "given",
    [
        lambda connection, _: connection.commit(),
        lambda connection, _: connection.rollback(),
        raw("INSERT INTO audit VALUES (1, 1); COMMIT; BEGIN"),
        raw("ROLLBACK AND CHAIN"),
        ["INSERT INTO audit VALUES (1, 1); COMMIT"],
    ],
    ids=["commit()", "rollback()", "a text with COMMIT", "ROLLBACK", "a statement that commits"],
)
def test_the_transaction_is_kept_open(database: str, audited: SqlStateStore, given: Any) -> None:
    """Refused before the database hears of it: nothing is written."""
    with pytest.raises(LocalProtocolError, match="on_decide may neither end the deciding transaction"):
        decide_given(audited, given)
    assert left(database, audited) == (0, 0, "")


def test_what_goes_past_sqlalchemy_is_noticed(database: str, audited: SqlStateStore) -> None:
    """It cannot be undone then, so the message says what may be there."""
    with pytest.raises(LocalProtocolError, match="rows of the batch may be in the table without its decision"):
        decide_given(audited, lambda connection, _: driver_connection(connection).commit())
    assert left(database, audited) == (0, 1, "")


def test_another_search_path_is_refused(database: str, audited: SqlStateStore) -> None:
    with pytest.raises(LocalProtocolError, match=r"search_path=audits, which was .*public"):
        decide_given(audited, [AUDIT, "SET LOCAL search_path TO audits"])
    assert left(database, audited) == (0, 0, "")
    decide_given(audited, [AUDIT])
    assert audit(database) == [(7, 2)]


def fail(connection: Connection, _batch: DecidingBatch) -> None:
    connection.execute(text("INSERT INTO audit VALUES (1, 1)"))
    message = "no"
    raise ValueError(message)


def swallow(connection: Connection, _batch: DecidingBatch) -> None:
    try:
        connection.execute(text("SELECT 1/0"))
    except Exception:  # noqa: BLE001 - what a careless function may do
        return


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (fail, "on_decide raised ValueError: no"),
        (swallow, "on_decide raised InternalError: .*current transaction is aborted"),
        (["SELECT :nothing"], "on_decide raised StatementError: .*required for bind parameter 'nothing'"),
    ],
)
def test_an_error_undoes_the_attempt(database: str, audited: SqlStateStore, given: Any, said: str) -> None:
    with pytest.raises(BatchRetryError, match=said):
        decide_given(audited, given)
    assert left(database, audited) == (0, 0, "")
