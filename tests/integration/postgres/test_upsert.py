"""Upsert: each key once, whatever the batch holds. C6 (poolers), C7 (deadlocks), C9 (one key twice)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConstraintError, DuplicateKeyError
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from spark_2pc_sink.sink.rows.keyed_rows import SHOWN_KEYS_MAX
from tests.integration.postgres.database_tables import (
    ORDERS,
    create,
    orders,
    plan_of,
    rows,
    run,
    stream,
    transaction,
    upsert,
)

LONG = t.LongType()


def keyed(url: str, *, order: t.DataType | None = None) -> ColumnPlan:
    create(url, ORDERS, keys=["id"])
    return plan_of(url, keys=["id"], order=order)


def put(url: str, plan: ColumnPlan, *values: tuple[Any, ...]) -> tuple[int, int]:
    with transaction(url) as connection:
        return upsert(connection, plan, [orders(plan, value) for value in values])


def table(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT id, item FROM orders ORDER BY id")


def test_columns_that_the_batch_has_not_stay(database: str) -> None:
    run(database, "CREATE TABLE orders (id bigint PRIMARY KEY, item text, note text DEFAULT 'new')")
    plan = plan_of(database, keys=["id"])
    put(database, plan, (1, "a"))
    run(database, "UPDATE orders SET note = 'kept'")
    put(database, plan, (1, "b"))
    assert rows(database, "SELECT * FROM orders") == [(1, "b", "kept")]


def test_key_twice_in_a_batch_is_refused_with_the_keys_named(database: str) -> None:
    """C9, in two streams as in one: what is unique in a task need not be in the batch."""
    plan = keyed(database)
    put(database, plan, (1, "kept"))
    batch = [(number % 10, f"item {number}") for number in range(17)] + [(99, "once")]
    with pytest.raises(DuplicateKeyError) as caught:
        put(database, plan, *batch)
    error = caught.value
    assert error.keys == tuple(f"id={number}" for number in range(SHOWN_KEYS_MAX))
    assert error.key_columns == ("id",)
    assert "Set upsert_order_by" in str(error)
    assert table(database) == [(1, "kept")]


def test_keys_of_several_columns_in_any_spelling(database: str) -> None:
    run(
        database,
        'CREATE TABLE orders (v int, "Key" text, k bigint, UNIQUE (k, "Key"))',
        "INSERT INTO orders VALUES (1, 'ü', 5), (1, 'x', 5)",
    )
    plan = plan_of(database, {"Key": t.StringType(), "v": t.IntegerType(), "k": LONG}, keys=["Key", "k"])
    one = stream(plan, pa.record_batch({"Key": ["ü", "y"], "v": pa.array([2, 3], pa.int32()), "k": [5, 5]}))
    with transaction(database) as connection:
        assert upsert(connection, plan, [one])[1] == 2
    assert rows(database, 'SELECT "Key", v FROM orders ORDER BY v') == [("x", 1), ("ü", 2), ("y", 3)]
    with pytest.raises(DuplicateKeyError) as caught, transaction(database) as connection:
        upsert(connection, plan, [one, one])
    assert set(caught.value.keys) == {"k=5, Key=y", "k=5, Key=ü"}


def swallow(url: str, *, before: str = "INSERT") -> None:
    """Let a trigger leave rows out whose key is 2."""
    run(
        url,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        f"CREATE TRIGGER skip BEFORE {before} ON orders FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION skip()",
    )


@pytest.mark.parametrize(
    ("before", "order", "batch"),
    [
        ("UPDATE", None, [(1, "a"), (2, "b")]),
        ("INSERT", LONG, [(1, "a", 2), (1, "old", 1), (2, "b", 0)]),
    ],
    ids=["no order", "order that passes rows over"],
)
def test_row_that_a_trigger_swallows_is_noticed(
    database: str, before: str, order: t.DataType | None, batch: list[tuple[Any, ...]]
) -> None:
    """C17: also where the order passes some over, which is right."""
    plan = keyed(database, order=order)
    if before == "UPDATE":
        run(database, "INSERT INTO orders VALUES (2, 'kept')")
    swallow(database, before=before)
    with pytest.raises(ConstraintError, match="2 rows were written and 1 arrived: a trigger of the table"):
        put(database, plan, *batch)
    assert table(database) == ([] if before == "INSERT" else [(2, "kept")])


def test_rows_belong_to_the_caller_s_transaction(database: str) -> None:
    """C6: and nothing of the session is left for the next transaction, which a pooler may give to another."""
    plan = keyed(database)
    engine = sa.create_engine(database, poolclass=sa.NullPool)
    with engine.connect() as connection:
        for number in (1, 2):
            with connection.begin():
                upsert(connection, plan, [orders(plan, (number, "a"))])
                assert len(table(database)) == number - 1
            left = "SELECT relname FROM pg_class WHERE starts_with(relname, '_2pc')"
            with connection.begin():
                assert connection.exec_driver_sql(left).all() == []
        with connection.begin() as begun:
            upsert(connection, plan, [orders(plan, (3, "a"))])
            begun.rollback()
    assert table(database) == [(1, "a"), (2, "a")]


def test_two_sinks_with_the_same_keys_in_opposite_order_do_not_deadlock(database: str) -> None:
    """C7: the rows of a batch are written in the order of their keys."""
    plan = keyed(database)
    keys = range(2_000)
    put(database, plan, *((key, "old") for key in keys[:50]))
    start = threading.Barrier(2)

    def sink(name: str, order: Sequence[int]) -> None:
        for round_number in range(5):
            with transaction(database) as connection:
                start.wait(timeout=20)
                upsert(connection, plan, [orders(plan, *((key, f"{name} {round_number}") for key in order))])

    with ThreadPoolExecutor(max_workers=2) as pool:
        sinks = [pool.submit(sink, "up", keys), pool.submit(sink, "down", keys[::-1])]
        for done in sinks:
            done.result(timeout=60)
    assert rows(database, "SELECT count(*) FROM orders") == [(2_000,)]
