"""Upsert: each key once, whatever the batch holds. C6 (poolers), C7 (deadlocks), C9 (one key twice)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg2.errors
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConstraintError, DuplicateKeyError
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from spark_2pc_sink.sink.rows.copy_encoder import ORDER_COLUMN
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


def test_rows_are_sorted_in_memory(database: str) -> None:
    """And where the server allows more than we ask for, it stays at that."""
    plan = keyed(database)
    for allowed, used in (("4MB", "64MB"), ("128MB", "128MB")):
        with transaction(database) as connection:
            connection.exec_driver_sql(f"SET LOCAL work_mem = '{allowed}'")
            upsert(connection, plan, [orders(plan, (1, "a"))])
            assert connection.exec_driver_sql("SHOW work_mem").scalar() == used


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


@pytest.mark.parametrize("tie", [5, None])
def test_tie_on_the_greatest_order_is_refused(database: str, tie: int | None) -> None:
    plan = keyed(database, order=LONG)
    below = [] if tie is None else [(7, "below", 4), (7, "below too", 4)]
    with pytest.raises(DuplicateKeyError, match="same greatest value of upsert_order_by, with id=7;") as caught:
        put(database, plan, (1, "fine", 1), (7, "a", tie), (7, "b", tie), *below)
    assert "Make upsert_order_by tell such rows apart" in str(caught.value)
    assert table(database) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.integers(0, 4), st.text("ab", max_size=2), st.none() | st.integers(0, 3)),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_upsert_is_a_dictionary(database: str, batches: list[list[tuple[int, str, int | None]]]) -> None:
    """Against a dict: the greatest order wins in a batch, the later batch wins over the earlier one."""
    run(database, "DROP TABLE IF EXISTS orders")
    plan = keyed(database, order=LONG)
    expected: dict[int, str] = {}
    for batch in batches:
        winners: dict[int, list[tuple[int, str]]] = {}
        for key, item, order in batch:
            winners.setdefault(key, []).append((-1 if order is None else order, item))
        top = {key: [item for order, item in found if order == max(found)[0]] for key, found in winners.items()}
        tied = [key for key, items in sorted(top.items()) if len(items) > 1]
        if tied:
            with pytest.raises(DuplicateKeyError) as caught:
                put(database, plan, *batch)
            assert caught.value.keys == tuple(f"id={key}" for key in tied[:SHOWN_KEYS_MAX])
            continue
        assert put(database, plan, *batch) == (len(batch), len(top))
        expected |= {key: items[0] for key, items in top.items()}
    assert dict(table(database)) == expected


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


@pytest.mark.parametrize("order", [None, LONG])
def test_table_of_nothing_but_keys(database: str, order: t.DataType | None) -> None:
    create(database, ORDERS, keys=["id", "item"])
    plan = plan_of(database, keys=["id", "item"], order=order)
    more: tuple[int, ...] = () if order is None else (1,)
    put(database, plan, (1, "a", *more))
    assert put(database, plan, (1, "a", *more), (1, "b", *more)) == (2, 1)
    assert table(database) == [(1, "a"), (1, "b")]
    with pytest.raises(DuplicateKeyError, match="id=2, item=c"):
        put(database, plan, (2, "c", *more), (2, "c", *more))


def swallow(url: str, *, before: str = "INSERT", table: str = "orders") -> None:
    """Let a trigger leave rows out whose key is 2."""
    run(
        url,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        f"CREATE TRIGGER skip BEFORE {before} ON {table} FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION skip()",
    )


@pytest.mark.parametrize(
    ("before", "order", "batch"),
    [
        ("UPDATE", None, [(1, "a"), (2, "b")]),
        ("UPDATE", LONG, [(1, "a", 1), (2, "b", 1)]),
        ("INSERT", LONG, [(1, "a", 2), (1, "old", 1), (2, "b", 0)]),
    ],
    ids=["no order", "order", "order that passes rows over"],
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


@pytest.mark.parametrize("order", [None, LONG])
def test_key_that_a_trigger_swallows_is_noticed(database: str, order: t.DataType | None) -> None:
    """A table of nothing but keys: those that are there already are not written either, and that is right."""
    create(database, ORDERS, keys=["id", "item"])
    plan = plan_of(database, keys=["id", "item"], order=order)
    more: tuple[int, ...] = () if order is None else (1,)
    put(database, plan, (1, "a", *more), (2, "there", *more))
    swallow(database)
    assert put(database, plan, (1, "a", *more), (1, "b", *more)) == (2, 1)
    with pytest.raises(ConstraintError, match="3 rows were written and 2 arrived: a trigger of the table"):
        put(database, plan, (1, "a", *more), (2, "there", *more), (2, "b", *more))
    assert put(database, plan, (2, "there", *more)) == (1, 0)
    assert table(database) == [(1, "a"), (1, "b"), (2, "there")]


def test_row_that_a_trigger_of_a_partition_swallows_is_noticed(database: str) -> None:
    """Whatever the names: of the partition, and of the columns."""
    run(
        database,
        'CREATE TABLE orders (id bigint PRIMARY KEY, "%s" bigint) PARTITION BY RANGE (id)',
        'CREATE TABLE "First" PARTITION OF orders FOR VALUES FROM (0) TO (10)',
    )
    swallow(database, table='"First"')
    plan = plan_of(database, {"id": LONG, "%s": LONG}, keys=["id"], order=LONG)
    batch = pa.record_batch({"id": [1, 2], "%s": [1, 1], ORDER_COLUMN: [1, 1]})
    with pytest.raises(ConstraintError, match="2 rows were written and 1 arrived"), transaction(database) as link:
        upsert(link, plan, [stream(plan, batch)])


def test_triggers_that_leave_no_row_out_are_no_obstacle(database: str) -> None:
    plan = keyed(database, order=LONG)
    run(
        database,
        "CREATE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.item := upper(NEW.item); "
        "RETURN NEW; END $$",
        "CREATE TRIGGER loud BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION loud()",
    )
    assert put(database, plan, (1, "a", 1), (1, "b", 2), (2, "c", 1)) == (3, 2)
    assert table(database) == [(1, "B"), (2, "C")]


def test_cardinality_error_of_a_trigger_is_not_taken_for_a_key(database: str) -> None:
    plan = keyed(database)
    run(
        database,
        "CREATE FUNCTION many() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "NEW.item := (SELECT x FROM (VALUES ('a'), ('b')) AS v(x)); RETURN NEW; END $$",
        "CREATE TRIGGER many BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION many()",
    )
    with pytest.raises(psycopg2.errors.CardinalityViolation):
        put(database, plan, (1, "a"))


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
