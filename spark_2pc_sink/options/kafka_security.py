"""SASL and TLS properties: Java's stores and JAAS text translated, contradictions refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.kafka_values import as_text
from spark_2pc_sink.options.settings import HIDDEN, setting

_JAAS = re.compile(
    r"""\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)
        (?P<options>(?:\s+\w+\s*=\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+))*)\s*;\s*""",
    re.VERBOSE,
)
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_ESCAPED = re.compile(r"\\(.)")
#: The last part of a login module's class name -> the mechanisms that it serves.
_JAAS_MODULES = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512")}


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """How the client and the brokers know each other; a part of `KafkaOptions`, which checks it."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT",
        properties=("security.protocol",),
        why="Kafka's own default; credentials with a protocol that would ignore them are refused",
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = setting(
        None,
        properties=("sasl.mechanism", "sasl.mechanisms"),
        why="no default: Kafka's (GSSAPI) needs a Kerberos library, which this package does not bring",
    )
    sasl_username: str | None = setting(
        None, properties=("sasl.username",), why="the user, also read from sasl.jaas.config"
    )
    sasl_password: str | None = setting(
        None, properties=("sasl.password",), secret=True, why="the password, also read from sasl.jaas.config"
    )
    ssl_ca_location: str | None = setting(
        None,
        properties=("ssl.ca.location", "ssl.truststore.location"),
        why="a PEM file of trusted certificates; None trusts the system's. A truststore only with its type PEM",
    )
    ssl_certificate_location: str | None = setting(
        None,
        properties=("ssl.certificate.location", "ssl.keystore.location"),
        why="a PEM file with the client's certificate chain. A keystore only with its type PEM",
    )
    ssl_key_location: str | None = setting(
        None,
        properties=("ssl.key.location",),
        why="a PEM file with the client's private key; None when the certificate's file holds it too",
    )
    ssl_key_password: str | None = setting(
        None, properties=("ssl.key.password",), secret=True, why="of the client's private key, when it is encrypted"
    )
    ssl_crl_location: str | None = setting(
        None, properties=("ssl.crl.location",), why="a PEM file of revoked certificates"
    )
    ssl_check_hostname: bool = setting(
        default=True,
        properties=("ssl.endpoint.identification.algorithm",),
        given="Literal['https', 'none', '']",
        why="'https' compares the broker's name with its certificate; 'none' or '' does not",
    )


def read_security(properties: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Translate what has no field of its own.

    Returns:
        Values by field name, and the properties that are left to read as they are.

    Raises:
        ConfigurationError: a store that is not PEM, or a JAAS text that cannot be read or contradicts the rest.
    """
    left = dict(properties)
    for store in ("ssl.truststore", "ssl.keystore"):
        kind = left.pop(f"{store}.type", None)
        if f"{store}.location" in left and str(kind).upper() != "PEM":
            raise ConfigurationError(
                option=f"{store}.location",
                value=left[f"{store}.location"],
                rule=f"a Java key store can't be read here, and {store}.type does not say PEM",
                remedy="convert it with `keytool -importkeystore -deststoretype PKCS12` and `openssl pkcs12 -nodes`, "
                f"and give the PEM file with {store}.type=PEM or as ssl.ca.location / ssl.certificate.location",
            )
    jaas = left.pop("sasl.jaas.config", None)
    if jaas is None:
        return {}, left
    if "sasl.username" in left or "sasl.password" in left:
        raise _jaas_refused("sasl.username or sasl.password is given as well", "keep one of the two ways")
    mechanism = str(left.get("sasl.mechanism", left.get("sasl.mechanisms", ""))).upper()
    username, password = _read_jaas(as_text("sasl.jaas.config", jaas, secret=True), mechanism)
    return {"sasl_username": username, "sasl_password": password}, left


def _read_jaas(text: str, mechanism: str) -> tuple[str, str]:
    match = _JAAS.fullmatch(text)
    module = match["module"].rpartition(".")[2] if match else ""
    if match is None or module not in _JAAS_MODULES:
        raise _jaas_refused(
            'it has the form \'<...>PlainLoginModule required username="..." password="...";\' or ScramLoginModule',
            "use one of the two, or give sasl.username and sasl.password",
        )
    if mechanism not in _JAAS_MODULES[module]:
        raise _jaas_refused(
            f"{module} serves {' and '.join(_JAAS_MODULES[module])}, and sasl.mechanism is {mechanism or 'not given'}",
            "set sasl.mechanism to match",
        )
    found = _JAAS_OPTION.findall(match["options"])
    options = {name: _ESCAPED.sub(r"\1", double or single) or bare for name, double, single, bare in found}
    if not options.get("username") or not options.get("password"):
        raise _jaas_refused("it has a username and a password", "add both")
    return options["username"], options["password"]


def _jaas_refused(rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option="sasl.jaas.config", value=HIDDEN, rule=rule, remedy=remedy)


def check_security(options: SecurityOptions) -> None:
    """Refuse credentials that the protocol would ignore, and a protocol without its credentials.

    Raises:
        ConfigurationError: naming the property to add or to remove.
    """
    sasl = {
        "sasl.mechanism": options.sasl_mechanism,
        "sasl.username": options.sasl_username,
        "sasl.password": options.sasl_password,
    }
    tls = {
        "ssl.ca.location": options.ssl_ca_location,
        "ssl.certificate.location": options.ssl_certificate_location,
        "ssl.key.location": options.ssl_key_location,
        "ssl.key.password": options.ssl_key_password,
        "ssl.crl.location": options.ssl_crl_location,
        "ssl.endpoint.identification.algorithm": None if options.ssl_check_hostname else "none",
    }
    protocol = options.security_protocol
    _check_ignored(protocol, sasl, wanted=protocol.startswith("SASL"), remedy="SASL_SSL or SASL_PLAINTEXT")
    _check_ignored(protocol, tls, wanted=protocol.endswith("SSL"), remedy="SSL or SASL_SSL")
    missing = [name for name, value in sasl.items() if value is None]
    if protocol.startswith("SASL") and missing:
        raise ConfigurationError(
            option="security.protocol", value=protocol, rule=f"it needs {', '.join(sasl)}", remedy=f"add {missing[0]}"
        )
    if options.ssl_key_location is not None and options.ssl_certificate_location is None:
        raise ConfigurationError(
            option="ssl.key.location",
            value=options.ssl_key_location,
            rule="a private key is of no use without its certificate",
            remedy="add ssl.certificate.location",
        )


def _check_ignored(protocol: str, given: Mapping[str, str | None], *, wanted: bool, remedy: str) -> None:
    unused = [name for name, value in given.items() if value is not None]
    if unused and not wanted:
        raise ConfigurationError(
            option=unused[0],
            value=HIDDEN,
            rule=f"it would be ignored with security.protocol={protocol}",
            remedy=f"set security.protocol to {remedy}, or leave {unused[0]} out",
        )
