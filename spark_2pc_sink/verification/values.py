"""Values of records with a schema, as JSON: decoded by the libraries of their formats, with the writer's schema.

A value that cannot be decoded is not made a JSON object, and is then reported as a record that is not a row.
"""

from __future__ import annotations

import base64
import datetime as dt
import importlib
import io
import json
import math
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final, TypeAlias

from spark_2pc_sink.errors import SchemaRegistryError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.verification.report import NotComparableError

#: Converts the value of a topic's record to JSON.
ValueReader: TypeAlias = Callable[[str, bytes | None], bytes | None]
_HEADER: Final = struct.Struct(">bI")
#: Delimits a number whose digits JSON must keep; no PostgreSQL text contains this character.
_NUMBER_MARK: Final = "\0number:"
_MARKED: Final = re.compile(rb'"\\u0000number:([^"]*)"')
_COMPILE_S_MAX: Final = 60
_FILE: Final = "written.proto"


def formats_of(layout: SinkLayout | None) -> dict[str | None, str]:
    """By topic, the format of its values if that is not JSON; None for topics that rows name."""
    lanes = () if layout is None else layout.each
    return {lane.topic: lane.value_format for lane in lanes if lane.records and lane.value_format != "json"}


def value_reader(layout: SinkLayout | None, registry: SchemaRegistryOptions | None) -> ValueReader:
    """Convert values of the sink's records to JSON; NotComparableError if that requires a registry of schemas."""
    formats = formats_of(layout)
    if not formats:
        return unchanged
    if registry is None:
        why = f"values are {' and '.join(sorted(set(formats.values())))}, and their schemas are unknown"
        raise NotComparableError(why, "pass --schema-registry URL (schema_registry)")
    decoders = _decoders(registry)

    def read(topic: str, value: bytes | None) -> bytes | None:
        """The JSON of a value; the value itself if it is not in its topic's format."""
        found = formats.get(topic) or formats.get(None)
        if found is None or value is None or len(value) < _HEADER.size or value[0]:
            return value
        _, schema_id = _HEADER.unpack_from(value)
        decoded = decoders[found](schema_id, value[_HEADER.size :])
        spelled = json.dumps(_spelled(decoded), ensure_ascii=False).encode()
        return value if decoded is None else _MARKED.sub(rb"\1", spelled)

    return read


def unchanged(topic: str, value: bytes | None) -> bytes | None:
    del topic
    return value


def _decoders(options: SchemaRegistryOptions) -> dict[str, Callable[[int, bytes], Any]]:
    """By format, a decoder of bytes by the id of their schema, which is fetched once; None for other bytes."""
    with extra("avro"):
        library: Any = importlib.import_module("confluent_kafka.schema_registry")
    client = library.SchemaRegistryClient.new_client(dict(options.client))

    def text_of(schema_id: int) -> str:
        try:
            return str(client.get_schema(schema_id).schema_str)
        except Exception as error:
            # Errors of the client, of its HTTP library, or of the login: all mean the same for the reader.
            operation, detail = f"reading schema {schema_id}", f"{type(error).__name__}: {error}"
            raise SchemaRegistryError(url=options.shown_url, operation=operation, detail=detail) from error

    @cache
    def schema(schema_id: int) -> Any:
        with extra("avro"):
            schemas: Any = importlib.import_module("fastavro.schema")
        return schemas.parse_schema(json.loads(text_of(schema_id)))

    messages = cache(lambda schema_id: _compiled(text_of(schema_id)))

    def avro(schema_id: int, body: bytes) -> Any:
        parsed = schema(schema_id)
        try:
            return importlib.import_module("fastavro").schemaless_reader(io.BytesIO(body), parsed)
        except (EOFError, ValueError, IndexError, OverflowError):
            return None

    def protobuf(schema_id: int, body: bytes) -> Any:
        (first, *nested), start = _message_indexes(body)
        compiled = messages(schema_id)
        try:
            described = reduce(lambda outer, index: outer.nested_types[index], nested, compiled[first])
            made = importlib.import_module("google.protobuf.message_factory").GetMessageClass(described)
            return made.FromString(body[start:])
        except (IndexError, importlib.import_module("google.protobuf.message").DecodeError):
            return None

    return {"avro": avro, "protobuf": protobuf}


def _message_indexes(body: bytes) -> tuple[list[int], int]:
    """The message's indexes in its file, and where its bytes begin (Confluent, "Wire format")."""
    count, position = _zigzag(body, 0)
    indexes: list[int] = []
    while len(indexes) < count and position < len(body):
        index, position = _zigzag(body, position)
        indexes.append(index)
    return indexes or [0], position


def _compiled(text: str) -> list[Any]:
    """The messages in a .proto text, compiled with its imports by Google's compiler."""
    with extra("protobuf"):
        pools: Any = importlib.import_module("google.protobuf.descriptor_pool")
        files: Any = importlib.import_module("google.protobuf.descriptor_pb2")
        roots = [
            Path(str(importlib.import_module("grpc_tools").__file__)).parent / "_proto",
            Path(str(importlib.import_module("google.type.date_pb2").__file__)).parents[2],
        ]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / _FILE, Path(folder) / "descriptors"
        source.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "grpc_tools.protoc", "--include_imports", f"--descriptor_set_out={target}"]
        command += [*(f"--proto_path={root}" for root in [folder, *roots]), str(source)]
        subprocess.run(command, check=True, timeout=_COMPILE_S_MAX)
        compiled = target.read_bytes()
    pool = pools.DescriptorPool()
    for file in files.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return list(pool.FindFileByName(_FILE).message_types_by_name.values())


def _zigzag(body: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    for byte in body[position:]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - no more bytes follow
            break
    return number >> 1 ^ -(number & 1), position + shift // 7


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a message; an absent field with presence is omitted, like nulls in JSON."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            # JSON writes the keys of a map as texts.
            texts = {key: str(key).lower() if isinstance(key, bool) else str(key) for key in sorted(value)}
            found[field.name] = {text: value[key] for key, text in texts.items()}
        elif field.is_repeated:
            found[field.name] = list(value)
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = value
    return found


def _spelled(value: Any) -> Any:  # noqa: PLR0911 - one line for each kind
    """As Spark's to_json writes it, but with nulls and finer parts of seconds."""
    if (message := getattr(value, "DESCRIPTOR", None)) is not None:
        if message.full_name == "google.type.Date":
            return _spelled(dt.date(value.year, value.month, value.day))
        is_time = message.full_name == "google.protobuf.Timestamp"
        return _spelled(value.ToDatetime(tzinfo=dt.timezone.utc) if is_time else _fields(value))
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
    return value.isoformat() if isinstance(value, dt.date) else value
