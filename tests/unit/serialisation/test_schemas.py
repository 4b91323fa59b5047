"""Schemas of types: what a format has no place for is refused by the field's path, with a way out."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, DataType, DecimalType, LongType, StringType, StructType

from spark_2pc_sink.serialisation.avro_schema import avro_encoder, derived_schema, parsed_schema
from spark_2pc_sink.serialisation.columns import NoSchemaError
from spark_2pc_sink.serialisation.protobuf_schema import compiled_message, derived_text, message_indexes
from tests.unit.serialisation.types import column

ORDER = (
    StructType()
    .add("id", LongType(), nullable=False)
    .add("price", DecimalType(10, 2))
    .add("lines", ArrayType(StructType().add("sku", StringType())))
)


def struct(name: str, kind: DataType) -> StructType:
    return StructType().add(name, kind)


def record(kind: Any, **more: Any) -> Any:
    """A given schema with one field."""
    text = {"type": "record", "name": "V", "fields": [{"name": "f", "type": kind, **more}]}
    return parsed_schema(json.dumps(text))


def test_the_avro_schema_of_a_type() -> None:
    """Records inside have the name of the outer one as their namespace."""
    line = {"type": "record", "name": "lines", "namespace": "shop.Order"}
    sku = {"name": "sku", "type": ["null", "string"], "default": None}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    lines = {"type": "array", "items": ["null", {**line, "fields": [sku]}]}
    assert derived_schema(ORDER, "shop.Order") == {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "price", "type": ["null", price], "default": None},
            {"name": "lines", "type": ["null", lines], "default": None},
        ],
    }


def test_the_protobuf_schema_of_a_type() -> None:
    """A message has another name than all fields beside it."""
    kind = StructType([*ORDER.fields]).add("Lines", StringType())
    assert derived_text(kind, "shop.Order").splitlines() == [
        'syntax = "proto3";',
        "package shop;",
        "message Order {",
        "  message Lines_ {",
        "    optional string sku = 1;",
        "  }",
        "  optional int64 id = 1;",
        "  optional string price = 2;",
        "  repeated Lines_ lines = 3;",
        "  optional string Lines = 4;",
        "}",
    ]


def test_a_field_that_may_be_null_may_be_left_out() -> None:
    """Those that may be null are left out by the value."""
    kind = struct("g", LongType())
    both = parsed_schema(
        '{"type": "record", "name": "V", "fields": '
        '[{"name": "f", "type": ["string", "null"]}, {"name": "g", "type": "long"}]}'
    )
    pieces = avro_encoder(kind, both).pieces(column(kind, [{"g": 1}]))
    assert pieces[0] == b"\x02"


@pytest.mark.parametrize("text", ["{", '{"type": "nothing"}'])
def test_a_text_that_is_no_avro_schema(text: str) -> None:
    with pytest.raises(NoSchemaError, match="not an Avro schema"):
        parsed_schema(text)


def test_a_text_that_is_no_protobuf_schema() -> None:
    with pytest.raises(NoSchemaError, match=r"schema.proto:1:1: .*"):
        compiled_message("massage V {}")
    with pytest.raises(NoSchemaError, match="has no message"):
        compiled_message('syntax = "proto3";')


GIVEN = """syntax = "proto3"; package shop;
message Line { optional string sku = 1; }
message Order {
  oneof it { string a = 1; string b = 2; }
  int64 id = 3; repeated int64 many = 4; map<string, int64> named = 5; Line line = 6; sint64 odd = 7;
}
"""


@cache
def given_order() -> Any:
    """The compiler is a process of its own."""
    return compiled_message(GIVEN, "shop.Order")


def test_a_message_of_several_is_named() -> None:
    message = given_order()
    assert message_indexes(message) == (1,)
    assert message_indexes(compiled_message(GIVEN)) == (0,)
    with pytest.raises(NoSchemaError, match=r"no message 'Order', but shop\.Line, shop\.Order"):
        compiled_message(GIVEN, "Order")
