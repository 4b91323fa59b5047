"""The survey of all sinks: rows, lost rows, drivers; one that cannot be understood hides no other."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text

from jdbc_state import SqlStateStore
from jdbc_state.errors import StateStoreError
from jdbc_state.survey import UnreadableRow
from tests.integration.state.state_stores import admin, claim, execute, reach, settings, sql_store


def test_every_sink_is_read_over_one_connection(database: str) -> None:
    """Rows, rows that are lost, and who lives."""
    with sql_store(database) as store, sql_store(database) as looking:
        reach(store, "done", "first")
        reach(store, "done", "fourth")
        reach(store, "decided", "lost")
        claim(store, "second")
        claim(store, "third", query_id=None, run_id=None)
        execute(database, "DELETE FROM kafka_transaction_state WHERE transactional_id = 'lost'")
        found = looking.survey()
        assert found.table_exists
        assert [row.transactional_id for row in found.rows] == ["first", "fourth", "second", "third"]
        assert [(line.transactional_id, line.status) for line in found.lost] == [("lost", "decided")]
        # A store shows the newest of its claims that has a driver.
        assert {name: driver.alive for name, driver in found.drivers.items()} == {
            "first": False,
            "fourth": False,
            "second": True,
            "third": False,
        }
        assert found.rows[0] == store.read("first")
        assert found.drivers["second"] == looking.liveness(found.rows[2])
        one = looking.survey("lost")
        assert (one.rows, [line.transactional_id for line in one.lost]) == ((), ["lost"])
        assert looking.survey("nobody").rows == ()


#: What a column has, and what is said of it.
UNREADABLE: tuple[tuple[str, object, str], ...] = (
    ("kafka_offsets", [1, 2], 'kafka_offsets [1, 2] must be an object of "topic-partition": [first, last]'),
    ("kafka_offsets", {"t" * 100: 7}, f"kafka_offsets {{'{'t' * 78}… must be"),
    ("topic_ids", {"t": 1}, "topic_ids {'t': 1} must be an object of"),
)


def test_a_row_that_cannot_be_understood_hides_no_other(database: str) -> None:
    """Made by hand, or by a later version."""
    with sql_store(database) as store:
        reach(store, "done", "good")
        for number, (column, value, _) in enumerate(UNREADABLE):
            reach(store, "done", f"bad {number}")
            change = f"{column} = CAST(:value AS jsonb) WHERE transactional_id = 'bad {number}'"
            execute(database, f"UPDATE kafka_transaction_state SET {change}", value=json.dumps(value))
        found = store.survey()
    assert [row.transactional_id for row in found.rows] == ["good"]
    assert len(found.unreadable) == len(UNREADABLE)
    for number, (bad, (_, _, problem)) in enumerate(zip(found.unreadable, UNREADABLE, strict=True)):
        assert isinstance(bad, UnreadableRow)
        assert (bad.transactional_id, problem in bad.problem) == (f"bad {number}", True)


def test_where_the_tables_are_not(database: str) -> None:
    """Nothing has run; or the state table is gone, and its history is not; or no history is kept."""
    looking = SqlStateStore(database, settings())
    nothing = looking.survey()
    assert (nothing.table_exists, nothing.rows, nothing.lost) == (False, (), ())
    with sql_store(database) as store:
        reach(store, "decided", "first")
        reach(store, "done", "second")
        execute(database, "DROP TABLE kafka_transaction_state")
        lost = looking.survey()
        assert not lost.table_exists
        told = [(line.transactional_id, line.status) for line in lost.lost]
        assert told == [("first", "decided"), ("second", "done")]
    with sql_store(database, state_table="other", history_batches=0) as store:
        reach(store, "done", "third")
        assert [row.transactional_id for row in store.survey().rows] == ["third"]
    looking.close()


def test_who_keeps_the_table_locked_is_named(database: str) -> None:
    """Within the time that a lock may take."""
    with sql_store(database) as store, admin(database) as engine, engine.connect() as connection:
        connection.execute(text("SET application_name = 'vacuum of somebody'"))
        connection.execute(text("BEGIN"))
        connection.execute(text("LOCK TABLE kafka_transaction_state IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(StateStoreError, match=r"status of every sink .* stayed locked for 200 ms.*vacuum of some"):
            store.survey()
        with pytest.raises(StateStoreError, match="status of 'orders'"):
            store.survey("orders")
        connection.execute(text("ROLLBACK"))


def test_another_refusal_goes_on_as_it_is(database: str, sql: SqlStateStore) -> None:
    """A table of somebody else's, for instance."""
    execute(database, "ALTER TABLE kafka_transaction_state DROP COLUMN settled")
    with pytest.raises(StateStoreError, match="settled"):
        sql.survey()
