"""C12: transaction_timeout, which PostgreSQL has from version 17 on, set on a database by somebody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url, text

from jdbc_state import SqlStateStore
from jdbc_state.connections import Database, driver_connection
from tests.integration.state.state_stores import FIRST, ID, SETTINGS, claim, execute, sql_store

#: Of the database; and what takes longer.
TIMEOUT = "300ms"
LONGER = "SELECT pg_sleep(0.6)"


@pytest.fixture
def impatient(database: str) -> str:
    """A database that ends long transactions, where the server can. On an older one the tests show that none fails."""
    name = make_url(database).database
    if int(execute(database, "SHOW server_version_num")[0][0]) >= 170_000:
        execute(database, f"ALTER DATABASE \"{name}\" SET transaction_timeout = '{TIMEOUT}'")
    return database


@pytest.fixture
def store(impatient: str) -> Iterator[SqlStateStore]:
    """A store in it."""
    with sql_store(impatient) as store:
        yield store


def test_a_deciding_transaction_may_take_longer(store: SqlStateStore, impatient: str) -> None:
    """C12: it waits for tasks; its statements have bounds of their own. The setting is the session's again after it."""
    row = claim(store)
    with store.deciding(ID, row.generation) as transaction:
        connection = transaction.connection
        connection.execute(text(LONGER))
        transaction.decide(FIRST)
        connection_after = driver_connection(connection)
    shown = store.read(ID)
    assert shown is not None
    assert shown.status == "decided"
    with connection_after.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_timeout', true)")
        assert cursor.fetchall() in ([(TIMEOUT,)], [(None,)])


def test_a_short_request_may_wait_longer(impatient: str) -> None:
    """C12: for a lock, for instance, or for a standby that a COMMIT waits for."""
    with Database(impatient, SETTINGS).requests("test", lock_timeout_ms=10_000) as connection:
        connection.execute(text(LONGER))
