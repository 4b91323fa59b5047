"""Columns that a batch has and the table lacks: added in a transaction of their own, or refused by name."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg2.errors
import pytest
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.rows.catalog import read_target
from spark_2pc_sink.sink.rows.create_table import add_columns, create_table_ddl, missing_columns
from tests.integration.postgres.database_tables import ORDERS, create, plan_of, rows, run, transaction

MORE = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("ITEM", t.StringType()),
        t.StructField("at", t.TimestampType(), nullable=False),
        t.StructField("total %s", t.DecimalType(12, 2)),
        t.StructField("lines", t.ArrayType(t.StructType([t.StructField("sku", t.StringType())]))),
        t.StructField("tags", t.ArrayType(t.StringType())),
    ]
).fields


def evolve(url: str) -> None:
    with transaction(url) as connection:
        target = read_target(connection, "orders")
        add_columns(connection, missing_columns(MORE, target), target)


def columns(url: str) -> list[tuple[str, str, bool]]:
    with transaction(url) as connection:
        return [(each.name, each.type_name, each.nullable) for each in read_target(connection, "orders").columns[2:]]


ADDED = [
    ("at", "timestamp with time zone", True),
    ("total %s", "numeric(12,2)", True),
    ("lines", "jsonb", True),
    ("tags", "text[]", True),
]


def test_they_get_the_types_of_a_table_that_the_sink_creates(database: str) -> None:
    """Nullable, as earlier rows lack them; and none that differs by nothing but case."""
    create(database, ORDERS, keys=["id"])
    run(database, "INSERT INTO orders VALUES (1, 'a')")
    evolve(database)
    assert columns(database) == ADDED
    assert rows(database, "SELECT * FROM orders") == [(1, "a", None, None, None, None)]


def test_two_sinks_may_add_them_at_one_time(database: str) -> None:
    """Both have looked before either has added anything."""
    create(database, ORDERS, keys=["id"])
    looked = threading.Barrier(2, timeout=20)

    def add() -> None:
        with transaction(database) as connection:
            target = read_target(connection, "orders")
            missing = missing_columns(MORE, target)
        looked.wait()
        with transaction(database) as connection:
            add_columns(connection, missing, target)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(add) for _ in range(2)]:
            done.result(30)
    assert columns(database) == ADDED


def test_whoever_uses_the_table_is_waited_for_within_a_limit(database: str) -> None:
    create(database, ORDERS, keys=["id"])
    with transaction(database) as other, transaction(database, commit=False) as connection:
        other.exec_driver_sql("INSERT INTO orders VALUES (1)")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
        target = read_target(connection, "orders")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            add_columns(connection, missing_columns(MORE, target), target)
    assert columns(database) == []


def test_a_role_that_does_not_own_the_table_is_told_so(database: str) -> None:
    create(database, ORDERS, keys=["id"])
    run(database, "DROP ROLE IF EXISTS adder", "CREATE ROLE adder")
    try:
        with transaction(database, commit=False) as connection:
            target = read_target(connection, "orders")
            connection.exec_driver_sql("SET LOCAL ROLE adder")
            with pytest.raises(ConfigurationError, match="must be owner of table orders"):
                add_columns(connection, missing_columns(MORE, target), target)
    finally:
        run(database, "DROP ROLE adder")


def test_without_it_the_error_says_how_to_add_the_column(database: str) -> None:
    create(database, ORDERS, keys=["id"])
    said = r'ALTER TABLE "public"."orders" ADD COLUMN "shipped" timestamptz, or .* schema_evolution=\'add_columns\''
    with pytest.raises(ConfigurationError, match=said):
        plan_of(database, {**ORDERS, "shipped": t.TimestampType()})


def test_the_primary_key_of_a_table_to_which_rows_are_appended(database: str) -> None:
    run(database, create_table_ddl(MORE, "orders", primary_key=["id", "at"]))
    with transaction(database) as connection:
        [key] = read_target(connection, "orders").unique_keys
    assert (key.columns, key.primary) == (("id", "at"), True)
    with pytest.raises(ConfigurationError, match=r"primary_key=.*'order_id' is not among the columns"):
        create_table_ddl(MORE, "orders", primary_key=["order_id"])
