"""The driver's access to the schema registry, through confluent-kafka's client."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.errors import ConfigurationError, SchemaRegistryError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.options.outputs import Format
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

_LOGIN_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
#: Answers about the schema that no retry changes.
_SCHEMA_REFUSED: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.BAD_REQUEST)


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema stored in the registry; every record contains its id."""

    schema_id: int
    text: str
    format: str


class Registry:
    """One registry. Every call is bounded by the properties ``timeout`` (seconds) and ``max.retries``."""

    def __init__(self, options: SchemaRegistryOptions, schema_format: Format) -> None:
        self._options = options
        with extra(schema_format):
            self._library: Any = importlib.import_module("confluent_kafka.schema_registry")
            self._http: Any = _http_library()
        # With new_client, an in-memory test registry can be used (mock://).
        self._client: SchemaRegistryClient = self._library.SchemaRegistryClient.new_client(dict(options.client))

    @property
    def uses_latest(self) -> bool:
        return self._options.latest

    @property
    def may_register(self) -> bool:
        return self._options.register

    def latest(self, subject: str) -> RegisteredSchema | None:
        """The newest schema of a subject; None if there is none."""
        with self._asking(f"reading the newest schema of subject {subject!r}"):
            found = self._if_found(lambda: self._client.get_latest_version(subject))
        if found is None:
            return None
        if found.schema.references:
            rule = f"the newest schema of subject {subject!r} refers to other subjects, which is not supported"
            raise _refused(rule, "register a schema without references")
        return RegisteredSchema(
            found.schema_id, found.schema.schema_str, str(found.schema.schema_type or "AVRO").lower()
        )

    def find(self, subject: str, text: str, schema_format: str) -> int | None:
        """The id of a schema; None if the subject does not have it."""
        schema = self._schema(text, schema_format)
        with self._asking(f"looking for the schema in subject {subject!r}"):
            found = self._if_found(
                lambda: self._client.lookup_schema(subject, schema, normalize_schemas=self._options.normalize)
            )
        return None if found is None else int(found.schema_id)

    def register(self, subject: str, text: str, schema_format: str) -> int:
        """Register a schema with a subject, and return its id."""
        schema = self._schema(text, schema_format)
        with self._asking(f"registering the schema in subject {subject!r}"):
            return int(self._client.register_schema(subject, schema, normalize_schemas=self._options.normalize))

    def _schema(self, text: str, schema_format: str) -> Any:
        return self._library.Schema(text, schema_type=schema_format.upper())

    def _if_found(self, ask: Any) -> Any:
        try:
            return ask()
        except self._library.SchemaRegistryError as error:
            if error.http_status_code == HTTPStatus.NOT_FOUND:
                return None
            raise

    @contextmanager
    def _asking(self, operation: str) -> Iterator[None]:
        """Translate the library's errors."""
        where = self._options.shown_url
        try:
            yield
        except self._library.SchemaRegistryError as error:
            status = error.http_status_code
            if status in _LOGIN_REFUSED:
                rule = f"the schema registry at {where} refuses this login: {error.error_message}"
                raise _refused(rule, "correct basic.auth.user.info or the bearer.auth… properties") from error
            if status in _SCHEMA_REFUSED:
                rule = f"the registry at {where} refused {operation}: {error.error_message}"
                remedy = (
                    "follow the subject's compatibility rules (add nullable fields at the end), or change them in the "
                    "registry"
                )
                raise _refused(rule, remedy) from error
            raise SchemaRegistryError(url=where, operation=operation, detail=str(error)) from error
        except (self._http.HTTPError, self._http.InvalidURL) as error:
            detail = f"{type(error).__name__}: {error}"
            raise SchemaRegistryError(url=where, operation=operation, detail=detail) from error


def _http_library() -> Any:
    """The HTTP library of confluent-kafka: httpx2 from 2.16 on, httpx before."""
    try:
        return importlib.import_module("httpx2")
    except ModuleNotFoundError:
        return importlib.import_module("httpx")


def _refused(rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option="schema_registry", value="***", rule=rule, remedy=remedy)
