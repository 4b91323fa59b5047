"""The server's listeners and their users: Kafka's ``listeners`` and JAAS user lists.

Metadata answers depend on the client's listener (``advertised.listeners``), so that a proxy can be placed in front of
one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import HIDDEN, nearest, refused

PLAIN: Final = "PLAIN"
#: Supported login mechanisms, if enabled by ``sasl.enabled.mechanisms``.
MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
#: The login module of Kafka's PLAIN mechanism. Only it has users with passwords; here they serve all mechanisms.
PLAIN_LOGIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: Prefix of a JAAS option that defines a user.
_USER_PREFIX: Final = "user_"
_ENDPOINT: Final = re.compile(r"(?P<name>\w+)://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\],]*):(?P<port>[0-9]{1,5})")
_PROTOCOL_MAP: Final = "listener.security.protocol.map"
_EVERY_INTERFACE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - refused, not bound
_JAAS_LOGIN: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)\b(?P<options>.*);\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"""\s+(?P<key>\w+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s";]+))""")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_PORT_MAX: Final = 65_535


class SecurityProtocol(Enum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        """True if a client must log in first."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


#: Default ``listener.security.protocol.map``: each protocol is a listener name too.
DEFAULT_PROTOCOL_MAP: Final = ",".join(f"{each.value}:{each.value}" for each in SecurityProtocol)


def address_text(host: str, port: int) -> str:
    """``HOST:PORT`` for clients, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Endpoint:
    """One ``NAME://HOST:PORT``; an empty host is every interface, and port 0 lets the system choose."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{address_text(self.host, self.port)}"


@dataclass(frozen=True)
class Listener:
    """Address and protocol of a listener; its address in Metadata is the bound one unless ``advertised``."""

    endpoint: Endpoint
    protocol: SecurityProtocol
    advertised: tuple[str, int] | None = None


def parse_endpoints(text: str, *, option: str) -> tuple[Endpoint, ...]:
    endpoints: dict[str, Endpoint] = {}
    for part in text.split(","):
        match = _ENDPOINT.fullmatch(part.strip())
        if match is None or int(match["port"]) > _PORT_MAX or match["name"].upper() in endpoints:
            remedy = "pass 'PLAINTEXT://127.0.0.1:9092'; put an IPv6 address in square brackets"
            raise refused(option, text, "must be a list of NAME://HOST:PORT, each name once", remedy)
        name = match["name"].upper()
        endpoints[name] = Endpoint(name, match["host"].strip("[]"), int(match["port"]))
    return tuple(endpoints.values())


def parse_listeners(listeners: str, *, advertised: str | None, protocol_map: str) -> tuple[Listener, ...]:
    endpoints = parse_endpoints(listeners, option="listeners")
    option = "advertised.listeners"
    public = {} if advertised is None else {each.name: each for each in parse_endpoints(advertised, option=option)}
    for name in public.keys() - {each.name for each in endpoints}:
        rule = f"{name} is not the name of a listener"
        raise refused(option, advertised, rule, f"the listeners are {', '.join(each.name for each in endpoints)}")
    protocols = _parse_protocol_map(protocol_map)
    return tuple(_listener(each, public.get(each.name), protocols) for each in endpoints)


def _listener(endpoint: Endpoint, public: Endpoint | None, protocols: Mapping[str, SecurityProtocol]) -> Listener:
    name = endpoint.name
    if name not in protocols:
        remedy = f"name the listener as one of {', '.join(protocols)}, or add {name}:PROTOCOL"
        raise refused(_PROTOCOL_MAP, name, "must have a protocol for each listener", remedy)
    if (public or endpoint).host in _EVERY_INTERFACE:
        rule = "clients cannot connect to an address that means every interface"
        remedy = f"give {name}://HOST:PORT with a host that clients can reach"
        value = str(public or endpoint)
        raise ConfigurationError(option="advertised.listeners", value=value, rule=rule, remedy=remedy)
    return Listener(endpoint, protocols[name], None if public is None else (public.host, public.port))


def _parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    known: dict[str, SecurityProtocol] = {}
    for entry in text.split(","):
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not name or protocol not in SecurityProtocol.__members__:
            rule = f"must be a list of NAME:PROTOCOL; a protocol is one of {', '.join(SecurityProtocol.__members__)}"
            raise refused(_PROTOCOL_MAP, text, rule, nearest(protocol, SecurityProtocol.__members__))
        known[name] = SecurityProtocol[protocol]
    return known


@dataclass(frozen=True)
class Users:
    """Passwords by user name, for any mechanism; they are not part of the repr."""

    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str, *, option: str) -> Users:
        """Parse Kafka's SASL/PLAIN format: ``…PlainLoginModule required user_alice="secret" user_bob="other";``.

        The options ``username`` and ``password`` are a broker's login to other brokers, which do not exist here.
        """
        login = _JAAS_LOGIN.fullmatch(text)
        if login is None or login["module"] != PLAIN_LOGIN_MODULE or login["flag"].lower() != "required":
            raise _bad_jaas(option)
        users: dict[str, str] = {}
        position, options = 0, login["options"].rstrip()
        while position < len(options):
            found = _JAAS_OPTION.match(options, position)
            if found is None:
                raise _bad_jaas(option)
            if found["key"].startswith(_USER_PREFIX):
                value = found["bare"] if found["quoted"] is None else _ESCAPED.sub(r"\1", found["quoted"])
                users[found["key"].removeprefix(_USER_PREFIX)] = value
            elif found["key"] not in {"username", "password", "serviceName"}:
                raise _bad_jaas(option)
            position = found.end()
        if not users:
            raise _bad_jaas(option)
        return cls(users)


def _bad_jaas(option: str) -> ConfigurationError:
    rule = "must be one PLAIN login with a user_NAME for each user and a semicolon at the end"
    return refused(option, HIDDEN, rule, f"pass '{PLAIN_LOGIN_MODULE} required user_NAME=\"PASSWORD\";'")
