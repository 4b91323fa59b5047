"""The binding of types to schemas, and schemas of types: what has no place is refused by the field's path."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.sql.types import ArrayType, DataType, DecimalType, IntegerType, LongType, StringType, StructType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.serialisation.avro_schema import avro_encoder, derived_schema, parsed_schema
from spark_2pc_sink.serialisation.binding import Registry, SchemaRequest, bind
from spark_2pc_sink.serialisation.protobuf_schema import compiled_message, derived_text, message_index
from spark_2pc_sink.serialisation.serialiser import NoSchemaError, NotEncodableError, header
from tests.unit.serialisation.test_encoders import column

ORDER = StructType().add("id", LongType()).add("name", StringType())
VALUE = SchemaRequest(
    part="value", format="avro", topic="orders", strategy="topic", expression="struct(*)", schema=None, name=None
)
KEY = replace(VALUE, part="key")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SchemaRegistryClient:
    """The registry of all clients of the test."""
    client = SchemaRegistryClient.new_client({"url": "mock://binding"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _: client)
    return client


def registry(**properties: Any) -> Registry:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    options = SchemaRegistryOptions.parse({"url": "mock://binding", **named})
    assert options is not None
    return Registry(options, "avro")


@pytest.mark.parametrize(
    ("request_", "subject"),
    [
        (KEY, "orders-key"),
        (replace(VALUE, strategy="record", name="shop.Order"), "shop.Order"),
        (replace(VALUE, strategy="record", name="shop.Order", topic=None, format="protobuf"), "shop.Order"),
    ],
    ids=["key", "record", "protobuf"],
)
def test_a_derived_schema_is_registered_in_its_subject(
    memory: SchemaRegistryClient, request_: SchemaRequest, subject: str
) -> None:
    serialiser = bind(request_, ORDER, registry())
    assert memory.get_subjects() == [subject]
    found = memory.get_latest_version(subject)
    assert serialiser.header == header(found.schema_id or 0, 0 if request_.format == "protobuf" else None)
    # Again it is found, not registered.
    assert bind(request_, ORDER, registry(auto_register_schemas=False)).header == serialiser.header


def test_a_key_keeps_its_schema(memory: SchemaRegistryClient) -> None:
    """Its id is a part of the key's bytes, by which Kafka chooses partitions and compacts."""
    first = bind(KEY, LongType(), registry())
    assert bind(KEY, LongType(), registry()).header == first.header
    with pytest.raises(ConfigurationError, match="equal keys would have different bytes"):
        bind(KEY, StringType(), registry())
    assert memory.get_versions("orders-key") == [1]


def test_the_newest_schema_is_used_where_asked(memory: SchemaRegistryClient) -> None:
    with pytest.raises(ConfigurationError, match="no schema in subject 'orders-value'"):
        bind(VALUE, ORDER, registry(use_latest_version=True))
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    wanted = memory.register_schema("orders-value", Schema(json.dumps(schema), "AVRO"))
    found = bind(VALUE, StructType().add("id", LongType()), registry(use_latest_version=True))
    assert found.header == header(wanted)
    with pytest.raises(ConfigurationError, match="the newest schema of subject 'orders-value' is avro"):
        bind(replace(VALUE, format="protobuf"), ORDER, registry(use_latest_version=True))


def test_nothing_is_registered_where_that_is_not_allowed(memory: SchemaRegistryClient) -> None:
    with pytest.raises(ConfigurationError, match=r"auto\.register\.schemas is False"):
        bind(VALUE, ORDER, registry(auto_register_schemas="false"))
    assert memory.get_subjects() == []


@pytest.mark.usefixtures("memory")
def test_a_row_that_cannot_be_encoded_is_named_by_its_number() -> None:
    text = '{"type": "record", "name": "V", "fields": [{"name": "id", "type": "int"}]}'
    kind = StructType().add("id", IntegerType())
    serialiser = bind(replace(VALUE, schema=text), kind, registry())
    rows = pa.array(
        [{"id": number if number != 37 else None} for number in range(100)], pa.struct([("id", pa.int32())])
    )
    with pytest.raises(NotEncodableError) as refused:
        serialiser.encode(rows)
    assert refused.value.row == 37
    good = serialiser.encode(pa.array([{"id": 1}, None], rows.type))
    assert good.to_pylist() == [serialiser.header + b"\x02", None]


GIVEN_ORDER = (
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
    assert derived_schema(GIVEN_ORDER, "shop.Order") == {
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
    kind = StructType([*GIVEN_ORDER.fields]).add("Lines", StringType())
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
    assert message_index(message) == 1
    assert message_index(compiled_message(GIVEN)) == 0
    with pytest.raises(NoSchemaError, match=r"no message 'Order', but shop\.Line, shop\.Order"):
        compiled_message(GIVEN, "Order")
