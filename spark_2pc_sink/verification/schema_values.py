"""Values of records that have a schema, as JSON: decoded by the libraries of their formats, with the schema that wrote.

A value that cannot be decoded becomes no JSON object, and is then reported as what it is: a record that is no row.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.verification.report import Refusal
from spark_2pc_sink.verification.writer_schemas import WriterSchemas

#: Makes JSON of the value of a record of a topic.
ValueReader: TypeAlias = Callable[[str, bytes | None], bytes | None]
_HEADER: Final = struct.Struct(">bI")
#: Around a number that JSON is to spell with all its digits; no text of PostgreSQL has this character.
_NUMBER_MARK: Final = "\0number:"
_MARKED: Final = re.compile(rb'"\\u0000number:([^"]*)"')


def formats_of(layout: SinkLayout | None) -> dict[str | None, str]:
    """By topic, the format of its values where that is not JSON; None for topics that rows name."""
    if layout is None:
        return {}
    return {lane.topic: lane.value_format for lane in layout.each if lane.records and lane.value_format != "json"}


def no_registry(formats: Mapping[str | None, str]) -> Refusal:
    """Why records are not compared with the table where no registry is named."""
    found = " and ".join(sorted(set(formats.values())))
    return Refusal(
        f"values are {found}, and their schemas are not known", "pass --schema-registry URL (schema_registry)"
    )


def value_reader(layout: SinkLayout | None, registry: SchemaRegistryOptions | None) -> ValueReader:
    """How values of the sink's records become JSON: as they are, or with the schemas of the registry.

    Args:
        layout: of the sink's newest claim; None where none is known.
        registry: None where none is named; values with a schema are then no JSON.
    """
    formats = formats_of(layout)
    if not formats or registry is None:
        return as_it_is
    return SchemaValues(formats, WriterSchemas(registry))


def as_it_is(topic: str, value: bytes | None) -> bytes | None:
    """The value, which is JSON."""
    del topic
    return value


class SchemaValues:
    """Decodes values with the schemas that they name.

    Args:
        formats: see `formats_of`.
        schemas: finds the schemas.
    """

    def __init__(self, formats: Mapping[str | None, str], schemas: WriterSchemas) -> None:
        self._formats = formats
        self._schemas = schemas

    def __call__(self, topic: str, value: bytes | None) -> bytes | None:
        """The JSON of a value; the value itself where it is none of its topic's format."""
        found = self._formats.get(topic) or self._formats.get(None)
        if found is None or value is None or len(value) < _HEADER.size:
            return value
        magic, schema_id = _HEADER.unpack_from(value)
        if magic != 0:
            return value
        body = value[_HEADER.size :]
        if found == "avro":
            decoded = _avro(self._schemas.avro(schema_id), body)
        else:
            indexes, start = _message_indexes(body)
            decoded = _protobuf(self._schemas.protobuf(schema_id, indexes), body[start:])
        return value if decoded is None else _json(decoded)


def _avro(schema: Any, body: bytes) -> Any:
    import fastavro  # noqa: PLC0415 - found by `WriterSchemas`, which names its extra

    try:
        return fastavro.schemaless_reader(io.BytesIO(body), schema)
    except (EOFError, ValueError, IndexError, OverflowError):
        return None


def _protobuf(message: Any, body: bytes) -> Any:
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - as above

    try:
        return _fields(message.FromString(body))
    except DecodeError:
        return None


def _message_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Where the message is in its file, and where its bytes begin (Confluent, "Wire format")."""
    count, position = _zigzag(body, 0)
    indexes = []
    for _ in range(count):
        index, position = _zigzag(body, position)
        indexes.append(index)
    return tuple(indexes) or (0,), position


def _zigzag(body: bytes, position: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    number = shift = 0
    for byte in body[position:]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - no more bytes follow
            break
    return number >> 1 ^ -(number & 1), position + shift // 7


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a message; one with presence that is not there is left out, as a null of JSON is."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = {_text(key): _plain(value[key]) for key in sorted(value)}
        elif field.is_repeated:
            found[field.name] = [_plain(each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is None:
        return value
    if descriptor.full_name == "google.protobuf.Timestamp":
        return value.ToDatetime(tzinfo=dt.timezone.utc)
    if descriptor.full_name == "google.type.Date":
        return dt.date(value.year, value.month, value.day)
    return _fields(value)


def _text(key: object) -> str:
    """The key of a map as JSON spells it."""
    return str(key).lower() if isinstance(key, bool) else str(key)


def _json(decoded: Any) -> bytes:
    """As Spark's to_json writes it, but for nulls and finer parts of seconds, which are there."""
    text = json.dumps(_spelled(decoded), ensure_ascii=False).encode()
    return _MARKED.sub(rb"\1", text)


def _spelled(value: Any) -> Any:  # noqa: PLR0911 - one line for each kind
    if isinstance(value, dict):
        return {name: _spelled(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_spelled(part) for part in value]
    if isinstance(value, Decimal):
        return f"{_NUMBER_MARK}{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return value
