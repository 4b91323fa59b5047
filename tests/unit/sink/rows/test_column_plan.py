"""The plan of columns against tables described by hand, its SQL, the order of keys. FAILURES C8 (bad values), C9."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import Rows
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.sink.rows.catalog import TargetColumn, TargetTable
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan, create_table_ddl, order_column, plan_columns
from spark_2pc_sink.sink.rows.copy_encoder import ORDER_COLUMN, Encoding, order_keys
from spark_2pc_sink.sink.rows.row_sql import guarded, not_utf8
from spark_2pc_sink.sink.spark_sql import literal, quoted

_VARHDRSZ = 4

INT = t.IntegerType()
INTS = t.ArrayType(INT)
STRUCT = t.StructType([t.StructField("a", INT)])
MAP = t.MapType(t.StringType(), INT)
VARIANT = t.VariantType()
APPEND = Rows("orders")


def table(*columns: TargetColumn, keys: tuple[tuple[str, ...], ...] = ()) -> TargetTable:
    return TargetTable(table=TableName("orders", "public"), columns=columns, unique_keys=keys)


def column(name: str, base_type: str, **more: object) -> TargetColumn:
    return TargetColumn(**{"name": name, "type_name": base_type, "base_type": base_type, **more})  # type: ignore[arg-type]


def numeric(precision: int, scale: int) -> TargetColumn:
    modifier = (precision << 16 | scale & 0x7FF) + _VARHDRSZ
    return column("x", "numeric", type_name=f"numeric({precision},{scale})", type_modifier=modifier)


def planned(spark_type: t.DataType, target: TargetColumn) -> ColumnPlan:
    return plan_columns([("x", spark_type)], table(target), APPEND)


# --- which types go together -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spark_type", "base_type", "wire"),
    [
        (t.ByteType(), "int2", pa.int16()),
        (t.IntegerType(), "float8", pa.float64()),
        (t.LongType(), "numeric", pa.decimal128(19, 0)),
    ],
)
def test_widening_that_loses_nothing_needs_no_check(spark_type: t.DataType, base_type: str, wire: object) -> None:
    [it] = planned(spark_type, column("x", base_type)).columns
    assert it.storage.wire == wire
    assert it.storage.checks == ()


@pytest.mark.parametrize(
    ("spark_type", "target"),
    [
        (t.LongType(), column("x", "int4")),
        (t.LongType(), numeric(10, 0)),
        (t.DecimalType(38, 18), numeric(10, 2)),
        (t.DecimalType(10, 0), column("x", "int4")),
        (t.StringType(), column("x", "varchar", type_modifier=7)),
        (t.TimestampType(), column("x", "timestamptz", type_modifier=3)),
    ],
)
def test_narrowing_is_checked_value_by_value(spark_type: t.DataType, target: TargetColumn) -> None:
    wide = plan_columns([("x", spark_type)], table(column("x", target.base_type)), APPEND)
    [narrow] = planned(spark_type, target).columns
    assert narrow.storage.checks
    if target.type_modifier >= 0:
        assert len(narrow.storage.checks) > len(wide.columns[0].storage.checks)


@pytest.mark.parametrize(
    ("precision", "scale", "checked"), [(10, 2, False), (9, 2, True), (10, 3, True), (10, 1, True)]
)
def test_decimal_10_2_is_checked_unless_digits_on_both_sides_fit(precision: int, scale: int, *, checked: bool) -> None:
    [it] = planned(t.DecimalType(10, 2), numeric(precision, scale)).columns
    assert bool(it.storage.checks) is checked


def test_precision_and_scale_are_read_as_the_catalog_packs_them() -> None:
    for precision, scale in [(10, 2), (38, 38), (1000, 0), (5, -2), (3, 5), (1, 1000), (1000, -1000)]:
        assert numeric(precision, scale).precision_and_scale == (precision, scale)
    assert column("x", "numeric").precision_and_scale is None


# --- JSON and arrays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base_type", ["json", "jsonb"])
@pytest.mark.parametrize("spark_type", [STRUCT, MAP, VARIANT, INTS], ids=str)
def test_complex_types_become_json_in_the_jvm(base_type: str, spark_type: t.DataType) -> None:
    [it] = planned(spark_type, column("x", base_type)).columns
    assert it.expression == guarded("to_json(`x`, map('ignoreNullFields', 'false'))", [("`x`", spark_type)])
    assert it.arrow_type == pa.string()
    assert it.storage.encoding is (Encoding.JSONB if base_type == "jsonb" else Encoding.PLAIN)


def test_json_keeps_microseconds() -> None:
    """to_json alone writes three digits of a second's fraction."""
    [it] = planned(t.MapType(t.StringType(), t.ArrayType(t.TimestampNTZType())), column("x", "jsonb")).columns
    assert ".SSSSSSXXX" in it.expression
    assert "'timeZone', 'UTC'" in it.expression


def test_arrays_of_scalars_go_into_arrays() -> None:
    [it] = planned(t.ArrayType(t.IntegerType()), column("x", "int8", is_array=True, element_oid=20)).columns
    assert it.expression == "`x`"
    assert it.element_oid == 20
    assert it.arrow_type == pa.list_(pa.int32())
    assert it.storage.wire == pa.int64()


# --- names -----------------------------------------------------------------------------------------------------


def plan_names(*names: str, target: TargetTable) -> ColumnPlan:
    return plan_columns([(name, t.LongType()) for name in names], target, APPEND)


def test_column_that_only_the_database_writes_may_be_left_out() -> None:
    target = table(column("id", "int8", unwritable="a generated column"), column("b", "int8"))
    assert plan_names("b", target=target).names == ("b",)


def test_not_null_column_with_a_default_may_be_left_out() -> None:
    with_default = table(column("id", "int8"), column("must", "int8", nullable=False, has_default=True))
    assert plan_names("id", target=with_default).names == ("id",)


# --- upsert ----------------------------------------------------------------------------------------------------

KEYED = table(
    column("a", "int8", nullable=False),
    column("b", "int8"),
    column("c", "int8"),
    keys=(("a",), ("c", "b")),
)


def upsert_plan(keys: list[str], order: t.DataType | None = None) -> ColumnPlan:
    rows = Rows("orders", mode="upsert", keys=keys, order_by=None if order is None else "c")
    return plan_columns([(name, t.LongType()) for name in "abc"], KEYED, rows, order=order)


def test_upsert_keys_match_an_index_in_any_order() -> None:
    assert upsert_plan(["b", "c"]).upsert_keys == ("c", "b")


def test_null_in_an_upsert_key_is_refused_even_where_the_table_takes_it() -> None:
    """NULL is equal to nothing: ON CONFLICT would insert such a row again and again."""
    plan = upsert_plan(["b", "c"])
    assert [column.nullable for column in plan.columns] == [False, False, False]
    assert [column.nullable for column in upsert_plan(["a"]).columns] == [False, True, True]


def test_order_travels_beside_the_columns() -> None:
    plan = upsert_plan(["a"], order=t.DecimalType(10, 2))
    assert plan.names == ("a", "b", "c")
    assert plan.copied_names == ("a", "b", "c", ORDER_COLUMN)
    assert plan.order is not None
    assert plan.order.nullable
    assert plan.order.target.type_name == "numeric"


# --- the table of a batch --------------------------------------------------------------------------------------


def test_ddl_of_every_type() -> None:
    columns: dict[str, t.DataType] = {
        '"a" boolean NOT NULL': t.BooleanType(),
        '"b" smallint': t.ByteType(),
        '"c" integer NOT NULL': INT,
        '"d" bigint NOT NULL': t.LongType(),
        '"e" real': t.FloatType(),
        '"f" double precision': t.DoubleType(),
        '"g" numeric(10,2)': t.DecimalType(10, 2),
        '"h" text': t.StringType(),
        '"i" bytea': t.BinaryType(),
        '"j" date': t.DateType(),
        '"k" timestamptz': t.TimestampType(),
        '"l" timestamp': t.TimestampNTZType(),
        '"m" numeric(5,1)[]': t.ArrayType(t.DecimalType(5, 1)),
        '"n" jsonb': MAP,
        '"o" jsonb': t.ArrayType(INTS),
        '"p" interval': t.DayTimeIntervalType(),
    }
    fields = [t.StructField(sql[1], spark_type, nullable=sql[1] != "a") for sql, spark_type in columns.items()]
    ddl = create_table_ddl(fields, "S.Orders", upsert_keys=["c", "d"]).splitlines()
    assert ddl[0] == 'CREATE TABLE IF NOT EXISTS "s"."orders" ('
    assert ddl[1:] == [*(f"  {sql}," for sql in columns), '  PRIMARY KEY ("c", "d")', ")"]


TEXT, NUMBER = t.StringType(), t.LongType()
PAIR = t.StructType([t.StructField("n", NUMBER), t.StructField("a b", TEXT)])


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        (TEXT, "NOT is_valid_utf8(x)"),
        (t.StructType([t.StructField("n", NUMBER)]), None),
        (t.ArrayType(PAIR), "exists(x, _2pc_0 -> NOT is_valid_utf8(_2pc_0.`a b`))"),
        (t.ArrayType(t.ArrayType(TEXT)), "exists(x, _2pc_0 -> exists(_2pc_0, _2pc_1 -> NOT is_valid_utf8(_2pc_1)))"),
        (t.MapType(TEXT, NUMBER), "exists(map_keys(x), _2pc_0 -> NOT is_valid_utf8(_2pc_0))"),
    ],
    ids=str,
)
def test_where_text_may_be(kind: t.DataType, condition: str | None) -> None:
    assert not_utf8("x", kind) == condition


def test_nothing_in_a_name_or_a_text_ends_it() -> None:
    """What a user names a column or a topic never becomes SQL."""
    assert quoted("order id") == "`order id`"
    assert quoted("a`b") == "`a``b`"
    assert literal("it's") == r"'it\'s'"
    assert literal("a\\b") == r"'a\\b'"


def spark_double(number: float) -> tuple[bool, float]:
    """``SQLOrderingUtil.compareDoubles``: NaN is the greatest, and equal to itself; -0.0 equals 0.0."""
    return math.isnan(number), 0.0 if math.isnan(number) else number + 0.0


#: Values, their Arrow type, and what orders them as Spark does.
ORDERED: dict[str, tuple[st.SearchStrategy[Any], Any, Callable[[Any], Any]]] = {
    "text": (st.text(max_size=4), pa.string(), str.encode),
    "bytes": (st.binary(max_size=4), pa.binary(), bytes),
    "double": (st.floats(), pa.float64(), spark_double),
    "float": (st.floats(width=32), pa.float32(), spark_double),
    "decimal": (st.decimals(-999, 999, places=2), pa.decimal128(10, 2), Decimal),
    "bigint": (st.integers(-(2**63), 2**63 - 1), pa.int64(), int),
    "boolean": (st.booleans(), pa.bool_(), bool),
    "date": (st.dates(), pa.date32(), lambda day: day),
    "timestamp": (st.datetimes(timezones=st.just(dt.timezone.utc)), pa.timestamp("us", "UTC"), lambda moment: moment),
    "time": (st.times(), pa.time64("us"), lambda time: time),
}


@pytest.mark.parametrize("kind", ORDERED)
def test_order_keys_have_the_order_of_their_values(kind: str) -> None:
    values, arrow_type, spark_order = ORDERED[kind]

    @given(st.lists(values, min_size=2, max_size=2))
    def check(pair: list[Any]) -> None:
        first, second, null = order_keys(pa.array([*pair, None], arrow_type)).to_pylist()
        left, right = map(spark_order, pair)
        assert (first < second, first == second, null) == (left < right, left == right, None)

    check()


@pytest.mark.parametrize(
    ("spark_type", "arrow_type", "column"),
    [
        (t.StringType(), pa.binary(), "bytea"),
        (t.DecimalType(10, 2), pa.decimal128(10, 2), "numeric"),
        (t.DoubleType(), pa.int64(), "bigint"),
        (t.TimestampType(), pa.int64(), "bigint"),
    ],
    ids=str,
)
def test_the_database_holds_order_keys_not_values(spark_type: t.DataType, arrow_type: Any, column: str) -> None:
    assert order_column(spark_type) == (arrow_type, column)


def test_a_text_of_another_collation_is_refused() -> None:
    """Spark would order it by rules that nobody else has."""
    collated = t.StringType()
    collated.collation = "UNICODE_CI"
    with pytest.raises(ConfigurationError, match=r"UNICODE_CI.*COLLATE UTF8_BINARY"):
        order_column(collated)
