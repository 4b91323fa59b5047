"""The binding of an expression to a schema, with the registry: on the driver, once for each schema of a run.

The schema is derived from the expression's type, given by the user, or the newest of its subject; the registry provides
its id. All this precedes any write to Kafka or the database.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType

from spark_2pc_sink.errors import ConfigurationError, SchemaRegistryError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.options.outputs import Format, Part
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.serialisation.avro_schema import TYPES as AVRO_TYPES, avro_encoder, derived_schema, parsed_schema
from spark_2pc_sink.serialisation.protobuf_schema import (
    TYPES as PROTOBUF_TYPES,
    compiled_message,
    derived_text,
    is_key,
    message_index,
    protobuf_encoder,
)
from spark_2pc_sink.serialisation.serialiser import NoSchemaError, Serialiser, header

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

_LOGIN_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
#: Answers about the schema that no retry changes.
_SCHEMA_REFUSED: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.BAD_REQUEST)
_COMPATIBLE: Final = (
    "follow the subject's compatibility rules (add nullable fields at the end), or change them in the registry"
)


class Registry:
    """One registry. Every call is bounded by the properties ``timeout`` (seconds) and ``max.retries``."""

    def __init__(self, options: SchemaRegistryOptions, schema_format: Format) -> None:
        self.options: SchemaRegistryOptions = options
        with extra(schema_format):
            self._library: Any = importlib.import_module("confluent_kafka.schema_registry")
            # The HTTP library of confluent-kafka: httpx2 from 2.16 on, httpx before.
            try:
                self._http: Any = importlib.import_module("httpx2")
            except ModuleNotFoundError:
                self._http = importlib.import_module("httpx")
        # With new_client, an in-memory test registry can be used (mock://).
        self._client: SchemaRegistryClient = self._library.SchemaRegistryClient.new_client(dict(options.client))

    def latest(self, subject: str) -> Any:
        """The newest schema of a subject, as the client's ``RegisteredSchema``; None if there is none."""
        operation = f"reading the newest schema of subject {subject!r}"
        found = self._ask(operation, lambda: self._client.get_latest_version(subject), missing_ok=True)
        if found is not None and found.schema.references:
            rule = f"the newest schema of subject {subject!r} refers to other subjects, which is not supported"
            raise _refused(rule, "register a schema without references")
        return found

    def find(self, subject: str, text: str, schema_format: str) -> int | None:
        """The id of a schema; None if the subject does not have it."""
        schema = self._library.Schema(text, schema_type=schema_format.upper())
        look = partial(self._client.lookup_schema, subject, schema, normalize_schemas=self.options.normalize)
        found = self._ask(f"looking for the schema in subject {subject!r}", look, missing_ok=True)
        return None if found is None else int(found.schema_id)

    def register(self, subject: str, text: str, schema_format: str) -> int:
        schema = self._library.Schema(text, schema_type=schema_format.upper())
        register = partial(self._client.register_schema, subject, schema, normalize_schemas=self.options.normalize)
        return int(self._ask(f"registering the schema in subject {subject!r}", register))

    def _ask(self, operation: str, ask: Callable[[], Any], *, missing_ok: bool = False) -> Any:
        """Translate the library's errors; None for what is missing, if that is allowed."""
        where = self.options.shown_url
        try:
            return ask()
        except self._library.SchemaRegistryError as error:
            status = error.http_status_code
            if missing_ok and status == HTTPStatus.NOT_FOUND:
                return None
            if status in _LOGIN_REFUSED:
                rule = f"the schema registry at {where} refuses this login: {error.error_message}"
                raise _refused(rule, "correct basic.auth.user.info or the bearer.auth… properties") from error
            if status in _SCHEMA_REFUSED:
                rule = f"the registry at {where} refused {operation}: {error.error_message}"
                raise _refused(rule, _COMPATIBLE) from error
            raise SchemaRegistryError(url=where, operation=operation, detail=str(error)) from error
        except (self._http.HTTPError, self._http.InvalidURL) as error:
            detail = f"{type(error).__name__}: {error}"
            raise SchemaRegistryError(url=where, operation=operation, detail=detail) from error


def _refused(rule: str, remedy: str) -> ConfigurationError:
    return refused("schema_registry", "***", rule, remedy)


@dataclass(frozen=True)
class SchemaRequest:
    """The user's options for the schema of a key or a value."""

    part: Part
    format: Format
    #: None if rows name their topics.
    topic: str | None
    #: Naming strategy of the subject.
    strategy: str
    expression: str
    #: Text of a schema; None for a derived one, or the newest of the subject.
    schema: str | None
    #: Name of the derived record with its namespace, or the message of a given Protobuf schema.
    name: str | None


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
        raise refused(f"{request.part}_format", request.format, error.sentence, remedy) from error


def _bound(request: SchemaRequest, kind: DataType, registry: Registry) -> Serialiser:
    if not isinstance(kind, StructType) and (request.part == "value" or request.format == "protobuf"):
        advice = f"Avro and Protobuf schemas describe structs: pass {request.part}='struct(…)'"
        raise NoSchemaError("", f"the {request.part} is {kind.simpleString()}", advice)
    if registry.options.latest and request.schema is None:
        return _bound_to_latest(request, kind, registry)
    text = request.schema or _derived(request, kind)
    name, encoder, index = _described(request, kind, text)
    schema_id = _schema_id(request, _subject(request, name), text, registry)
    return Serialiser(header(schema_id, index), encoder)


def _bound_to_latest(request: SchemaRequest, kind: DataType, registry: Registry) -> Serialiser:
    subject = _subject(request, request.name)
    found = registry.latest(subject)
    if found is None:
        remedy = "register one, or leave use.latest.version out"
        raise NoSchemaError("", f"the registry has no schema in subject {subject!r}", remedy)
    found_format = str(found.schema.schema_type or "AVRO").lower()
    if found_format != request.format:
        remedy = f"pass {request.part}_format={found_format!r}, or another strategy of naming"
        raise NoSchemaError("", f"the newest schema of subject {subject!r} is {found_format}", remedy)
    _, encoder, index = _described(request, kind, found.schema.schema_str)
    return Serialiser(header(found.schema_id, index), encoder)


def _schema_id(request: SchemaRequest, subject: str, text: str, registry: Registry) -> int:
    found = registry.find(subject, text, request.format)
    if found is not None:
        return found
    if not registry.options.register:
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
    name = request.name or request.part.capitalize()
    if request.format == "avro":
        return json.dumps(derived_schema(kind, name))
    assert isinstance(kind, StructType)
    return derived_text(kind, name)


def _described(request: SchemaRequest, kind: DataType, text: str) -> tuple[str | None, Any, int | None]:
    """The name of a schema's record or message, if any, its encoder, and the index of Protobuf's message."""
    if request.format == "avro":
        schema = parsed_schema(text)
        name = schema["name"] if isinstance(schema, dict) and schema["type"] == "record" else None
        return name, avro_encoder(kind, schema), None
    assert isinstance(kind, StructType)
    message = compiled_message(text, request.name)
    return message.full_name, protobuf_encoder(kind, message), message_index(message)
