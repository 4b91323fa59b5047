"""The binding of types to schemas, with the registry in memory that confluent-kafka has for tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.serialisation.binding import Registry, SchemaRequest, bind
from spark_2pc_sink.serialisation.columns import NotEncodableError
from spark_2pc_sink.serialisation.serialiser import header

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
    assert serialiser.header == header(found.schema_id or 0, (0,) if request_.format == "protobuf" else None)
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
