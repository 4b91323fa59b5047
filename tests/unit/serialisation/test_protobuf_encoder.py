"""The Protobuf encoder against Google's runtime: the same bytes for any type and any values."""

from __future__ import annotations

import datetime as dt
from functools import cache
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
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
    StringType,
    StructType,
    TimestampType,
)

from spark_2pc_sink.serialisation.protobuf_schema import compiled_message, derived_text, protobuf_encoder
from tests.unit.serialisation.types import column, values_of

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
IMPLICIT = """syntax = "proto3";
message Value {
  int64 f0 = 1;
  string f1 = 3;
  double f2 = 2;
  bytes f3 = 4;
  bool f4 = 5;
}
"""


PLACE = StructType().add("street", StringType()).add("number", IntegerType()).add("at", TimestampType())
ELEMENTS: dict[str, DataType] = {
    "n8": LongType(),
    "n4": IntegerType(),
    "n1": ByteType(),
    "text": StringType(),
    "bytes": BinaryType(),
    "double": DoubleType(),
    "float": FloatType(),
    "yes": BooleanType(),
    "cents": DecimalType(38, 2),
    "tiny": DecimalType(20, 20),
    "at": TimestampType(),
    "day": DateType(),
    "place": PLACE,
    "deep": StructType().add("places", ArrayType(PLACE, containsNull=False), nullable=False).add("no", LongType()),
}
KEYS: dict[str, DataType] = {"text": StringType(), "n8": LongType(), "n4": IntegerType(), "yes": BooleanType()}


def struct(parts: dict[str, DataType]) -> StructType:
    kind = StructType()
    for name, part in parts.items():
        kind.add(name, part)
    return kind


SINGLE = struct(ELEMENTS)
REPEATED = struct({name: ArrayType(kind, containsNull=False) for name, kind in ELEMENTS.items()})
MAP_VALUES = ("n8", "n1", "text", "cents", "at", "day", "deep")
MAPS = struct(
    {
        f"{key}_{value}": MapType(KEYS[key], ELEMENTS[value], valueContainsNull=False)
        for key, value in [*((key, "double") for key in KEYS), *(("text", value) for value in MAP_VALUES)]
    }
)


@cache
def compiled(text: str) -> Any:
    """The compiler is a process of its own: many examples have the same text."""
    return compiled_message(text)


def rows_of(kind: StructType) -> st.SearchStrategy[dict[str, Any]]:
    """Rows whose arrays and maps are there: Protobuf has no null for them."""
    parts = {}
    for field in kind.fields:
        values = values_of(field.dataType)
        parts[field.name] = values if isinstance(field.dataType, (ArrayType, MapType)) else st.none() | values
    return st.fixed_dictionaries(parts)


def as_given(kind: DataType, value: Any) -> Any:
    """As Google's runtime takes it."""
    if isinstance(kind, StructType):
        parts = {field.name: (field.dataType, value[field.name]) for field in kind.fields}
        return {name: as_given(of, part) for name, (of, part) in parts.items() if part is not None}
    if isinstance(kind, ArrayType):
        return [as_given(kind.elementType, each) for each in value]
    if isinstance(kind, MapType):
        return {key: as_given(kind.valueType, each) for key, each in value}
    if isinstance(kind, TimestampType):
        seconds, microseconds = divmod((value - EPOCH) // dt.timedelta(microseconds=1), 1_000_000)
        return {"seconds": seconds, "nanos": microseconds * 1_000}
    if isinstance(kind, DateType):
        return {"year": value.year, "month": value.month, "day": value.day}
    return format(value, "f") if isinstance(kind, DecimalType) else value


@pytest.mark.parametrize("kind", [SINGLE, REPEATED, MAPS], ids=["single", "repeated", "maps"])
@given(data=st.data())
def test_bytes_are_those_of_the_runtime(kind: StructType, data: st.DataObject) -> None:
    """Of maps the entries have an order of their own, which Protobuf leaves open: these are read back."""
    rows = data.draw(st.lists(rows_of(kind), min_size=1, max_size=3))
    message = compiled(derived_text(kind, "shop.Order"))
    found = protobuf_encoder(kind, message).body(column(kind, rows)).to_pylist()
    of = GetMessageClass(message)
    made = [of(**as_given(kind, row)) for row in rows]
    assert list(map(of.FromString, found)) == made
    assert list(map(len, found)) == [len(each.SerializeToString()) for each in made]
    if kind is not MAPS:
        assert found == [each.SerializeToString(deterministic=True) for each in made]


def test_entries_of_a_map_have_one_order() -> None:
    """A batch that is replayed must become the same bytes, in whatever order Spark puts a map."""
    kind = StructType().add("m", MapType(StringType(), LongType()))
    rows = [{"m": [("b", 1), ("a", 2)]}, {"m": [("a", 2), ("b", 1)]}]
    first, second = protobuf_encoder(kind, compiled(derived_text(kind, "V"))).body(column(kind, rows)).to_pylist()
    assert first == second


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "f0": st.integers(-2, 2),
                "f1": st.text("a", max_size=1),
                "f2": st.sampled_from([0.0, -0.0, 1.5]),
                "f3": st.binary(max_size=1),
                "f4": st.booleans(),
            }
        ),
        max_size=4,
    )
)
def test_a_field_without_presence_leaves_its_default_out(rows: list[dict[str, Any]]) -> None:
    """Fields of a schema of the user's own, in the order of their numbers."""
    kind = StructType().add("f0", "long").add("f1", "string").add("f2", "double")
    kind = kind.add("f3", "binary").add("f4", "boolean")
    message = compiled(IMPLICIT)
    found = protobuf_encoder(kind, message).body(column(kind, rows)).to_pylist()
    assert found == [GetMessageClass(message)(**row).SerializeToString(deterministic=True) for row in rows]
