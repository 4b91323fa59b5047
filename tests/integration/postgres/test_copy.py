"""Append: all tasks' rows by one COPY in the caller's transaction, and values of every type and back. C8, C12."""

from __future__ import annotations

import json
import math
import pickle
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from types import TracebackType
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings, strategies as st
from pyspark.sql import SparkSession, types as t

from spark_2pc_sink.errors import BatchRetryError, ConfigurationError, ConstraintError
from spark_2pc_sink.options.names import quote_identifier
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from spark_2pc_sink.sink.rows.table_copy import AppendedRows, CopyTarget, TableCopy
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, LocalStream, attempt_threads
from spark_2pc_sink.testing import wait_until
from tests.harness.providers import Database
from tests.harness.streams import session_settings
from tests.integration.postgres.database_tables import (
    ORDERS,
    create,
    orders,
    plan_of,
    put,
    rows,
    run,
    stream,
    table,
    transaction,
    write,
)

RAISING_TRIGGER = """
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not %', NEW.id; END $$;
CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no()
"""


KEYED = "ALTER TABLE orders ADD PRIMARY KEY (id)"


@pytest.mark.parametrize(
    ("ddl", "values", "said"),
    [
        (KEYED, [(1, "a"), (1, "b")], r"\(constraint orders_pkey\): .*\(id\)=\(1\)"),
        ("ALTER TABLE orders ADD CONSTRAINT c CHECK (id > 0)", [(0, "a")], r"\(constraint c\): .*contains \(0, a\)"),
        ("ALTER TABLE orders ALTER item TYPE jsonb USING null", [(1, "no")], r'"no" is invalid.* \[22P02\]'),
        (RAISING_TRIGGER, [(7, "a")], "not 7.*P0001"),
    ],
)
def test_row_that_the_table_refuses_is_named(database: str, ddl: str, values: Any, said: str) -> None:
    run(database, "CREATE TABLE orders (id bigint, item text)", ddl)
    plan = plan_of(database)
    with pytest.raises(ConstraintError, match=said) as caught:
        put(database, plan, *values)
    assert caught.value.table == '"public"."orders"'
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes
    assert table(database) == []


def test_xml_without_libxml_is_no_bad_row(database: str) -> None:
    """C12: such a server takes no value of the type, and the remedy names the column's type; others take all."""
    run(database, "CREATE TABLE orders (id bigint, item xml)")
    plan = plan_of(database)
    try:
        run(database, "SELECT CAST('<a/>' AS xml)")
    except psycopg2.errors.FeatureNotSupported:
        with pytest.raises(ConfigurationError, match="built with libxml") as refused:
            put(database, plan, (1, "<a/>"))
        assert "the type of a column (xml becomes text)" in refused.value.remedy
        run(database, "ALTER TABLE orders ALTER item TYPE text")
        plan = plan_of(database)
    put(database, plan, (1, "<a/>"))
    assert rows(database, "SELECT id, item::text FROM orders") == [(1, "<a/>")]


@pytest.fixture
def plan(database: str) -> ColumnPlan:
    create(database, ORDERS)
    return plan_of(database)


def test_errors_that_say_nothing_about_rows_pass_unchanged(database: str, plan: ColumnPlan) -> None:
    """C7: whoever owns the transaction sees what it was."""
    with transaction(database) as blocker, transaction(database) as connection:
        blocker.exec_driver_sql("LOCK TABLE orders")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 100")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            write(connection, plan, [orders(plan, (1, "a"))])
        connection.rollback()


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("ALTER id TYPE double precision", "'id' .* was bigint and is double precision"),
        ("RENAME item TO name", "'item' .* was text and is gone"),
    ],
)
def test_table_that_was_altered_since_it_was_planned_takes_no_rows(
    database: str, plan: ColumnPlan, ddl: str, said: str
) -> None:
    """COPY BINARY has no types: a bigint's eight bytes would be read as a double without any error. C12."""
    run(database, f"ALTER TABLE orders {ddl}", "ALTER TABLE orders ADD unrelated int")
    with pytest.raises(BatchRetryError, match=said):
        put(database, plan, (1, "long"))
    assert table(database) == []


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
        assert write(connection, plan, [children((1, 2)), children((2, 1))]).given == 2
    refused = r"orders_parent_fkey\): .*\(parent\)=\(9\) is not present"
    with transaction(database, commit=False) as connection, pytest.raises(ConstraintError, match=refused):
        write(connection, plan, [children((3, 9))])
    assert rows(database, "SELECT count(*) FROM orders") == [(2,)]


# --- rows that are written while a job runs --------------------------------------------------------------------------

IDLE_TIMEOUT_S = 0.9
#: After this a stopped server goes on whatever happens, so that a wait without a bound ends too, and is noticed.
STOPPED_S = 20.0


class JobFailedError(Exception):
    """What Spark raises."""


class Copying:
    """One attempt: tasks that send rows, and the copy of these."""

    def __init__(
        self, connection: sa.Connection, *targets: CopyTarget, idle_s: float = 20, early: bool = False
    ) -> None:
        self.source, self.connection = AttemptInput(2**26, 2), connection
        self.copy = TableCopy(
            self.source, open_decision=lambda: connection, targets=targets, idle_s=idle_s, early=early
        )

    def __enter__(self) -> Copying:
        self.threads = attempt_threads(self.source, self.copy.task)
        self.threads.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.threads.__exit__(kind, error, trace)

    def send(self, task: int, pieces: Sequence[bytes], *, lane: int = 0, count: int = 1) -> None:
        stream = LocalStream(self.source, task)
        stream.rows(lane, b"".join(pieces), count)
        stream.finish()

    def finish(self, **encoded: int) -> int:
        """How many rows the tables were given; ``lane_0=2`` says that tasks have encoded two for the first."""
        return self.copy.finish(self.connection, {int(name[5:]): count for name, count in encoded.items()}).given


def copied_to(plan: ColumnPlan, lane: int = 0, *, waits: bool = False) -> CopyTarget:
    return CopyTarget(lane, lambda connection: AppendedRows(connection, plan), waits=waits)


def test_rows_are_written_while_the_job_runs(database: str, plan: ColumnPlan) -> None:
    """One COPY for frames that follow each other, and another one after a pause."""
    with transaction(database) as connection, Copying(connection, copied_to(plan)) as copying:
        copying.send(0, orders(plan, (1, "a")))
        wait_until(lambda: [rows.copied for rows in list(copying.copy._tables.values())] == [1], what="the first row")
        copying.send(1, orders(plan, (2, "b"), (3, "c")), count=2)
        copying.source.close_input()
        copying.copy.task.finish()
        assert copying.finish(lane_0=3) == 3
    assert table(database) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_transaction_that_waits_for_tasks_outlives_the_idle_timeout(database: str, plan: ColumnPlan) -> None:
    """C12: the server ends idle transactions, to be rid of drivers that are gone; this one is not."""
    with transaction(database) as connection:
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'")
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with Copying(connection, copied_to(plan), idle_s=IDLE_TIMEOUT_S / 3) as copying:
            copying.send(0, orders(plan, (1, "early")))
            long = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND now() - xact_start > '{3 * IDLE_TIMEOUT_S}s'"
            wait_until(lambda: rows(database, long), what="a transaction of some age")
            copying.send(1, orders(plan, (2, "late")))
        assert copying.finish(lane_0=2) == 2
    assert table(database) == [(1, "early"), (2, "late")]


def test_rows_that_refer_to_another_table_come_after_it(database: str, plan: ColumnPlan) -> None:
    """C10: in whatever order tasks send them. What waits is on the disk of the driver, and is removed."""
    run(database, KEYED, "CREATE TABLE lines (id bigint REFERENCES orders, item text)")
    lines = plan_of(database, table="lines")
    with transaction(database) as connection:
        with Copying(connection, copied_to(plan), copied_to(lines, lane=1, waits=True)) as copying:
            copying.send(0, orders(lines, (1, "a line"), (2, "another")), lane=1, count=2)
            copying.send(1, orders(plan, (1, "a"), (2, "b")), count=2)
        assert copying.finish(lane_0=2, lane_1=2) == 4
        copying.copy.close()
    assert rows(database, "SELECT count(*) FROM lines") == [(2,)]


@pytest.mark.parametrize("encoded", [1, 3])
def test_another_number_of_rows_than_tasks_have_encoded_is_refused(
    database: str, plan: ColumnPlan, encoded: int
) -> None:
    """B22, C10: Spark's job says what was made, and PostgreSQL what has arrived."""
    with transaction(database, commit=False) as connection:
        with Copying(connection, copied_to(plan)) as copying:
            copying.send(0, orders(plan, (1, "a"), (2, "b")), count=2)
        with pytest.raises(BatchRetryError, match="the database received 2"):
            copying.finish(lane_0=encoded)


def test_a_job_that_fails_does_not_wait_for_a_lock(database: str, plan: ColumnPlan) -> None:
    """The connection is cut, so that nothing uses it when the transaction is rolled back."""
    with transaction(database, commit=False) as other, transaction(database, commit=False) as connection:
        other.exec_driver_sql("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        begun_s = time.monotonic()
        with pytest.raises(JobFailedError), Copying(connection, copied_to(plan), early=True):
            raise JobFailedError
        assert time.monotonic() - begun_s < STOPPED_S
        connection.invalidate()


MICROSECONDS_MIN, MICROSECONDS_MAX = -210_866_803_200_000_000, 2**63 - 1
DAYS_MIN, DAYS_MAX = -2_440_588, 2_145_042_905


def unchanged(value: Any) -> Any:
    return value


@dataclass
class Kind:
    """A column of the property test: its values, and the SQL over column {0} that shows them as ``shown`` does.

    Attributes:
        storage: the Arrow type of integers behind the values, where Python's own type has a smaller range.
    """

    spark_type: t.DataType
    values: st.SearchStrategy[Any]
    sql: str
    read: str = "{0}"
    shown: Callable[[Any], Any] = unchanged
    storage: Any = None

    def array(self, values: Sequence[Any], arrow_type: Any) -> Any:
        return pa.array(values, self.storage or arrow_type).cast(arrow_type)


def bits(value: float) -> str:
    return "nan" if math.isnan(value) else struct.pack(">d", value).hex()


def plain(value: Decimal) -> str:
    """As PostgreSQL writes it, all digits of its scale; it knows no negative zero."""
    return f"{value or value.copy_abs():f}"


def from_2000(microseconds: int) -> int:
    return microseconds - EPOCH_2000


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    unscaled = st.integers(-most, most) | st.integers(0, precision).map(lambda zeros: 10**zeros % (most + 1))
    return unscaled.map(lambda number: Decimal(f"{number}E-{scale}"))


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
NAN_BITS = "CASE WHEN {0} = 'NaN' THEN 'nan' ELSE encode(float8send({0}), 'hex') END"
MICROSECONDS = "extract(epoch FROM {0}) * 1000000"
# extract() is off by some microseconds at the far end of timestamps; the binary form is what is stored.
STORED = "('x' || encode({1}_send({0}), 'hex'))::bit(64)::bigint"
EPOCH_2000 = 946_684_800_000_000
INT16, INT32, INT64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))

KINDS = {
    "boolean": Kind(t.BooleanType(), st.booleans(), "boolean"),
    "short": Kind(t.ShortType(), INT16, "smallint"),
    "int_wide": Kind(t.IntegerType(), INT32, "bigint"),
    "int_double": Kind(t.IntegerType(), INT32, "double precision"),
    "int_numeric": Kind(t.IntegerType(), INT32, "numeric(12,2)"),
    "int_narrow": Kind(t.IntegerType(), INT16, "smallint"),
    "long": Kind(t.LongType(), INT64, "bigint"),
    "float": Kind(t.FloatType(), st.floats(width=32), "real", read=NAN_BITS.format("{0}::float8"), shown=bits),
    "double": Kind(t.DoubleType(), st.floats(), "double precision", read=NAN_BITS, shown=bits),
    "decimal_38_18": Kind(t.DecimalType(38, 18), decimals(38, 18), "numeric", read="{0}::text", shown=plain),
    "decimal_5_5": Kind(t.DecimalType(5, 5), decimals(5, 5), "numeric(5,5)", read="{0}::text", shown=plain),
    "decimal_narrow": Kind(t.DecimalType(38, 18), decimals(10, 2), "numeric(10,2)"),
    "decimal_int": Kind(t.DecimalType(20, 2), INT32.map(Decimal), "integer", shown=int),
    "string": Kind(t.StringType(), TEXTS, "text"),
    "json": Kind(t.StringType(), JSON.map(json.dumps).filter(lambda text: r"\u0000" not in text), "json",
                 read="{0}::text"),
    "jsonb": Kind(t.StringType(), JSON.map(json.dumps).filter(lambda text: r"\u0000" not in text), "jsonb",
                  shown=json.loads),
    "uuid": Kind(t.StringType(), st.uuids().map(str), "uuid", shown=uuid.UUID),
    "binary": Kind(t.BinaryType(), st.binary(max_size=30), "bytea", read="encode({0}, 'hex')", shown=bytes.hex),
    "date": Kind(t.DateType(), st.integers(DAYS_MIN, DAYS_MAX), "date", read="{0} - date '1970-01-01'",
                 storage=pa.int32()),
    "timestamp": Kind(t.TimestampType(), st.integers(MICROSECONDS_MIN, MICROSECONDS_MAX), "timestamptz",
                      read=STORED.format("{0}", "timestamptz"), shown=from_2000, storage=pa.int64()),
    "timestamp_ntz": Kind(t.TimestampNTZType(), st.integers(MICROSECONDS_MIN, MICROSECONDS_MAX), "timestamp",
                          read=STORED.format("{0}", "timestamp"), shown=from_2000, storage=pa.int64()),
    "timestamp_3": Kind(t.TimestampType(), st.integers(-(10**12), 10**13).map(lambda ms: ms * 1000),
                        "timestamptz(3)", read=MICROSECONDS, storage=pa.int64()),
    "time": Kind(t.TimeType(), st.integers(0, 86_400 * 10**6 - 1).map(lambda us: us * 1000), "time",
                 read=f"1000 * {MICROSECONDS}", storage=pa.int64()),
    "interval": Kind(t.DayTimeIntervalType(), INT64, "interval", read=MICROSECONDS, storage=pa.int64()),
}  # fmt: skip

# Arrays of what scalars are above, where the driver or SQL gives them back in a form to be compared.
ARRAYS = {
    "longs": (t.LongType(), INT64, "bigint[]"),
    "doubles": (t.DoubleType(), st.floats(allow_nan=False), "double precision[]"),
    "decimals": (t.DecimalType(20, 5), decimals(20, 5), "numeric(20,5)[]"),
    "strings": (t.StringType(), TEXTS, "text[]"),
    "dates": (t.DateType(), st.dates(), "date[]"),
}
KINDS |= {
    name: Kind(t.ArrayType(element), st.lists(st.none() | values, max_size=4), sql)
    for name, (element, values, sql) in ARRAYS.items()
}


@pytest.fixture(scope="module")
def every_type(postgres: Database) -> Iterator[tuple[sa.Connection, ColumnPlan]]:
    """A connection to a table that has a column of each kind, and the plan of all columns."""
    url = postgres.create_database("every_type")
    columns = ", ".join(f'"{name}" {kind.sql}' for name, kind in KINDS.items())
    run(url, f"CREATE TABLE every_type (row bigint, {columns})")
    fields = {"row": t.LongType(), **{name: kind.spark_type for name, kind in KINDS.items()}}
    plan = plan_of(url, fields, "every_type")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection, plan
    postgres.drop_database("every_type")


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=max(1, settings().max_examples // 4))
@given(data=st.data())
def test_what_was_put_in_comes_out(
    every_type: tuple[sa.Connection, ColumnPlan], name: str, data: st.DataObject
) -> None:
    """Values of each type, null among them, in slices of several batches."""
    connection, whole_plan = every_type
    kind, column = KINDS[name], quote_identifier(name)
    plan = replace(whole_plan, columns=tuple(it for it in whole_plan.columns if it.name in ("row", name)))
    values = data.draw(st.lists(st.none() | kind.values, max_size=25))
    cut = data.draw(st.integers(0, len(values)))
    batch = pa.record_batch(
        {"row": pa.array(range(len(values)), pa.int64()), name: kind.array(values, plan.columns[1].arrow_type)}
    )
    with connection.begin() as begun:
        copied = write(connection, plan, [stream(plan, batch.slice(0, cut), batch.slice(cut))])
        found = connection.exec_driver_sql(
            f"SELECT CASE WHEN {column} IS NOT NULL THEN {kind.read.format(column)} END FROM every_type ORDER BY row"
        )
        assert found.scalars().all() == [None if value is None else kind.shown(value) for value in values]
        assert copied.given == len(values)
        begun.rollback()


def test_json_keeps_microseconds_and_seconds_of_zones(spark: SparkSession, database: str) -> None:
    """Alone, to_json writes milliseconds, +00:09 for Paris's +00:09:21 in 1900, and nothing for a null field."""
    frame = spark.sql(
        "SELECT named_struct('at', timestamp'1900-01-01 00:00:00.000001+00:00', 'each', "
        "array(timestamp_ntz'2020-01-01 00:00:00.000001'), 'nothing', CAST(NULL AS INT)) AS x"
    )
    run(database, "CREATE TABLE json (x jsonb)")
    plan = plan_of(database, {"x": frame.schema["x"].dataType}, "json")
    parsers = ("ansi.doubleQuotedIdentifiers", "parser.escapedStringLiterals")
    for parser in ({}, *({f"spark.sql.{name}": "true"} for name in parsers)):
        with session_settings(spark, {"spark.sql.session.timeZone": "Europe/Paris", **parser}):
            [row] = frame.selectExpr(f"{plan.columns[0].expression} AS x").collect()
        assert json.loads(row.x) == {
            "at": "1900-01-01T00:00:00.000001Z",
            "each": ["2020-01-01T00:00:00.000001"],
            "nothing": None,
        }
