"""Order keys are ordered as Spark orders what they were made of; rows of one upsert key share an identity."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.table.upsert_order import order_column, order_keys, row_identities


def spark_double(number: float) -> tuple[bool, float]:
    """``SQLOrderingUtil.compareDoubles``: NaN is the greatest, and equal to itself; -0.0 equals 0.0."""
    return math.isnan(number), 0.0 if math.isnan(number) else number + 0.0


#: Values, their Arrow type, and what orders them as Spark does.
ORDERED: dict[str, tuple[st.SearchStrategy[Any], Any, Callable[[Any], Any]]] = {
    "text": (st.text(max_size=4), pa.string(), str.encode),
    "large text": (st.text(max_size=4), pa.large_string(), str.encode),
    "bytes": (st.binary(max_size=4), pa.binary(), bytes),
    "large bytes": (st.binary(max_size=4), pa.large_binary(), bytes),
    "double": (st.floats(), pa.float64(), spark_double),
    "float": (st.floats(width=32), pa.float32(), spark_double),
    "decimal": (st.decimals(-999, 999, places=2), pa.decimal128(10, 2), Decimal),
    "bigint": (st.integers(-(2**63), 2**63 - 1), pa.int64(), int),
    "tinyint": (st.integers(-128, 127), pa.int8(), int),
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
        first, second = order_keys(pa.array([*pair, None], arrow_type)).to_pylist()[:2]
        left, right = map(spark_order, pair)
        assert (first < second, first == second) == (left < right, left == right)

    check()


@pytest.mark.parametrize("kind", ORDERED)
def test_null_stays_null(kind: str) -> None:
    _, arrow_type, _ = ORDERED[kind]
    assert order_keys(pa.nulls(2, arrow_type)).null_count == 2


def test_upper_case_is_less_than_lower_case() -> None:
    """As in Spark and under COLLATE "C"; by the rules of most languages it is not."""
    keys = order_keys(pa.array(["B", "a"])).to_pylist()
    assert keys[0] < keys[1]


@pytest.mark.parametrize(
    ("spark_type", "arrow_type", "column"),
    [
        (t.StringType(), pa.binary(), "bytea"),
        (t.VarcharType(5), pa.binary(), "bytea"),
        (t.BinaryType(), pa.binary(), "bytea"),
        (t.DecimalType(10, 2), pa.decimal128(10, 2), "numeric"),
        (t.DoubleType(), pa.int64(), "bigint"),
        (t.TimestampType(), pa.int64(), "bigint"),
        (t.DayTimeIntervalType(), pa.int64(), "bigint"),
    ],
    ids=str,
)
def test_the_database_holds_order_keys_not_values(spark_type: t.DataType, arrow_type: Any, column: str) -> None:
    found, target = order_column(spark_type)
    assert (found, target.type_name) == (arrow_type, column)


def test_a_text_of_another_collation_is_refused() -> None:
    """Spark would order it by rules that nobody else has."""
    collated = t.StringType()
    collated.collation = "UNICODE_CI"
    with pytest.raises(ConfigurationError, match=r"UNICODE_CI.*COLLATE UTF8_BINARY"):
        order_column(collated)


@pytest.mark.parametrize("spark_type", [t.ArrayType(t.LongType()), t.YearMonthIntervalType()], ids=str)
def test_a_type_without_one_order_is_refused(spark_type: t.DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"upsert_order_by.*something with one order everywhere"):
        order_column(spark_type)


# --- identities --------------------------------------------------------------------------------------------------

COLUMNS: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "text": (st.text("ab", max_size=2), pa.string()),
    "bytes": (st.binary(max_size=1), pa.binary()),
    "bigint": (st.integers(0, 3), pa.int64()),
    "date": (st.dates(dt.date(2020, 1, 1), dt.date(2020, 1, 3)), pa.date32()),
    "decimal": (st.decimals(0, 1, places=1), pa.decimal128(5, 1)),
}


@given(st.data())
def test_rows_share_an_identity_exactly_where_they_have_the_same_keys(data: st.DataObject) -> None:
    """Of one column or several; nothing moves from one column to the next."""
    kinds = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
    rows = data.draw(st.lists(st.tuples(*(COLUMNS[kind][0] for kind in kinds)), min_size=1, max_size=12))
    columns = [pa.array(values, COLUMNS[kind][1]) for kind, values in zip(kinds, zip(*rows, strict=True), strict=True)]
    found = row_identities(columns, pa.array(["key"] * len(rows))).to_pylist()
    for first, second in itertools.combinations(range(len(rows)), 2):
        assert (found[first] == found[second]) == (rows[first] == rows[second])
    assert None not in found


def test_a_slice_has_the_identities_of_its_rows() -> None:
    column = pa.array([1, 2, 3, 4]).slice(1, 2)
    assert row_identities([column], pa.array(["k", "k"])).to_pylist() == [2, 3]


@pytest.mark.parametrize("column", [pa.array([1, 2]), pa.array(["a", "b"])], ids=["count", "text"])
def test_a_row_whose_record_has_no_key_has_no_identity(column: pa.Array) -> None:
    found = row_identities([column], pa.array(["k", None]))
    assert [value is None for value in found.to_pylist()] == [False, True]
