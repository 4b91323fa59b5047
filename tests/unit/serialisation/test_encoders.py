"""The Avro and Protobuf encoders against fastavro and Google's runtime: the same bytes for any type and any values."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Context, Decimal
from functools import cache
from inspect import signature
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from spark_2pc_sink.serialisation.avro_schema import avro_encoder, derived_schema
from spark_2pc_sink.serialisation.protobuf_schema import compiled_message, derived_text, protobuf_encoder
from spark_2pc_sink.wire.arrow_layout import joined_rows

NUMBERS: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def scalars() -> st.SearchStrategy[t.DataType]:
    plain: list[type[t.DataType]] = [
        t.BooleanType,
        t.FloatType,
        t.DoubleType,
        t.StringType,
        t.BinaryType,
        t.DateType,
        t.TimestampType,
        *NUMBERS,
    ]
    decimals = st.integers(1, 38).flatmap(
        lambda precision: st.integers(0, precision).map(lambda scale: t.DecimalType(precision, scale))
    )
    return st.one_of(st.sampled_from(plain).map(lambda kind: kind()), decimals)


def structs(inner: st.SearchStrategy[t.DataType], *, nullable: bool = True) -> st.SearchStrategy[t.StructType]:
    """Structs with some fields of the types ``inner``."""
    fields = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=4)
    return fields.map(
        lambda found: t.StructType(
            [t.StructField(f"f{number}", kind, null or nullable) for number, (kind, null) in enumerate(found)]
        )
    )


def arrow_type(kind: t.DataType) -> Any:
    """As Spark hands it to tasks."""
    return to_arrow_type(kind, **_IN_UTC)


def column(kind: t.DataType, values: list[Any]) -> pa.Array:
    """Values as a column that is a slice, with a row before and behind."""
    return pa.array([None, *values, None], arrow_type(kind)).slice(1, len(values))


def values_of(kind: t.DataType, *, nulls: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type, as pyarrow takes them.

    Args:
        nulls: elements, values of maps and fields may be null where the type allows it.
    """
    if isinstance(kind, t.StructType):
        parts = {field.name: _part(field.dataType, nulls=nulls, allowed=field.nullable) for field in kind.fields}
        return st.fixed_dictionaries(parts)
    if isinstance(kind, t.ArrayType):
        return st.lists(_part(kind.elementType, nulls=nulls, allowed=kind.containsNull), max_size=4)
    if isinstance(kind, t.MapType):
        keys = values_of(kind.keyType)
        entries = _part(kind.valueType, nulls=nulls, allowed=kind.valueContainsNull)
        return st.dictionaries(keys, entries, max_size=4).map(lambda found: list(found.items()))
    return _scalar(kind)


def _part(kind: t.DataType, *, nulls: bool, allowed: bool) -> st.SearchStrategy[Any]:
    found = values_of(kind, nulls=nulls)
    return st.none() | found if nulls and allowed else found


def _scalar(kind: t.DataType) -> st.SearchStrategy[Any]:
    bits = NUMBERS.get(type(kind))
    if bits is not None:
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.integers(-2, 2)
    if isinstance(kind, t.DecimalType):
        bound, scale = 10**kind.precision - 1, kind.scale
        return st.integers(-bound, bound).map(lambda number: Decimal(number).scaleb(-scale, Context(prec=60)))
    simple: dict[type[t.DataType], st.SearchStrategy[Any]] = {
        t.BooleanType: st.booleans(),
        t.FloatType: st.floats(width=32, allow_nan=False),
        t.DoubleType: st.floats(allow_nan=False),
        t.StringType: TEXTS,
        t.BinaryType: st.binary(max_size=200),
        t.DateType: st.dates(),
        t.TimestampType: st.datetimes(timezones=st.just(dt.timezone.utc)),
    }
    return simple[type(kind)]


def types() -> st.SearchStrategy[t.StructType]:
    def nested(inner: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.DataType]:
        arrays = st.tuples(inner, st.booleans()).map(lambda found: t.ArrayType(*found))
        maps = st.tuples(inner, st.booleans()).map(lambda found: t.MapType(t.StringType(), *found))
        return st.one_of(arrays, maps, structs(inner, nullable=False))

    return structs(st.recursive(scalars(), nested, max_leaves=4), nullable=False)


def encoded(kind: t.DataType, values: list[Any]) -> list[bytes]:
    found = column(kind, values)
    encoder = avro_encoder(kind, derived_schema(kind, "shop.Order"))
    written: list[bytes] = joined_rows(encoder.pieces(found), len(found)).to_pylist()
    return written


def by_fastavro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def with_maps(kind: t.DataType, value: Any) -> Any:
    """As fastavro takes it: maps as dictionaries, in the order of the bytes of their keys."""
    if value is None:
        return None
    if isinstance(kind, t.StructType):
        return {field.name: with_maps(field.dataType, value[field.name]) for field in kind.fields}
    if isinstance(kind, t.ArrayType):
        return [with_maps(kind.elementType, each) for each in value]
    if isinstance(kind, t.MapType):
        return {key: with_maps(kind.valueType, each) for key, each in sorted(value, key=lambda item: item[0].encode())}
    return value


def has_least(value: Any) -> bool:
    """A decimal is -128, -32768, …: fastavro writes one byte more than it has to, and than Java does."""
    if isinstance(value, dict):
        return any(map(has_least, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_least, value))
    if not isinstance(value, Decimal):
        return False
    unscaled = int(value.scaleb(-int(value.as_tuple().exponent)))
    return unscaled < 0 and unscaled in (-(2 ** (8 * size - 1)) for size in range(1, 17))


@given(types().flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values_of(kind), max_size=5))))
def test_bytes_are_those_of_fastavro(case: tuple[t.StructType, list[Any]]) -> None:
    kind, rows = case
    schema = derived_schema(kind, "shop.Order")
    for row, found in zip(rows, encoded(kind, rows), strict=True):
        given_row = with_maps(kind, row)
        if not has_least(row):
            assert found == by_fastavro(schema, given_row)
        assert fastavro.schemaless_reader(io.BytesIO(found), schema) == fastavro.schemaless_reader(
            io.BytesIO(by_fastavro(schema, given_row)), schema
        )


@pytest.mark.parametrize("unscaled", [0, 127, 128, -128, -129, 1 - 10**38])
def test_decimals_are_as_short_as_java_makes_them(unscaled: int) -> None:
    """``BigInteger.toByteArray``: the minimum number of bytes that has at least one sign bit."""
    kind = t.StructType().add("f", t.DecimalType(38, 0), nullable=False)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    written = bytes([2 * size]) + unscaled.to_bytes(size, "big", signed=True)
    assert encoded(kind, [{"f": Decimal(unscaled)}]) == [written]


def test_entries_of_a_map_have_one_order() -> None:
    """A batch that is replayed must become the same bytes, in whatever order Spark puts a map."""
    kind = t.StructType().add("m", t.MapType(t.StringType(), t.LongType()))
    one, other = [("b", 1), ("a", 2), ("ä", 3)], [("ä", 3), ("a", 2), ("b", 1)]
    first, second = encoded(kind, [{"m": one}, {"m": other}])
    assert first == second


def test_large_columns_are_taken_too() -> None:
    """With spark.sql.execution.arrow.useLargeVarTypes."""
    kind = t.StructType().add("s", t.StringType())
    rows = pa.array([{"s": "ä"}], pa.struct([("s", pa.large_string())]))
    encoder = avro_encoder(kind, derived_schema(kind, "V"))
    assert joined_rows(encoder.pieces(rows), 1).to_pylist() == [b"\x02\x04\xc3\xa4"]


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


PLACE = t.StructType().add("street", t.StringType()).add("number", t.IntegerType()).add("at", t.TimestampType())
ELEMENTS: dict[str, t.DataType] = {
    "n8": t.LongType(),
    "n4": t.IntegerType(),
    "n1": t.ByteType(),
    "text": t.StringType(),
    "bytes": t.BinaryType(),
    "double": t.DoubleType(),
    "float": t.FloatType(),
    "yes": t.BooleanType(),
    "cents": t.DecimalType(38, 2),
    "tiny": t.DecimalType(20, 20),
    "at": t.TimestampType(),
    "day": t.DateType(),
    "place": PLACE,
    "deep": t.StructType()
    .add("places", t.ArrayType(PLACE, containsNull=False), nullable=False)
    .add("no", t.LongType()),
}
KEYS: dict[str, t.DataType] = {
    "text": t.StringType(),
    "n8": t.LongType(),
    "n4": t.IntegerType(),
    "yes": t.BooleanType(),
}


def struct(parts: dict[str, t.DataType]) -> t.StructType:
    kind = t.StructType()
    for name, part in parts.items():
        kind.add(name, part)
    return kind


SINGLE = struct(ELEMENTS)
REPEATED = struct({name: t.ArrayType(kind, containsNull=False) for name, kind in ELEMENTS.items()})
MAP_VALUES = ("n8", "n1", "text", "cents", "at", "day", "deep")
MAPS = struct(
    {
        f"{key}_{value}": t.MapType(KEYS[key], ELEMENTS[value], valueContainsNull=False)
        for key, value in [*((key, "double") for key in KEYS), *(("text", value) for value in MAP_VALUES)]
    }
)


@cache
def compiled(text: str) -> Any:
    """The compiler is a process of its own: many examples have the same text."""
    return compiled_message(text)


def rows_of(kind: t.StructType) -> st.SearchStrategy[dict[str, Any]]:
    """Rows whose arrays and maps are there: Protobuf has no null for them."""
    parts = {}
    for field in kind.fields:
        values = values_of(field.dataType)
        parts[field.name] = values if isinstance(field.dataType, (t.ArrayType, t.MapType)) else st.none() | values
    return st.fixed_dictionaries(parts)


def as_given(kind: t.DataType, value: Any) -> Any:
    """As Google's runtime takes it."""
    if isinstance(kind, t.StructType):
        parts = {field.name: (field.dataType, value[field.name]) for field in kind.fields}
        return {name: as_given(of, part) for name, (of, part) in parts.items() if part is not None}
    if isinstance(kind, t.ArrayType):
        return [as_given(kind.elementType, each) for each in value]
    if isinstance(kind, t.MapType):
        return {key: as_given(kind.valueType, each) for key, each in value}
    if isinstance(kind, t.TimestampType):
        seconds, microseconds = divmod((value - EPOCH) // dt.timedelta(microseconds=1), 1_000_000)
        return {"seconds": seconds, "nanos": microseconds * 1_000}
    if isinstance(kind, t.DateType):
        return {"year": value.year, "month": value.month, "day": value.day}
    return format(value, "f") if isinstance(kind, t.DecimalType) else value


@pytest.mark.parametrize("kind", [SINGLE, REPEATED, MAPS], ids=["single", "repeated", "maps"])
@given(data=st.data())
def test_bytes_are_those_of_the_runtime(kind: t.StructType, data: st.DataObject) -> None:
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


def test_entries_of_a_map_of_protobuf_have_one_order() -> None:
    """A batch that is replayed must become the same bytes, in whatever order Spark puts a map."""
    kind = t.StructType().add("m", t.MapType(t.StringType(), t.LongType()))
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
    kind = t.StructType().add("f0", "long").add("f1", "string").add("f2", "double")
    kind = kind.add("f3", "binary").add("f4", "boolean")
    message = compiled(IMPLICIT)
    found = protobuf_encoder(kind, message).body(column(kind, rows)).to_pylist()
    assert found == [GetMessageClass(message)(**row).SerializeToString(deterministic=True) for row in rows]


#: PySpark 4.0 knows no other zone.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
