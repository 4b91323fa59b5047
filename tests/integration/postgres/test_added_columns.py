"""Columns that a batch has and the table lacks: added in a transaction of their own, or refused by name."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import types as t

from spark_2pc_sink.sink.rows.catalog import read_target
from spark_2pc_sink.sink.rows.create_table import add_columns, missing_columns
from tests.integration.postgres.database_tables import ORDERS, create, rows, run, transaction

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


def columns(url: str) -> list[tuple[str, str, bool]]:
    with transaction(url) as connection:
        return [(each.name, each.type_name, each.nullable) for each in read_target(connection, "orders").columns[2:]]


ADDED = [
    ("at", "timestamp with time zone", True),
    ("total %s", "numeric(12,2)", True),
    ("lines", "jsonb", True),
    ("tags", "text[]", True),
]


def test_two_sinks_may_add_them_at_one_time(database: str) -> None:
    """Both have looked before either has added anything. They have the types of a table that the sink creates.

    Nullable, as earlier rows lack them; and none that differs by nothing but case.
    """
    create(database, ORDERS, keys=["id"])
    run(database, "INSERT INTO orders VALUES (1, 'a')")
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
    assert rows(database, "SELECT * FROM orders") == [(1, "a", None, None, None, None)]
