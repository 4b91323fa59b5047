"""Records in Avro and Protobuf: what a consumer with Confluent's own deserializers gets is what the table holds."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession, types as t

from spark_2pc_sink.errors import ConfigurationError, SchemaRegistryError, UnstorableValueError
from spark_2pc_sink.serialisation.protobuf_schema import compiled_message
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.helper_servers import SchemaRegistryServer
from tests.harness.remedies import option_in
from tests.harness.streams import FileStream
from tests.integration.sink.targets import Target

SCHEMA = (
    t.StructType()
    .add("id", t.LongType())
    .add("name", t.StringType())
    .add("price", t.DecimalType(12, 2))
    .add("at", t.TimestampType())
    .add("day", t.DateType())
    .add("tags", t.ArrayType(t.StringType(), containsNull=False))
    .add("stock", t.MapType(t.StringType(), t.LongType(), valueContainsNull=False))
    .add("place", t.StructType().add("street", t.StringType()).add("number", t.LongType()))
)
NOON = dt.datetime(2026, 11, 24, 12, 0, 0, 123_456, tzinfo=dt.timezone.utc)
DAY = dt.date(2026, 11, 24)
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "name": None if number % 7 == 0 else f"n-{number}-żółw",
        "price": Decimal(number * 17 - 300).scaleb(-2),
        "at": NOON + dt.timedelta(microseconds=number),
        "day": DAY + dt.timedelta(days=number),
        "tags": [f"t{each}" for each in range(number % 4)],
        "stock": {f"s{each}": each for each in range(number % 3)},
        "place": None if number % 5 == 0 else {"street": f"street {number}", "number": number},
    }
    for number in range(200)
]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> FileStream:
    stream = FileStream(spark, tmp_path, SCHEMA)
    stream.add([tuple(row.values()) for row in ROWS], partitions=2)
    return stream


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_protobuf_is_read_by_confluents_deserializer(
    stream: FileStream, target: Target, schema_registry: SchemaRegistryServer
) -> None:
    registry = {"url": schema_registry.url}
    protobuf = {"value_format": "protobuf", "value_schema_name": "shop.Order"}
    stream.run(target.sink(key="id", schema_registry=registry, **protobuf))
    client = SchemaRegistryClient(registry)
    text = client.get_latest_version(f"{target.topic}-value").schema.schema_str
    assert text is not None
    # Confluent's deserializer takes a class that was compiled before.
    message = GetMessageClass(compiled_message(text))
    read = ProtobufDeserializer(message, {"use.deprecated.format": False})
    context = SerializationContext(target.topic, MessageField.VALUE)
    found = [MessageToDict(read(record.value, context)) for record in target.records()]
    first = next(record for record in found if record["id"] == "1")
    assert first == {
        "id": "1",
        "name": "n-1-żółw",
        "price": "-2.83",
        "at": "2026-11-24T12:00:00.123457Z",
        "day": {"year": 2026, "month": 11, "day": 25},
        "tags": ["t0"],
        "stock": {"s0": "0"},
        "place": {"street": "street 1", "number": "1"},
    }
    assert len(found) == len(ROWS)


@pytest.mark.thorough
@pytest.mark.timeout(180)
@pytest.mark.parametrize("value_format", ["avro", "protobuf"])
def test_verify_reads_them(
    stream: FileStream, target: Target, schema_registry: SchemaRegistryServer, value_format: str
) -> None:
    """Both sides are the same; a row that someone changes differs, and is named; without a registry nothing is said."""
    registry = {"url": schema_registry.url}
    stream.run(target.sink(value_format=value_format, schema_registry=registry, key="id"))
    report = target.verify(schema_registry=registry)
    assert (report.verdict, report.rows) == ("same", len(ROWS)), str(report)
    assert set(report.columns) == set(SCHEMA.fieldNames())
    target.execute("UPDATE target SET at = at + interval '1 microsecond' WHERE id = 7")
    changed = target.verify(schema_registry=registry)
    assert changed.verdict == "different"
    assert changed.counts == {"missing_in_table": 1, "missing_in_kafka": 1}, str(changed)
    without = target.verify()
    assert without.verdict == "inconclusive"
    assert "fix: pass --schema-registry URL" in str(without)


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_what_the_registry_refuses_is_refused_before_anything_is_written(
    stream: FileStream, target: Target, schema_registry: SchemaRegistryServer
) -> None:
    client = SchemaRegistryClient({"url": schema_registry.url})
    other = '{"type": "record", "name": "Value", "fields": [{"name": "id", "type": "string"}]}'
    client.register_schema(f"{target.topic}-value", Schema(other, "AVRO"))
    client.set_compatibility(f"{target.topic}-value", "BACKWARD")
    with pytest.raises(ConfigurationError, match="refuses it"):
        stream.run(target.sink(value_format="avro", schema_registry={"url": schema_registry.url}))
    assert target.records() == []
    latest = {"url": schema_registry.url, "use.latest.version": True}
    said = "value_format='avro': field 'id': the batch has bigint, the schema has string"
    with pytest.raises(ConfigurationError, match=said):
        stream.run(target.sink(value_format="avro", schema_registry=latest))
    # The registry's newest schema, with an expression that fits it.
    stream.run(target.sink(value_format="avro", schema_registry=latest, value="struct(string(id) AS id)"))
    assert len(target.records()) == len(ROWS)


def test_a_registry_that_is_away_is_named_before_anything_is_written(stream: FileStream, target: Target) -> None:
    away = {"url": "http://user:secret@127.0.0.1:1", "max.retries": 0}
    with pytest.raises(SchemaRegistryError, match=r"http://127\.0\.0\.1:1 failed at looking") as failed:
        stream.run(target.sink(value_format="avro", schema_registry=away))
    assert "secret" not in str(failed.value)
    assert target.records() == []


def test_tasks_encode_rows_and_name_one_that_has_no_place(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the client's registry in memory, which tasks could not reach: they do not ask."""
    memory = SchemaRegistryClient.new_client({"url": "mock://sink"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _: memory)
    options: dict[str, Any] = {"value_format": "avro", "schema_registry": {"url": "mock://sink"}}
    stream.run(target.sink(**options, key="id", key_format="avro"))
    key, value = (SerializationContext(target.topic, field) for field in (MessageField.KEY, MessageField.VALUE))
    read = AvroDeserializer(memory)
    found = [(read(record.key, key), read(record.value, value)) for record in target.records()]
    assert_same_multiset([repr(one) for one in found], [repr((row["id"], row)) for row in ROWS], what="records")
    required = '{"type": "record", "name": "Value", "fields": [{"name": "name", "type": "string"}]}'
    stream.add([tuple(row.values()) for row in ROWS])
    with pytest.raises(UnstorableValueError, match=r"value\.name.*the schema does not allow null"):
        stream.run(target.sink(**options, value_schema=required, value="struct(name)", key=None, columns={"id": "id"}))
    assert len(target.records()) == len(ROWS)


@pytest.mark.slow
def test_rows_that_the_schema_has_no_place_for_are_dead_letters(stream: FileStream, target: Target) -> None:
    """They are in no topic and no table, and all others are in both."""
    stream.run(
        target.sink(
            value_format="avro",
            value_schema='{"type": "record", "name": "Value", "fields": [{"name": "name", "type": "string"}]}',
            value="struct(name)",
            schema_registry={"url": "mock://sink"},
            bad_rows="dead_letter",
        )
    )
    nameless = [row["id"] for row in ROWS if row["name"] is None]
    letters = target.letters("(row->>'id')::int, reason")
    assert [number for number, _ in letters] == nameless
    assert "the schema does not allow null" in letters[0][1]
    assert len(target.records()) == len(ROWS) - len(nameless)
    assert target.rows("count(*)", "target WHERE name IS NULL") == [(0,)]


#: A format, and a column that it has no type, key or name for.
NOT_IN_A_FORMAT: dict[str, tuple[str, str]] = {
    "calendar interval": ("avro", "make_interval(1, 2, 3) AS f"),
    "variant": ("protobuf", """parse_json('{"a": 1}') AS f"""),
    "void": ("avro", "NULL AS f"),
    "without a zone": ("protobuf", "timestamp_ntz'2026-01-01' AS f"),
    "in a struct": ("avro", "named_struct('a', interval 1 day, 'b', 1) AS f"),
    "in structs of an array": ("protobuf", "array(named_struct('a', interval 1 month)) AS f"),
    "keys of numbers": ("avro", "map(1, 1) AS f"),
    "keys in structs of an array": ("protobuf", "array(named_struct('a', map(date'2026-01-01', 1))) AS f"),
    "keys in a map": ("avro", "map('a', named_struct('b', map(1.5BD, 1))) AS f"),
    "name": ("protobuf", "1 AS `order id`, 2 AS `order-id`, 3 AS `1st`, 4 AS `żółw`"),
    "name in a struct": ("avro", "named_struct('order id', 1, 'order_id', 2) AS f"),
    "array of arrays": ("protobuf", "array(array(1)) AS f"),
    "map of maps in a struct": ("protobuf", "named_struct('g', map('a', map('b', 1))) AS f"),
}


@pytest.mark.parametrize("case", NOT_IN_A_FORMAT)
def test_what_an_error_about_a_schema_prints_mends_it(case: str, target: Target, spark: SparkSession) -> None:
    """C8: pasted as it is printed; a call that makes a struct of a part is put in the place of that part."""
    schema_format, column = NOT_IN_A_FORMAT[case]
    options: dict[str, Any] = {
        "value_format": schema_format,
        "schema_registry": {"url": "mock://remedies"},
        "columns": {"id": "id"},
    }
    batch = spark.sql(f"SELECT 1L AS id, {column}")
    with pytest.raises(ConfigurationError) as refused:
        target.write(batch, **options)
    remedy = refused.value.remedy
    into_struct = re.fullmatch(r"put the inner one into a struct: (.*)", remedy)
    options["value"] = option_in(remedy, "value") if into_struct is None else f"struct(id, {into_struct[1]} AS f)"
    assert options["value"] is not None, remedy
    target.write(batch, **options)
    assert len(target.records()) == 1
    assert target.rows("id") == [(1,)]


def test_what_an_error_about_the_schema_of_a_key_prints_mends_it(target: Target, spark: SparkSession) -> None:
    options: dict[str, Any] = {"key_format": "avro", "schema_registry": {"url": "mock://remedies"}}
    batch = spark.sql("SELECT 1L AS id")
    key = "named_struct('it''s', map(1, id), 'in \"quotes\"', interval 1 day)"
    with pytest.raises(ConfigurationError) as refused:
        target.write(batch, **options, key=key)
    mended = option_in(refused.value.remedy, "key")
    assert mended is not None
    target.write(batch, **options, key=mended)
    assert len(target.records()) == 1
