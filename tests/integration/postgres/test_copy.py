"""Append: the rows of all tasks by one COPY, in the caller's transaction. C8, C12 (constraint error)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types as t

from spark_2pc_sink.errors import BatchRetryError, ConstraintError
from tests.integration.postgres.database_tables import (
    ORDERS,
    append,
    create,
    orders,
    plan_of,
    rows,
    run,
    stream,
    transaction,
)

RAISING_TRIGGER = """
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not %', NEW.id; END $$;
CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no()
"""


def test_streams_of_many_tasks_become_one_copy(database: str) -> None:
    create(database, ORDERS)
    plan = plan_of(database)
    streams = [orders(plan, *((task * 10 + row, f"item {row}") for row in range(10))) for task in range(5)]
    with transaction(database) as connection:
        assert append(connection, plan, iter([*streams, orders(plan), []])) == 50
        connection.exec_driver_sql("SELECT 1")
    assert rows(database, "SELECT count(*), count(DISTINCT id), min(item) FROM orders") == [(50, 50, "item 0")]


def test_rows_belong_to_the_caller_s_transaction(database: str) -> None:
    create(database, ORDERS)
    plan = plan_of(database)
    with transaction(database, commit=False) as connection:
        append(connection, plan, [orders(plan, (1, "a"))])
        assert connection.exec_driver_sql("SELECT count(*) FROM orders").scalar() == 1
        assert rows(database, "SELECT * FROM orders") == []
    assert rows(database, "SELECT * FROM orders") == []


def test_columns_are_written_by_name(database: str) -> None:
    """Others get their default, in plain and in partitioned tables."""
    run(
        database,
        "CREATE TABLE orders (made timestamptz DEFAULT now(), item text, spare int, id bigint) PARTITION BY RANGE (id)",
        "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE orders_2 PARTITION OF orders FOR VALUES FROM (10) TO (20)",
    )
    plan = plan_of(database)
    with transaction(database) as connection:
        assert append(connection, plan, [orders(plan, (5, "a"), (15, "b"))]) == 2
    assert rows(database, "SELECT id, item, spare, made IS NULL FROM orders_2") == [(15, "b", None, False)]


def test_streams_are_not_put_together_in_memory(database: str) -> None:
    """C11: each stream is asked for when the one before has been sent."""
    create(database, ORDERS)
    plan = plan_of(database)
    alive: list[int] = []

    def streams() -> Iterator[list[bytes]]:
        for task in range(3):
            alive.append(task)
            assert len(alive) == task + 1
            yield orders(plan, (task, "x" * 1_000_000))

    with transaction(database) as connection:
        source = streams()
        assert append(connection, plan, source) == 3
    assert alive == [0, 1, 2]


@pytest.mark.parametrize(
    ("ddl", "values", "said"),
    [
        (
            "ALTER TABLE orders ADD PRIMARY KEY (id)",
            [(1, "a"), (1, "b")],
            r"\(constraint orders_pkey\): .*\(id\)=\(1\)",
        ),
        ("ALTER TABLE orders ADD CONSTRAINT c CHECK (id > 0)", [(0, "a")], r"\(constraint c\): .*contains \(0, a\)"),
        (
            "CREATE TABLE items (item text PRIMARY KEY); ALTER TABLE orders ADD FOREIGN KEY (item) REFERENCES items",
            [(1, "gone")],
            r'orders_item_fkey\): .*Key \(item\)=\(gone\) is not present in table "items"',
        ),
        (
            "ALTER TABLE orders ALTER item TYPE json USING null",
            [(1, "{")],
            r"orders.*: .*type json.*COPY orders, line 1",
        ),
        ("ALTER TABLE orders ALTER item TYPE jsonb USING null", [(1, "no")], r'"no" is invalid.* \[22P02\]'),
        (RAISING_TRIGGER, [(7, "a")], "not 7.*P0001"),
    ],
)
def test_row_that_the_table_refuses_is_named(database: str, ddl: str, values: Any, said: str) -> None:
    run(database, "CREATE TABLE orders (id bigint, item text)", ddl)
    plan = plan_of(database)
    with pytest.raises(ConstraintError, match=said) as caught, transaction(database) as connection:
        append(connection, plan, [orders(plan, *values)])
    assert caught.value.table == '"public"."orders"'
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes
    assert rows(database, "SELECT * FROM orders") == []


def test_errors_that_say_nothing_about_rows_pass_unchanged(database: str) -> None:
    """C7: whoever owns the transaction sees what it was."""
    create(database, ORDERS)
    plan = plan_of(database)
    with transaction(database) as blocker, transaction(database) as connection:
        blocker.exec_driver_sql("LOCK TABLE orders")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 100")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            append(connection, plan, [orders(plan, (1, "a"))])
        connection.rollback()


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("ALTER id TYPE double precision", "'id' .* was bigint and is double precision"),
        ("ALTER item TYPE varchar(2)", r"'item' .* was text and is character varying\(2\)"),
        ("RENAME item TO name", "'item' .* was text and is gone"),
    ],
)
def test_table_that_was_altered_since_it_was_planned_takes_no_rows(database: str, ddl: str, said: str) -> None:
    """COPY BINARY has no types: a bigint's eight bytes would be read as a double without any error. C12."""
    create(database, ORDERS)
    plan = plan_of(database)
    streams = [orders(plan, (1, "long"))]
    run(database, f"ALTER TABLE orders {ddl}", "ALTER TABLE orders ADD unrelated int")
    with pytest.raises(BatchRetryError, match=said), transaction(database) as connection:
        append(connection, plan, streams)
    assert rows(database, "SELECT * FROM orders") == []


def test_changes_that_do_not_concern_the_batch_are_no_matter(database: str) -> None:
    create(database, ORDERS)
    plan = plan_of(database)
    run(database, "ALTER TABLE orders ADD unrelated int, ALTER item SET DEFAULT 'x', ALTER id SET NOT NULL")
    with transaction(database) as connection:
        assert append(connection, plan, [orders(plan, (1, "a"))]) == 1


def test_lost_connection_passes_unchanged(database: str) -> None:
    create(database, ORDERS)
    plan = plan_of(database)
    engine = sa.create_engine(database, poolclass=sa.NullPool)
    with engine.connect() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        assert rows(database, f"SELECT pg_terminate_backend({backend}, 5000)") == [(True,)]
        with pytest.raises(psycopg2.OperationalError):
            append(connection, plan, [orders(plan, (1, "a"))])
        connection.invalidate()


def test_deferred_constraints_are_checked_after_all_rows(database: str) -> None:
    """A row may refer to one that another task brings; COMMIT is too late to tell a bad row from a lost answer."""
    run(
        database,
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text, "
        "parent bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED)",
    )
    fields = {"id": t.LongType(), "parent": t.LongType()}
    plan = plan_of(database, fields)

    def children(*pairs: tuple[int, int]) -> list[bytes]:
        ids, parents = zip(*pairs, strict=True)
        return stream(plan, pa.record_batch({"id": ids, "parent": parents}))

    with transaction(database) as connection:
        assert append(connection, plan, [children((1, 2)), children((2, 1))]) == 2
    refused = r"orders_parent_fkey\): .*\(parent\)=\(9\) is not present"
    with transaction(database, commit=False) as connection, pytest.raises(ConstraintError, match=refused):
        append(connection, plan, [children((3, 9))])
    assert rows(database, "SELECT count(*) FROM orders") == [(2,)]
