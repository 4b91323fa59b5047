"""The binding of an expression to a schema: on the driver, once for each schema of a run.

The schema is derived from the expression's type, given by the user, or the newest of its subject; the registry provides
its id. All this precedes any write to Kafka or the database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.outputs import Format, Part
from spark_2pc_sink.serialisation.avro_schema import TYPES as AVRO_TYPES
from spark_2pc_sink.serialisation.avro_schema import avro_encoder, derived_schema, parsed_schema, record_name
from spark_2pc_sink.serialisation.columns import NoSchemaError
from spark_2pc_sink.serialisation.protobuf_schema import TYPES as PROTOBUF_TYPES
from spark_2pc_sink.serialisation.protobuf_schema import (
    compiled_message,
    derived_text,
    is_key,
    message_indexes,
    protobuf_encoder,
)
from spark_2pc_sink.serialisation.registry import Registry
from spark_2pc_sink.serialisation.serialiser import Serialiser, header

#: The name of a derived record or message.
_NAMES = {"key": "Key", "value": "Value"}
_ADVICE = "Avro and Protobuf schemas describe structs: pass {part}='struct(…)'"


@dataclass(frozen=True)
class SchemaRequest:
    """The user's options for the schema of a key or a value.

    Attributes:
        topic: topic of the records; None if rows name their topics.
        strategy: naming strategy of the subject.
        expression: SQL of the key or the value.
        schema: text of a schema; None for a derived one, or the newest of the subject.
        name: name of the derived record with its namespace, or the message of a given Protobuf schema.
    """

    part: Part
    format: Format
    topic: str | None
    strategy: str
    expression: str
    schema: str | None
    name: str | None

    @property
    def derived_name(self) -> str:
        return self.name or _NAMES[self.part]


def bind(request: SchemaRequest, kind: DataType, registry: Registry) -> Serialiser:
    """Find or register the schema of a key's or a value's type, and create its serialiser.

    Raises ConfigurationError if there is no schema for the type, it does not match the type, or the registry refuses
    it; SchemaRegistryError if the registry did not answer.
    """
    try:
        return _bound(request, kind, registry)
    except NoSchemaError as error:
        cast = f"CAST({request.expression} AS {_type_with_schema(kind, request.format)})"
        remedy = error.remedy or f"convert it: {request.part}={cast!r}"
        raise _refused(request, kind.simpleString(), error.sentence, remedy) from error


def _bound(request: SchemaRequest, kind: DataType, registry: Registry) -> Serialiser:
    if not isinstance(kind, StructType) and (request.part == "value" or request.format == "protobuf"):
        raise NoSchemaError("", f"it is {kind.simpleString()}", _ADVICE.format(part=request.part))
    if registry.uses_latest and request.schema is None:
        return _bound_to_latest(request, kind, registry)
    text = request.schema or _derived(request, kind)
    described = _Described.of(request, kind, text)
    subject = _subject(request, described.name)
    return described.serialiser(_schema_id(request, subject, text, registry))


def _bound_to_latest(request: SchemaRequest, kind: DataType, registry: Registry) -> Serialiser:
    subject = _subject(request, request.name)
    found = registry.latest(subject)
    if found is None:
        remedy = "register one, or leave use.latest.version out"
        raise NoSchemaError("", f"the registry has no schema in subject {subject!r}", remedy)
    if found.format != request.format:
        remedy = f"pass {request.part}_format={found.format!r}, or another strategy of naming"
        raise NoSchemaError("", f"the newest schema of subject {subject!r} is {found.format}", remedy)
    return _Described.of(request, kind, found.text).serialiser(found.schema_id)


def _schema_id(request: SchemaRequest, subject: str, text: str, registry: Registry) -> int:
    found = registry.find(subject, text, request.format)
    if found is not None:
        return found
    if not registry.may_register:
        rule = f"subject {subject!r} does not have this schema, and auto.register.schemas is False: {text}"
        raise NoSchemaError("", rule, "register it, or set auto.register.schemas to True")
    if request.part == "key" and registry.latest(subject) is not None:
        # The id is part of the key's bytes, by which records of one key share a partition and are compacted.
        rule = f"the keys of subject {subject!r} have another schema, so equal keys would have different bytes"
        raise NoSchemaError("", rule, "keep the key's expression as it was, or write to another topic")
    return registry.register(subject, text, request.format)


def _subject(request: SchemaRequest, name: str | None) -> str:
    """The subject, according to Confluent's strategies."""
    if request.strategy != "record" and request.topic is None:
        remedy = "pass subject_name_strategy='record', or one topic for all rows"
        raise NoSchemaError("", f"rows name their topics, and strategy {request.strategy!r} needs one", remedy)
    if request.strategy == "topic":
        return f"{request.topic}-{request.part}"
    if name is None or (request.name is None and request.schema is None):
        remedy = f"pass {request.part}_schema_name='namespace.Name'"
        raise NoSchemaError("", f"strategy {request.strategy!r} needs the name of a record", remedy)
    return name if request.strategy == "record" else f"{request.topic}-{name}"


def _type_with_schema(kind: DataType, schema_format: Format) -> str:
    """A type in Spark SQL, with text for all that the format cannot represent, and names that it allows.

    A cast between structs goes by the order of their fields.
    """
    if isinstance(kind, StructType):
        parts = zip(_allowed_names(kind.names), kind.fields, strict=True)
        fields = (f"{name}: {_type_with_schema(field.dataType, schema_format)}" for name, field in parts)
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_with_schema(kind.elementType, schema_format)}>"
    avro = schema_format == "avro"
    if isinstance(kind, MapType):
        fits = isinstance(kind.keyType, StringType) if avro else is_key(kind.keyType)
        key = kind.keyType.simpleString() if fits else "STRING"
        return f"MAP<{key}, {_type_with_schema(kind.valueType, schema_format)}>"
    fits = isinstance(kind, DecimalType) or type(kind).__name__ in (AVRO_TYPES if avro else PROTOBUF_TYPES)
    return kind.simpleString() if fits else "STRING"


def _allowed_names(names: Sequence[str]) -> list[str]:
    """Names of fields with letters, digits and _ alone; those that are allowed stay."""
    allowed = [re.sub(r"^(?=\d|$)|\W", "_", name, flags=re.ASCII) for name in names]
    taken = set(names)
    for place, (name, better) in enumerate(zip(names, allowed, strict=True)):
        if better != name:
            # A number: Protobuf takes names that differ by _ alone for one.
            numbered = (better if number == 1 else f"{better}_{number}" for number in count(1))
            allowed[place] = next(each for each in numbered if each not in taken)
            taken.add(allowed[place])
    return allowed


def _derived(request: SchemaRequest, kind: DataType) -> str:
    if request.format == "avro":
        return json.dumps(derived_schema(kind, request.derived_name))
    assert isinstance(kind, StructType)
    return derived_text(kind, request.derived_name)


@dataclass(frozen=True)
class _Described:
    """A parsed schema with the name of its record or message, if any, its encoder, and Protobuf's message indexes."""

    name: str | None
    encoder: Any
    indexes: tuple[int, ...] | None = None

    @classmethod
    def of(cls, request: SchemaRequest, kind: DataType, text: str) -> _Described:
        if request.format == "avro":
            schema = parsed_schema(text)
            return cls(record_name(schema), avro_encoder(kind, schema))
        assert isinstance(kind, StructType)
        message = compiled_message(text, request.name)
        return cls(message.full_name, protobuf_encoder(kind, message), message_indexes(message))

    def serialiser(self, schema_id: int) -> Serialiser:
        return Serialiser(header(schema_id, self.indexes), self.encoder)


def _refused(request: SchemaRequest, value: object, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option=f"{request.part}_format={request.format!r}", value=value, rule=rule, remedy=remedy)
