"""Upsert by an order: the same winners on every database and in Kafka, and rows that come late. C9."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from sqlalchemy.exc import DBAPIError

from spark_2pc_sink.errors import ConfigurationError, ConstraintError, DuplicateKeyError
from spark_2pc_sink.sink.rows.catalog import read_target
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from spark_2pc_sink.sink.rows.conflict_rule import order_in_table
from spark_2pc_sink.sink.rows.copy_encoder import ORDER_COLUMN, order_keys
from tests.integration.postgres.database_tables import ORDERS, create, plan_of, rows, run, stream, transaction, upsert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.providers import Database

LONG = t.LongType()
#: Values of upsert_order_by by Spark type, with those of which databases and languages have opinions of their own.
KINDS: dict[str, tuple[t.DataType, pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (t.StringType(), pa.string(), st.text("aBäb -_\x01", max_size=3)),
    "bytes": (t.BinaryType(), pa.binary(), st.binary(max_size=2)),
    "double": (t.DoubleType(), pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, float("nan")])),
    "decimal": (t.DecimalType(10, 1), pa.decimal128(10, 1), st.decimals(-2, 2, places=1)),
    "boolean": (t.BooleanType(), pa.bool_(), st.booleans()),
    "timestamp": (t.TimestampNTZType(), pa.timestamp("us"), st.datetimes()),
}


def put(url: str, plan: ColumnPlan, batch: pa.RecordBatch) -> tuple[int, int]:
    with transaction(url) as connection:
        return upsert(connection, plan, [stream(plan, batch)])


@pytest.mark.parametrize("kind", KINDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8, deadline=None)
@given(data=st.data())
def test_the_database_and_spark_choose_the_same_rows(
    spark: SparkSession, database: str, kind: str, data: st.DataObject
) -> None:
    """Of values of each type, and they refuse to choose among the same rows. Records go by Spark's order."""
    spark_type, arrow_type, values = KINDS[kind]
    given_rows = data.draw(st.lists(st.tuples(st.integers(0, 2), st.none() | values), min_size=1, max_size=8))
    run(database, "DROP TABLE IF EXISTS orders")
    create(database, ORDERS, keys=["id"])
    plan = plan_of(database, keys=["id"], order=spark_type)
    keys = pa.array([key for key, _ in given_rows], pa.int64())
    order = pa.array([value for _, value in given_rows], arrow_type)
    names = [f"row {number}" for number in range(len(given_rows))]
    batch = pa.record_batch({"id": keys, "item": names, ORDER_COLUMN: order_keys(order)})
    frame = spark.createDataFrame(pa.table({"id": keys, "item": names, "order": order})).coalesce(1)
    rank = "rank() OVER (PARTITION BY id ORDER BY order DESC NULLS LAST) AS rank"
    kept = [(row.id, row.item) for row in frame.selectExpr("*", rank).collect() if row.rank == 1]
    if len({key for key, _ in kept}) < len(kept):
        with pytest.raises(DuplicateKeyError, match="same greatest value"):
            put(database, plan, batch)
        return
    assert put(database, plan, batch) == (len(given_rows), len(kept))
    assert sorted(rows(database, "SELECT id, item FROM orders")) == sorted(kept)


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
    """C9: mixed-case ids that can be sorted: 'a' is above 'B', as in Spark and in Kafka's records."""
    create(english_database, ORDERS, keys=["id"])
    plan = plan_of(english_database, keys=["id"], order=t.StringType())
    versions = ["B", "a", "Z", "0"]
    order = order_keys(pa.array(versions))
    put(english_database, plan, pa.record_batch({"id": [1] * 4, "item": versions, ORDER_COLUMN: order}))
    assert rows(english_database, "SELECT item FROM orders") == [("a",)]


def test_a_late_text_is_told_by_its_bytes_whatever_the_collation(english_database: str) -> None:
    create(english_database, ORDERS, keys=["id"])
    for version, kept in (("B", "B"), ("a", "a"), ("Z", "a")):
        plan = guarded(english_database, order=t.StringType(), order_by="item")
        put(english_database, plan, orders_of(plan, (1, version)))
        assert rows(english_database, "SELECT item FROM orders") == [(kept,)]


def orders_of(plan: ColumnPlan, *values: tuple[int, str | None]) -> pa.RecordBatch:
    """Rows whose item is their order."""
    items = pa.array([item for _, item in values], pa.string())
    assert plan.order is not None
    return pa.record_batch({"id": [key for key, _ in values], "item": items, ORDER_COLUMN: order_keys(items)})


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
    assert rows(database, "SELECT * FROM orders ORDER BY id") == [(1, 5), (2, 5), (3, 1), (4, 0)]
    # Nothing is less than a value, and as much as nothing.
    assert put(database, plan, versions((1, None), (2, 6))) == (2, 1)
    assert rows(database, "SELECT version FROM orders WHERE id < 3 ORDER BY id") == [(5,), (6,)]


def test_a_row_that_is_passed_over_is_not_taken_for_one_that_a_trigger_swallowed(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    plan = guarded(database, VERSIONS)
    put(database, plan, versions((1, 5), (2, 5)))
    run(
        database,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER skip BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 9) EXECUTE FUNCTION skip()",
    )
    assert put(database, plan, versions((1, 4), (1, 3), (2, 6))) == (3, 1)
    with pytest.raises(ConstraintError, match="2 rows were written and 1 arrived: a trigger"):
        put(database, plan, versions((1, 4), (2, 7), (9, 1)))


@pytest.mark.parametrize(
    ("column", "order_by", "said"),
    [
        ("item text", "version", "no column of .* holds it"),
        ("version char(5)", "version", r"PostgreSQL does not order character\(5\) as Spark does"),
        ("version uuid", "version", "PostgreSQL does not order uuid"),
        ("version jsonb", "version", "PostgreSQL does not order jsonb"),
        ("version bigint[]", "version", "as Spark does"),
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


@pytest.mark.parametrize(
    ("column", "kept", "late"),
    [
        ("numeric", Decimal(10), Decimal(9)),
        ("double precision", float("nan"), float("inf")),
        ("varchar", "a", "B"),
        ("bytea", b"\xff", b"\x00"),
        ("boolean", True, False),
    ],
)
def test_columns_that_can(database: str, column: str, kept: object, late: object) -> None:
    run(database, f"CREATE TABLE orders (id bigint PRIMARY KEY, version {column})")
    kinds = {Decimal: t.DecimalType(5, 0), float: t.DoubleType(), str: t.StringType(), bytes: t.BinaryType()}
    fields = {"id": LONG, "version": kinds.get(type(kept), t.BooleanType())}
    plan = guarded(database, fields, order=fields["version"])
    for value in (late, kept, late):
        given_value = pa.array([value], plan.columns[1].arrow_type)
        put(database, plan, pa.record_batch({"id": [1], "version": given_value, ORDER_COLUMN: order_keys(given_value)}))
    [(found,)] = rows(database, "SELECT version FROM orders")
    assert repr(bytes(found) if isinstance(found, memoryview) else found) == repr(kept)
