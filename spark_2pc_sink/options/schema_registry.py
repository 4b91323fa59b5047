"""Schema registry options: the properties of confluent-kafka's client and serializers, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import nearest, refused, shown

#: Options of ``SchemaRegistryClient``: texts and numbers.
_TEXTS: Final = {
    "url",
    "proxy",
    "basic.auth.user.info",
    "bearer.auth.credentials.source",
    "bearer.auth.token",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
}
_NUMBERS: Final = {"timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms"}
#: Options of its serializers: (name, default).
_SERIALIZERS: Final[Mapping[str, bool]] = {
    "auto.register.schemas": True,
    "use.latest.version": False,
    "normalize.schemas": False,
}
#: The client has no limits of its own: longest time of a request, and number of retries.
_BOUNDS: Final[Mapping[str, int]] = {"timeout": 10, "max.retries": 2, "retries.max.wait.ms": 2_000}
_SCHEMES: Final = ("http://", "https://", "mock://")


@dataclass(frozen=True)
class SchemaRegistryOptions:
    """Connection to a schema registry, and the permitted operations. Shows no secret."""

    #: Properties of ``SchemaRegistryClient``.
    client: Mapping[str, str | int] = field(repr=False)
    #: Register schemas that the registry lacks (``auto.register.schemas``).
    register: bool = True
    #: Write with the newest schema of the subject (``use.latest.version``).
    latest: bool = False
    #: Normalise schemas in the registry before they are compared (``normalize.schemas``).
    normalize: bool = False

    @classmethod
    def parse(cls, given: object) -> SchemaRegistryOptions | None:
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            remedy = "pass schema_registry={'url': 'http://…:8081'}"
            raise refused("schema_registry", shown("", given), "it must be a mapping of properties", remedy)
        known = _TEXTS | _NUMBERS | set(_SERIALIZERS)
        for name in given:
            if name not in known:
                rule = "the schema registry client has no such property"
                raise _refused(str(name), rule, nearest(str(name), known), given[name])
        flags = {name: _flag(name, given.get(name, default)) for name, default in _SERIALIZERS.items()}
        client = {name: _value(name, given[name]) for name in given if name not in _SERIALIZERS and name != "url"}
        latest = flags["use.latest.version"]
        return cls(
            client={**_BOUNDS, **client, "url": _url(given)},
            # As the client's own serializers do: the registered schema is used.
            register=flags["auto.register.schemas"] and not latest,
            latest=latest,
            normalize=flags["normalize.schemas"],
        )

    @property
    def shown_url(self) -> str:
        """The address, without a password in it."""
        urls = [urlsplit(url.strip()) for url in str(self.client["url"]).split(",")]
        return ",".join(urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", "")) for url in urls)

    def __str__(self) -> str:
        return self.shown_url

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.client.items())), self.register, self.latest, self.normalize))


def _url(given: Mapping[str, Any]) -> str:
    url = given.get("url")
    if not isinstance(url, str) or not all(part.strip().startswith(_SCHEMES) for part in url.split(",")):
        rule = "it must be the address of the registry, http://… or https://…, or several separated by commas"
        raise _refused("url", rule, "pass schema_registry={'url': 'http://registry:8081'}", url)
    return url


def _value(name: str, value: object) -> str | int:
    numeric = name in _NUMBERS
    if numeric and isinstance(value, str) and value.isdecimal():
        return int(value)
    if numeric and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not numeric and isinstance(value, str) and value:
        return value
    rule = "it must be a number" if numeric else "it must be a text"
    raise _refused(name, rule, f"pass '{name}': …, or leave it out", value)


def _flag(name: str, value: object) -> bool:
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise _refused(name, "it must be True or False", "pass one of the two", value)
    return found


def _refused(name: str, rule: str, remedy: str, value: object) -> ConfigurationError:
    return refused(f"schema_registry[{name!r}]", shown(name, value), rule, remedy)
