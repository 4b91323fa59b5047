"""Rows by key: each key once, rows that delete, and an order that chooses the same winners everywhere. C9.

C6 (poolers), C7 (deadlocks), C9 (one key twice).
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import SparkSession, types as t
from sqlalchemy.exc import DBAPIError

from spark_2pc_sink.errors import ConfigurationError, ConstraintError, DuplicateKeyError, UnstorableValueError
from spark_2pc_sink.sink.rows.catalog import read_target
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from spark_2pc_sink.sink.rows.copy_encoder import ORDER_COLUMN, order_keys
from spark_2pc_sink.sink.rows.keyed_rows import SHOWN_KEYS_MAX
from tests.harness.providers import Database
from tests.integration.postgres.database_tables import (
    ORDERS,
    create,
    keyed,
    orders,
    plan_of,
    put,
    rows,
    run,
    stream,
    table,
    transaction,
    trigger,
    write,
)

LONG = t.LongType()
KEEP, GONE = False, True


def test_columns_that_the_batch_has_not_stay(database: str) -> None:
    run(database, "CREATE TABLE orders (id bigint PRIMARY KEY, item text, note text DEFAULT 'new')")
    plan = plan_of(database, keys=["id"])
    put(database, plan, (1, "a"))
    run(database, "UPDATE orders SET note = 'kept'")
    put(database, plan, (1, "b"))
    assert table(database) == [(1, "b", "kept")]


def test_key_twice_in_a_batch_is_refused_with_the_keys_named(database: str) -> None:
    """C9, in two streams as in one: what is unique in a task need not be in the batch."""
    plan = keyed(database)
    put(database, plan, (1, "kept"))
    batch = [(number % 10, f"item {number}") for number in range(17)] + [(99, "once")]
    with pytest.raises(DuplicateKeyError) as caught:
        put(database, plan, *batch)
    assert caught.value.keys == tuple(f"id={number}" for number in range(SHOWN_KEYS_MAX))
    assert caught.value.key_columns == ("id",)
    assert "Set upsert_order_by" in str(caught.value)
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
        assert write(connection, plan, [one]).written == 2
    assert rows(database, 'SELECT "Key", v FROM orders ORDER BY v') == [("x", 1), ("ü", 2), ("y", 3)]
    with pytest.raises(DuplicateKeyError) as caught, transaction(database) as connection:
        write(connection, plan, [one, one])
    assert set(caught.value.keys) == {"k=5, Key=y", "k=5, Key=ü"}


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
    trigger(database, f"BEFORE {before} ON orders FOR EACH ROW WHEN (NEW.id = 2)", "RETURN NULL;")
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
                write(connection, plan, [orders(plan, (number, "a"))])
                assert len(table(database)) == number - 1
            left = "SELECT relname FROM pg_class WHERE starts_with(relname, '_2pc')"
            with connection.begin():
                assert connection.exec_driver_sql(left).all() == []
        with connection.begin() as begun:
            write(connection, plan, [orders(plan, (3, "a"))])
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
                write(connection, plan, [orders(plan, *((key, f"{name} {round_number}") for key in order))])

    with ThreadPoolExecutor(max_workers=2) as pool:
        sinks = [pool.submit(sink, "up", keys), pool.submit(sink, "down", keys[::-1])]
        for done in sinks:
            done.result(timeout=60)
    assert rows(database, "SELECT count(*) FROM orders") == [(2_000,)]


# --- rows that delete ------------------------------------------------------------------------------------------------


def test_a_deletion_and_a_row_that_nothing_tells_apart_are_refused(database: str) -> None:
    plan = keyed(database, order=LONG, deletes=True)
    with pytest.raises(DuplicateKeyError, match="id=1"):
        put(database, plan, (1, "a", 5, KEEP), (1, "", 5, GONE))
    assert table(database) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(
    batches=st.lists(
        st.dictionaries(
            st.tuples(st.integers(0, 3), st.integers(0, 5)),
            st.tuples(st.text("ab", max_size=2), st.booleans()),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_upserts_and_deletions_are_a_dictionary(
    database: str, batches: list[dict[tuple[int, int], tuple[str, bool]]]
) -> None:
    """Against a dict that takes the events of each batch in their order."""
    run(database, "DROP TABLE IF EXISTS orders")
    plan = keyed(database, order=LONG, deletes=True)
    expected: dict[int, str] = {}
    for batch in batches:
        before = dict(expected)
        for (key, _), (item, gone) in sorted(batch.items(), key=lambda event: event[0][1]):
            expected.pop(key, None)
            if not gone:
                expected[key] = item
        done = put(database, plan, *((key, item, order, gone) for (key, order), (item, gone) in batch.items()))
        keys = {key for key, _ in batch}
        assert dict(table(database)) == expected
        assert done.written == len(keys & expected.keys())
        assert done.deleted == len((keys & before.keys()) - expected.keys())
        assert done.left_out == len(batch) - len(keys)


def test_the_event_of_a_deletion_need_not_have_values(database: str) -> None:
    """Debezium's has none, and a table may want them; other rows are checked as ever."""
    run(database, "CREATE TABLE orders (id bigint PRIMARY KEY, item varchar(3) NOT NULL, tags text[] NOT NULL)")
    plan = plan_of(database, {**ORDERS, "tags": t.ArrayType(t.StringType())}, keys=["id"], deletes=True)

    put(database, plan, (1, "abc", ["x"], KEEP), (2, "b", [], KEEP))
    put(database, plan, (1, None, None, GONE), (2, "far too long", [], GONE), (3, "c", [], KEEP))
    assert rows(database, "SELECT id, item FROM orders") == [(3, "c")]
    with pytest.raises(UnstorableValueError, match="column 'item' of the row with id=4: null cannot be stored"):
        orders(plan, (1, None, None, GONE), (4, None, [], KEEP))
    with pytest.raises(UnstorableValueError, match="column 'id' of the row with id=None"):
        orders(plan, (None, "x", [], GONE))


def test_what_a_deleted_row_had_may_go_to_another(database: str) -> None:
    run(database, "CREATE TABLE orders (id bigint PRIMARY KEY, item text UNIQUE)")
    plan = plan_of(database, keys=["id"], deletes=True)
    put(database, plan, (1, "name", KEEP))
    put(database, plan, (2, "name", KEEP), (1, None, GONE))
    assert table(database) == [(2, "name")]


def test_a_domain_judges_rows_that_are_written_alone(database: str) -> None:
    """A row that deletes has no values but its key, whatever the domain of a column says of null."""
    domain = "CREATE DOMAIN label AS text NOT NULL CHECK (VALUE <> '')"
    run(database, domain, "CREATE TABLE orders (id bigint PRIMARY KEY, item label)")
    plan = plan_of(database, keys=["id"], deletes=True)
    put(database, plan, (1, "a", KEEP), (2, "b", KEEP))
    assert put(database, plan, (1, None, GONE), (3, "c", KEEP)).deleted == 1
    with pytest.raises(ConstraintError, match="label_check"):
        put(database, plan, (2, None, GONE), (4, "", KEEP))
    assert table(database) == [(2, "b"), (3, "c")]


# --- triggers and rules that meet deletions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "when"),
    [
        ("IF OLD.id = 2 THEN RETURN NULL; END IF; RETURN OLD;", "BEFORE DELETE"),
        ("IF OLD.id = 2 THEN INSERT INTO orders VALUES (2, 'back'); END IF; RETURN NULL;", "AFTER DELETE"),
    ],
    ids=["keeps it", "puts it back"],
)
def test_a_trigger_that_undoes_a_deletion_is_noticed(database: str, body: str, when: str) -> None:
    plan = keyed(database, order=LONG, deletes=True)
    put(database, plan, (1, "a", 1, KEEP), (2, "b", 1, KEEP))
    trigger(database, f"{when} ON orders FOR EACH ROW", body)
    with pytest.raises(ConstraintError, match="1 rows that were to be deleted are still there"):
        put(database, plan, (1, None, 2, GONE), (2, None, 2, GONE))
    assert table(database) == [(1, "a"), (2, "b")]
    put(database, plan, (1, None, 2, GONE))
    assert table(database) == [(2, "b")]


def test_a_trigger_that_deletes_rows_of_the_batch_is_noticed_beside_deletions(database: str) -> None:
    """Our own deletions do not hide it, and are not taken for it."""
    plan = keyed(database, order=LONG, deletes=True)
    victims = "DELETE FROM orders WHERE item = 'victim'; RETURN NULL;"
    trigger(database, "AFTER INSERT ON orders FOR EACH ROW", victims)
    put(database, plan, (1, "a", 1, KEEP), (2, "b", 1, KEEP))
    assert put(database, plan, (1, None, 2, GONE), (3, "c", 2, KEEP)).deleted == 1
    with pytest.raises(ConstraintError, match="2 rows were written and 1 arrived"):
        put(database, plan, (2, None, 3, GONE), (4, "victim", 3, KEEP), (5, "e", 3, KEEP))


def test_a_rule_for_delete_is_refused(database: str) -> None:
    """Rows would stay, and nobody would know; without deletions it is in nobody's way."""
    plan = keyed(database, order=LONG, deletes=True)
    run(database, "CREATE RULE keep AS ON DELETE TO orders DO INSTEAD NOTHING")
    with pytest.raises(ConfigurationError, match=r"its rule 'keep' rewrites deletions.*DROP RULE \"keep\""):
        put(database, plan, (1, None, 1, GONE))
    with transaction(database) as connection:
        read_target(connection, replace(plan.rows, delete_when=None))
        with pytest.raises(ConfigurationError, match="its rule 'keep'"):
            read_target(connection, plan.rows)


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


def counted(url: str, plan: ColumnPlan, batch: pa.RecordBatch) -> tuple[int, int]:
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
                counted(database, plan, batch.slice(2 * key, 2))
        apart = [number for number, key in enumerate(ids) if key not in tied]
        winners = sorted(row for row in kept if row[0] not in tied)
        assert counted(database, plan, batch.take(pa.array(apart))) == (len(apart), len(winners)), kind
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
    counted(english_database, plan, pa.record_batch({"id": [1] * 4, "item": versions, ORDER_COLUMN: order}))
    assert rows(english_database, "SELECT item FROM orders") == [("a",)]
    for version, kept in (("B", "B"), ("a", "a"), ("Z", "a")):
        plan = guarded(english_database, order=t.StringType(), order_by="item")
        given = {"id": [2], "item": [version], ORDER_COLUMN: order_keys(pa.array([version]))}
        counted(english_database, plan, pa.record_batch(given))
        assert rows(english_database, "SELECT item FROM orders WHERE id = 2") == [(kept,)]


# --- late rows -------------------------------------------------------------------------------------------------

VERSIONS: dict[str, t.DataType] = {"id": LONG, "version": LONG}


def guarded(
    url: str, fields: Mapping[str, t.DataType] = ORDERS, *, order: t.DataType = LONG, order_by: str = "version"
) -> ColumnPlan:
    """A plan that keeps rows that are newer."""
    return plan_of(url, fields, keys=["id"], order=order, order_by=order_by, late_rows="keep_newer")


def versions(*values: tuple[int, int | None]) -> pa.RecordBatch:
    column = pa.array([version for _, version in values], pa.int64())
    return pa.record_batch({"id": [key for key, _ in values], "version": column, ORDER_COLUMN: column})


def test_a_row_that_is_older_than_that_of_the_table_is_passed_over(database: str) -> None:
    create(database, VERSIONS, keys=["id"])
    plan = guarded(database, VERSIONS)
    assert counted(database, plan, versions((1, 5), (2, 5), (3, None))) == (3, 3)
    # Older, as new, newer than nothing; and a key that was not there.
    assert counted(database, plan, versions((1, 4), (2, 5), (3, 1), (4, 0))) == (4, 3)
    assert table(database) == [(1, 5), (2, 5), (3, 1), (4, 0)]
    # Nothing is less than a value, and as much as nothing.
    assert counted(database, plan, versions((1, None), (2, 6))) == (2, 1)
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
    fields = {"id": LONG, column.split(maxsplit=1)[0]: t.StringType()}
    with pytest.raises(ConfigurationError, match=f"keep_newer.*{said}"):
        guarded(database, fields, order_by=order_by)
