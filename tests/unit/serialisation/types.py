"""Types of Spark with values that they hold, at random, for both formats."""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal
from inspect import signature
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

#: PySpark 4.0 knows no other zone.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
NUMBERS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def scalars() -> st.SearchStrategy[DataType]:
    plain: list[type[DataType]] = [
        BooleanType,
        FloatType,
        DoubleType,
        StringType,
        BinaryType,
        DateType,
        TimestampType,
        *NUMBERS,
    ]
    decimals = st.integers(1, 38).flatmap(
        lambda precision: st.integers(0, precision).map(lambda scale: DecimalType(precision, scale))
    )
    return st.one_of(st.sampled_from(plain).map(lambda kind: kind()), decimals)


def structs(inner: st.SearchStrategy[DataType], *, nullable: bool = True) -> st.SearchStrategy[StructType]:
    """Structs with some fields of the types ``inner``."""
    fields = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=4)
    return fields.map(
        lambda found: StructType(
            [StructField(f"f{number}", kind, null or nullable) for number, (kind, null) in enumerate(found)]
        )
    )


def arrow_type(kind: DataType) -> Any:
    """As Spark hands it to tasks."""
    return to_arrow_type(kind, **_IN_UTC)


def column(kind: DataType, values: list[Any]) -> pa.Array:
    """Values as a column that is a slice, with a row before and behind."""
    return pa.array([None, *values, None], arrow_type(kind)).slice(1, len(values))


def values_of(kind: DataType, *, nulls: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type, as pyarrow takes them.

    Args:
        nulls: elements, values of maps and fields may be null where the type allows it.
    """
    if isinstance(kind, StructType):
        parts = {field.name: _part(field.dataType, nulls=nulls, allowed=field.nullable) for field in kind.fields}
        return st.fixed_dictionaries(parts)
    if isinstance(kind, ArrayType):
        return st.lists(_part(kind.elementType, nulls=nulls, allowed=kind.containsNull), max_size=4)
    if isinstance(kind, MapType):
        keys = values_of(kind.keyType)
        entries = _part(kind.valueType, nulls=nulls, allowed=kind.valueContainsNull)
        return st.dictionaries(keys, entries, max_size=4).map(lambda found: list(found.items()))
    return _scalar(kind)


def _part(kind: DataType, *, nulls: bool, allowed: bool) -> st.SearchStrategy[Any]:
    found = values_of(kind, nulls=nulls)
    return st.none() | found if nulls and allowed else found


def _scalar(kind: DataType) -> st.SearchStrategy[Any]:
    bits = NUMBERS.get(type(kind))
    if bits is not None:
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.integers(-2, 2)
    if isinstance(kind, DecimalType):
        bound, scale = 10**kind.precision - 1, kind.scale
        return st.integers(-bound, bound).map(lambda number: Decimal(number).scaleb(-scale, Context(prec=60)))
    simple: dict[type[DataType], st.SearchStrategy[Any]] = {
        BooleanType: st.booleans(),
        FloatType: st.floats(width=32, allow_nan=False),
        DoubleType: st.floats(allow_nan=False),
        StringType: TEXTS,
        BinaryType: st.binary(max_size=200),
        DateType: st.dates(),
        TimestampType: st.datetimes(timezones=st.just(dt.timezone.utc)),
    }
    return simple[type(kind)]
