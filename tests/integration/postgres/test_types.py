"""Values of every type through PostgreSQL and back: what a table shows is what the batch had. C8."""

from __future__ import annotations

import json
import math
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from spark_2pc_sink.sink.rows.catalog import quote_identifier
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan
from tests.harness.providers import Database
from tests.harness.streams import session_settings
from tests.integration.postgres.database_tables import plan_of, run, stream, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
            [row] = frame.selectExpr(*plan.expressions).collect()
        assert json.loads(row.x) == {
            "at": "1900-01-01T00:00:00.000001Z",
            "each": ["2020-01-01T00:00:00.000001"],
            "nothing": None,
        }
