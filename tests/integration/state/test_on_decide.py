"""on_decide on PostgreSQL: what it writes is there if the decision is, and it cannot end the transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from jdbc_state import SqlStateStore
from jdbc_state.connections import driver_connection
from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.sink.driver.on_decide import DecidingBatch, run_on_decide
from tests.integration.state.state_stores import FIRST, ID, claim, execute, row_of

BATCH = DecidingBatch(
    transactional_id=ID, batch_id=7, prepared="5:0", row_count=2, record_count=3, rows_deleted=1, rows_left_out=4
)
AUDIT = "INSERT INTO audit VALUES (:batch_id, :row_count)"


@pytest.fixture
def store(database: str, sql: SqlStateStore) -> SqlStateStore:
    execute(database, "CREATE TABLE audit (batch bigint PRIMARY KEY, rows bigint)")
    execute(database, "CREATE TABLE target (id int)")
    return sql


def decide(store: SqlStateStore, given: Any) -> None:
    """Rows, what was given, and the decision."""
    row = claim(store)
    with store.deciding(ID, row.generation) as transaction:
        transaction.connection.execute(text("INSERT INTO target VALUES (1)"))
        run_on_decide(given, transaction.connection, BATCH)
        transaction.decide(FIRST)


def audit(database: str) -> list[tuple[Any, ...]]:
    return execute(database, "SELECT batch, rows FROM audit")


def left(database: str, store: SqlStateStore) -> tuple[int, int, str]:
    """Lines of the audit, rows, and the decision."""
    ((rows,),) = execute(database, "SELECT count(*) FROM target")
    return len(audit(database)), rows, row_of(store).prepared_transaction_state


def test_statements_know_the_batch(database: str, store: SqlStateStore) -> None:
    """A percent sign, a cast and a colon in a text are no parameters."""
    more = "INSERT INTO audit SELECT 8, :rows_deleted + CAST(:rows_left_out AS int) - '0'::int WHERE 'a:b' LIKE '%:%'"
    decide(store, [AUDIT, more])
    assert audit(database) == [(7, 2), (8, 5)]
    assert left(database, store) == (2, 1, "5:0")


def test_a_function_has_the_connection_and_the_batch(database: str, store: SqlStateStore) -> None:
    def write(connection: Connection, batch: DecidingBatch) -> None:
        with connection.begin_nested() as savepoint:
            connection.execute(text("INSERT INTO audit VALUES (0, 0)"))
            savepoint.rollback()
        with Session(connection) as session:
            session.execute(text("INSERT INTO audit VALUES (:batch, :rows)"), {"batch": batch.batch_id, "rows": 1})
            session.commit()  # of the session alone
        connection.exec_driver_sql(f"NOTIFY decided, '{batch.batch_id}'")

    decide(store, write)
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
def test_the_transaction_is_kept_open(database: str, store: SqlStateStore, given: Any) -> None:
    """Refused before the database hears of it: nothing is written."""
    with pytest.raises(LocalProtocolError, match="on_decide may neither end the deciding transaction"):
        decide(store, given)
    assert left(database, store) == (0, 0, "")


def test_what_goes_past_sqlalchemy_is_noticed(database: str, store: SqlStateStore) -> None:
    """It cannot be undone then, so the message says what may be there."""
    with pytest.raises(LocalProtocolError, match="rows of the batch may be in the table without its decision"):
        decide(store, lambda connection, _: driver_connection(connection).commit())
    assert left(database, store) == (0, 1, "")


def test_another_search_path_is_refused(database: str, store: SqlStateStore) -> None:
    with pytest.raises(LocalProtocolError, match=r"search_path=audits, which was .*public"):
        decide(store, [AUDIT, "SET LOCAL search_path TO audits"])
    assert left(database, store) == (0, 0, "")
    decide(store, [AUDIT])
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
def test_an_error_undoes_the_attempt(database: str, store: SqlStateStore, given: Any, said: str) -> None:
    with pytest.raises(BatchRetryError, match=said):
        decide(store, given)
    assert left(database, store) == (0, 0, "")
