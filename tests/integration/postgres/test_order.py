"""Upsert by an order: the same winners on every database and in Kafka, and rows that come late. C9."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types as t
from sqlalchemy.exc import DBAPIError

from spark_2pc_sink.errors import ConfigurationError, DuplicateKeyError
from spark_2pc_sink.sink.rows.catalog import read_target
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from spark_2pc_sink.sink.rows.conflict_rule import order_in_table
from spark_2pc_sink.sink.rows.copy_encoder import ORDER_COLUMN, order_keys
from tests.integration.postgres.database_tables import (
    ORDERS,
    create,
    keyed,
    plan_of,
    rows,
    run,
    stream,
    table,
    transaction,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.providers import Database

LONG = t.LongType()
#: Values of upsert_order_by by Spark type, those of which databases and languages have opinions of their own.
KINDS: dict[str, tuple[t.DataType, pa.DataType, list[Any]]] = {
    "text": (t.StringType(), pa.string(), ["", "a", "B", "ä", "a b", "a-b"]),
    "bytes": (t.BinaryType(), pa.binary(), [b"", b"\x00", b"\x7f", b"\x80", b"\xff\x00", b"\xff"]),
    "double": (t.DoubleType(), pa.float64(), [0.0, -0.0, float("nan"), float("inf"), float("-inf"), -1.5]),
    "decimal": (
        t.DecimalType(10, 1),
        pa.decimal128(10, 1),
        [Decimal(tenths) / 10 for tenths in (-20, -5, 0, 5, 90, 100)],
    ),
    "boolean": (t.BooleanType(), pa.bool_(), [True, False] * 3),
    "timestamp": (t.TimestampNTZType(), pa.timestamp("us"), [-(10**15), -1, 0, 1, 10**6, 10**15]),
}


def put(url: str, plan: ColumnPlan, batch: pa.RecordBatch) -> tuple[int, int]:
    """How many rows there were, and how many were written."""
    with transaction(url) as connection:
        done = write(connection, plan, [stream(plan, batch)])
    return done.given, done.written


def test_the_database_and_spark_choose_the_same_rows(spark: SparkSession, database: str) -> None:
    """Of each two values of each type, and they refuse to choose among the same rows. Records go by Spark's order."""
    pairs = list(combinations(range(7), 2))
    ids = [key for key, pair in enumerate(pairs) for _ in pair]
    items = [f"row {number}" for number in range(len(ids))]
    orders = {
        kind: pa.array([[*values, None][at] for pair in pairs for at in pair], arrow_type)
        for kind, (_, arrow_type, values) in KINDS.items()
    }
    frame = spark.createDataFrame(pa.table({"id": ids, "item": items, **orders})).coalesce(1)
    ranks = [f"rank() OVER (PARTITION BY id ORDER BY {kind} DESC NULLS LAST) AS {kind}" for kind in KINDS]
    ranked = frame.selectExpr("id", "item", *ranks).collect()
    for kind, (spark_type, _, _) in KINDS.items():
        run(database, "DROP TABLE IF EXISTS orders")
        plan = keyed(database, order=spark_type)
        batch = pa.record_batch({"id": ids, "item": items, ORDER_COLUMN: order_keys(orders[kind])})
        kept = [(row.id, row.item) for row in ranked if row[kind] == 1]
        times = Counter(key for key, _ in kept)
        tied = {key for key, count in times.items() if count > 1}
        for key in tied:
            with pytest.raises(DuplicateKeyError, match="same greatest value"):
                put(database, plan, batch.slice(2 * key, 2))
        apart = [number for number, key in enumerate(ids) if key not in tied]
        winners = sorted(row for row in kept if row[0] not in tied)
        assert put(database, plan, batch.take(pa.array(apart))) == (len(apart), len(winners)), kind
        assert table(database) == winners, kind


# --- collations ------------------------------------------------------------------------------------------------


@pytest.fixture
def english_database(start_postgres: Callable[..., Database], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database in which 'B' is greater than 'a': by ICU where the server has it, else by the C library's en_US."""
    with tempfile.TemporaryDirectory() as locales:
        # The server runs as another user.
        Path(locales).chmod(0o755)
        localedef = shutil.which("localedef")
        if localedef and Path("/usr/share/i18n/locales/en_US").exists():
            made = [localedef, "-i", "en_US", "-f", "UTF-8", f"{locales}/en_US.UTF-8"]
            subprocess.run(made, check=True, capture_output=True)
            monkeypatch.setenv("LOCPATH", locales)
        yield from _english_database(start_postgres())


def _english_database(server: Database) -> Iterator[str]:
    name = f"english_{secrets.token_hex(4)}"
    engine = sa.create_engine(server.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    refused = []
    with engine.connect() as connection:
        for locale in ("LOCALE_PROVIDER icu ICU_LOCALE 'en' LOCALE 'C.UTF-8'", "LOCALE 'en_US.UTF-8'"):
            try:
                connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING UTF8 {locale}")
            except DBAPIError as error:
                refused.append(str(error.orig))
            else:
                break
        else:
            pytest.skip(f"this PostgreSQL has no order but that of bytes: {refused}")
    url = server.database_url(name)
    assert rows(url, "SELECT 'B' > 'a'") == [(True,)]
    yield url
    server.drop_database(name)


def test_the_greatest_text_is_sparks_whatever_the_collation(english_database: str) -> None:
    """C9: mixed-case ids that can be sorted: 'a' is above 'B', as in Spark and in Kafka's records; a late one too."""
    plan = keyed(english_database, order=t.StringType())
    versions = ["B", "a", "Z", "0"]
    order = order_keys(pa.array(versions))
    put(english_database, plan, pa.record_batch({"id": [1] * 4, "item": versions, ORDER_COLUMN: order}))
    assert rows(english_database, "SELECT item FROM orders") == [("a",)]
    for version, kept in (("B", "B"), ("a", "a"), ("Z", "a")):
        plan = guarded(english_database, order=t.StringType(), order_by="item")
        given = {"id": [2], "item": [version], ORDER_COLUMN: order_keys(pa.array([version]))}
        put(english_database, plan, pa.record_batch(given))
        assert rows(english_database, "SELECT item FROM orders WHERE id = 2") == [(kept,)]


# --- late rows -------------------------------------------------------------------------------------------------

VERSIONS: dict[str, t.DataType] = {"id": LONG, "version": LONG}


def guarded(
    url: str, fields: Mapping[str, t.DataType] = ORDERS, *, order: t.DataType = LONG, order_by: str = "version"
) -> ColumnPlan:
    """A plan that keeps rows that are newer."""
    plan = plan_of(url, fields, keys=["id"], order=order)
    with transaction(url) as connection:
        target = read_target(connection, "orders")
    return replace(plan, late_rows=order_in_table(order_by, {name: name for name in fields}, target, ["id"], order))


def versions(*values: tuple[int, int | None]) -> pa.RecordBatch:
    column = pa.array([version for _, version in values], pa.int64())
    return pa.record_batch({"id": [key for key, _ in values], "version": column, ORDER_COLUMN: column})


def test_a_row_that_is_older_than_that_of_the_table_is_passed_over(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    plan = guarded(database, VERSIONS)
    assert put(database, plan, versions((1, 5), (2, 5), (3, None))) == (3, 3)
    # Older, as new, newer than nothing; and a key that was not there.
    assert put(database, plan, versions((1, 4), (2, 5), (3, 1), (4, 0))) == (4, 3)
    assert table(database) == [(1, 5), (2, 5), (3, 1), (4, 0)]
    # Nothing is less than a value, and as much as nothing.
    assert put(database, plan, versions((1, None), (2, 6))) == (2, 1)
    assert rows(database, "SELECT version FROM orders WHERE id < 3 ORDER BY id") == [(5,), (6,)]


@pytest.mark.parametrize(
    ("column", "order_by", "said"),
    [
        ("item text", "version", "no column of .* holds it"),
        ("version char(5)", "version", r"PostgreSQL does not order character\(5\) as Spark does"),
        ("item text", "id", "other than an upsert key"),
    ],
)
def test_where_the_table_cannot_tell_which_is_newer(database: str, column: str, order_by: str, said: str) -> None:
    run(database, f"CREATE TABLE orders (id bigint PRIMARY KEY, {column})")
    with transaction(database) as connection:
        target = read_target(connection, "orders")
    columns = {name.name: name.name for name in target.columns}
    with pytest.raises(ConfigurationError, match=f"keep_newer.*{said}"):
        order_in_table(order_by, columns, target, ["id"], LONG)
