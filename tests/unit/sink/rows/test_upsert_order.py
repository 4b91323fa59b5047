"""Order keys are ordered as Spark orders what they were made of."""

from __future__ import annotations

import datetime as dt
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
from spark_2pc_sink.sink.rows.column_plan import order_column
from spark_2pc_sink.sink.rows.copy_encoder import order_keys


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
