"""Records on their way into the database: values with a schema, and the texts that PostgreSQL reads."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf.message_factory import GetMessageClass

from spark_2pc_sink.errors import SchemaRegistryError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.serialisation.protobuf_schema import compiled_message
from spark_2pc_sink.verification.report import NotComparableError
from spark_2pc_sink.verification.staging import RecordTexts, spelled_in, without_nul
from spark_2pc_sink.verification.target import MARK, RecordSources, Target
from spark_2pc_sink.verification.values import ValueReader, unchanged, value_reader

OPTIONS = SchemaRegistryOptions.parse({"url": "mock://values"})
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "V",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "raw", "type": "bytes"},
        {"name": "rates", "type": {"type": "array", "items": "double"}},
        {"name": "named", "type": {"type": "map", "values": ["null", "string"]}},
    ],
}
ROW = {
    "id": 2**62,
    "price": Decimal("123456789012345678901234567890.10"),
    "at": dt.datetime(2026, 11, 24, 12, tzinfo=dt.timezone.utc),
    "day": dt.date(2026, 11, 24),
    "raw": b"\xff",
    "rates": [1.5, float("inf"), float("-inf"), float("nan")],
    "named": {'a"': None, "b": "ä"},
}
JSON = (
    '{"id": 4611686018427387904, "price": 123456789012345678901234567890.10, "at": "2026-11-24T12:00:00.000000Z", '
    '"day": "2026-11-24", "raw": "/w==", "rates": [1.5, "Infinity", "-Infinity", "NaN"], '
    '"named": {"a\\"": null, "b": "ä"}}'
)
PROTO = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";
message Other { int64 id = 1; }
message Value {
  message Place { optional string street = 1; }
  optional int64 id = 1;
  int32 zero = 2;
  repeated string tags = 3;
  map<bool, int64> stock = 4;
  optional Place place = 5;
  optional google.protobuf.Timestamp at = 6;
  optional google.type.Date day = 7;
  optional string absent = 8;
}
"""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SchemaRegistryClient:
    client = SchemaRegistryClient.new_client({"url": "mock://values"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _: client)
    return client


def reader(value_format: Literal["json", "avro", "protobuf"], topic: str | None = "orders") -> ValueReader:
    return value_reader(SinkLayout(table="t", topic=topic, value_format=value_format), OPTIONS)


def avro(schema_id: int, row: dict[str, Any]) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, schema_id))
    out.seek(5)
    fastavro.schemaless_writer(out, AVRO, row)
    return out.getvalue()


def test_avro_becomes_json(memory: SchemaRegistryClient) -> None:
    """Numbers with all their digits, moments with all parts of their seconds."""
    schema_id = memory.register_schema("orders-value", Schema(json.dumps(AVRO), "AVRO"))
    assert (reader("avro")("orders", avro(schema_id, ROW)) or b"").decode() == JSON
    assert reader("avro", topic=None)("any", avro(schema_id, ROW)) == JSON.encode()


def test_protobuf_becomes_json(memory: SchemaRegistryClient) -> None:
    """Fields without a value are left out, as to_json leaves nulls out; empty arrays are there."""
    schema_id = memory.register_schema("orders-value", Schema(PROTO, "PROTOBUF"))
    message: Any = GetMessageClass(compiled_message(PROTO, "Value"))()
    message.id = 5
    message.stock[True] = 1
    message.place.SetInParent()
    message.at.FromDatetime(dt.datetime(1969, 12, 31, 23, 59, 59, 999_999))  # noqa: DTZ001 - as the library takes it
    message.day.year, message.day.month, message.day.day = 2026, 11, 24
    value = struct.pack(">bI", 0, schema_id) + b"\x02\x02" + message.SerializeToString()
    assert json.loads(reader("protobuf")("orders", value) or b"") == {
        "id": 5,
        "zero": 0,
        "tags": [],
        "stock": {"true": 1},
        "place": {},
        "at": "1969-12-31T23:59:59.999999Z",
        "day": "2026-11-24",
    }


@pytest.mark.parametrize("value_format", ["avro", "protobuf"])
def test_what_is_not_of_the_format_stays(
    memory: SchemaRegistryClient, value_format: Literal["avro", "protobuf"]
) -> None:
    """A record that someone else has written is named as one that is no row."""
    text = json.dumps(AVRO) if value_format == "avro" else "syntax = 'proto3'; message V { string id = 1; }"
    memory.register_schema("orders-value", Schema(text, value_format.upper()))
    read = reader(value_format)
    # The last two name a message that the schema lacks, and more indexes than there are bytes.
    bodies = (b"\x00\xff\xff", b"\x02\x08", b"\xfe\xff\xff\xff\x0f\x04")
    for value in (None, b"", b'{"id": 1}', b"\x00\x00\x00\x00", *(b"\x00\x00\x00\x00\x01" + each for each in bodies)):
        assert (read("orders", value), read("another", value)) == (value, value)


@pytest.mark.usefixtures("memory")
def test_a_schema_that_the_registry_lacks_is_named() -> None:
    with pytest.raises(SchemaRegistryError, match="mock://values failed at reading schema 77"):
        reader("avro")("orders", b"\x00\x00\x00\x00\x4d\x02")


def test_without_formats_values_are_json() -> None:
    assert value_reader(None, OPTIONS) is unchanged
    assert value_reader(SinkLayout(table="t"), OPTIONS) is unchanged
    layout = SinkLayout(lanes=(SinkLayout(topic="a", value_format="avro"), SinkLayout(topic="b")))
    with pytest.raises(NotComparableError, match="values are avro, and their schemas are unknown"):
        value_reader(layout, None)


@dataclass
class Sent:
    """A record as librdkafka hands it over."""

    content: bytes | None
    of: bytes | None = b"k"
    named: list[tuple[str, bytes | None]] = field(default_factory=list)

    def key(self) -> bytes | None:
        return self.of

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.named or None

    def offset(self) -> int:
        return 9


def made(sent: Any, *expressions: str, **how: Any) -> Any:
    return json.loads(RecordTexts(expressions, **how).make(TopicPartition("t", 3), sent))


def test_a_record_without_a_value_is_a_tombstone_where_the_last_of_a_key_counts() -> None:
    gone = Sent(None, b"7")
    known = Target(mode="upsert", keys=("id",))
    target = replace(known, sources=RecordSources(SinkLayout(key="upper(id)")))
    assert made(gone, tombstone=known.tombstone) == {"id": "7", MARK: True}
    # An empty value is a value.
    assert made(Sent(b"", b"7"), tombstone=known.tombstone) is None
    assert made(gone, "value", "key", tombstone=target.tombstone) == {"key": "7", "value": None, MARK: True}
    with pytest.raises(NotComparableError, match="does not contain id"):
        made(gone, tombstone=target.tombstone)


def test_expressions_see_those_parts_of_a_record_that_they_name() -> None:
    sent = Sent(b'{"id": 1}', b"k\xff", [("h", b"v"), ("n", None)])
    told = made(sent, "(value->>'id')::int", 'key || "offset"', "headers->0")
    assert told == {"value": {"id": 1}, "key": "k\ufffd", "headers": [["h", "v"], ["n", None]], "offset": 9}
    told = made(Sent(b"not JSON", b"\x01\xff"), "key_bytes", "topic", "value_text || value_bytes", "partition")
    as_text = {"value_text": "not JSON", "value_bytes": f"\\x{b'not JSON'.hex()}"}
    assert told == {"key_bytes": "\\x01ff", "topic": "t", "partition": 3, **as_text}
    assert made(Sent(b"[1]", None), "value->'a'") == {"value": [1]}


def test_a_nul_is_read_as_a_substitute_and_what_only_looks_like_one_is_not() -> None:
    assert without_nul(rb'["a\u0000\u0000", "\\u0000", "\\\u0000"]') == rb'["a\u001a\u001a", "\\u0000", "\\\u001a"]'
    assert without_nul(rb'["\u0001"]') == rb'["\u0001"]'


def test_what_an_encoding_lacks_stands_as_its_code_point() -> None:
    """So texts that differ go on to differ, and none is like a text of the table."""
    texts = [text.encode() for text in ('{"a": "ü€?"}', '{"a": "ü₫€₫"}', '{"a": "ü"}')]
    spelled = [json.loads(spelled_in(text, "iso8859_1"))["a"] for text in texts]
    assert spelled == ["ü\x1aU+20AC\x1a?", "ü\x1aU+20AB\x1a\x1aU+20AC\x1a\x1aU+20AB\x1a", "ü"]
    assert [spelled_in(text, "utf_8") for text in texts] == texts
