"""The Avro encoder against fastavro: the same bytes for any type and any values."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DataType, DecimalType, LongType, MapType, StringType, StructType

from spark_2pc_sink.serialisation.avro_schema import avro_encoder, derived_schema
from spark_2pc_sink.wire.row_bytes import joined_rows
from tests.unit.serialisation.types import column, scalars, structs, values_of


def types() -> st.SearchStrategy[StructType]:
    def nested(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
        arrays = st.tuples(inner, st.booleans()).map(lambda found: ArrayType(*found))
        maps = st.tuples(inner, st.booleans()).map(lambda found: MapType(StringType(), *found))
        return st.one_of(arrays, maps, structs(inner, nullable=False))

    return structs(st.recursive(scalars(), nested, max_leaves=4), nullable=False)


def encoded(kind: DataType, values: list[Any]) -> list[bytes]:
    found = column(kind, values)
    encoder = avro_encoder(kind, derived_schema(kind, "shop.Order"))
    written: list[bytes] = joined_rows(encoder.pieces(found), len(found)).to_pylist()
    return written


def by_fastavro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def with_maps(kind: DataType, value: Any) -> Any:
    """As fastavro takes it: maps as dictionaries, in the order of the bytes of their keys."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {field.name: with_maps(field.dataType, value[field.name]) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return [with_maps(kind.elementType, each) for each in value]
    if isinstance(kind, MapType):
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
def test_bytes_are_those_of_fastavro(case: tuple[StructType, list[Any]]) -> None:
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
    kind = StructType().add("f", DecimalType(38, 0), nullable=False)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    written = bytes([2 * size]) + unscaled.to_bytes(size, "big", signed=True)
    assert encoded(kind, [{"f": Decimal(unscaled)}]) == [written]


def test_entries_of_a_map_have_one_order() -> None:
    """A batch that is replayed must become the same bytes, in whatever order Spark puts a map."""
    kind = StructType().add("m", MapType(StringType(), LongType()))
    one, other = [("b", 1), ("a", 2), ("ä", 3)], [("ä", 3), ("a", 2), ("b", 1)]
    first, second = encoded(kind, [{"m": one}, {"m": other}])
    assert first == second


def test_large_columns_are_taken_too() -> None:
    """With spark.sql.execution.arrow.useLargeVarTypes."""
    kind = StructType().add("s", StringType())
    rows = pa.array([{"s": "ä"}], pa.struct([("s", pa.large_string())]))
    encoder = avro_encoder(kind, derived_schema(kind, "V"))
    assert joined_rows(encoder.pieces(rows), 1).to_pylist() == [b"\x02\x04\xc3\xa4"]
