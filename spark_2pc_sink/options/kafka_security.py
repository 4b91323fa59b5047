"""SASL and TLS properties: Java's stores and JAAS text translated, contradictions refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.kafka_names import KERBEROS_TICKETS
from spark_2pc_sink.options.kafka_oauth import OAuthOptions, check_tokens, given_for_tokens
from spark_2pc_sink.options.kafka_values import as_text
from spark_2pc_sink.options.settings import HIDDEN, setting, setting_of
from spark_2pc_sink.options.text_checks import shown

_JAAS = re.compile(
    r"""\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)
        (?P<options>(?:\s+\w+\s*=\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+))*)\s*;\s*""",
    re.VERBOSE,
)
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_ESCAPED = re.compile(r"\\(.)")
#: The last part of a login module's class name -> the mechanisms that it serves.
_JAAS_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
_PASSWORD_JAAS: Final = {"username": "sasl_username", "password": "sasl_password"}
#: Options of OAuthBearerLoginModule (KIP-768), in addition to its extensions.
_TOKEN_JAAS: Final = {"clientId": "oauth_client_id", "clientSecret": "oauth_client_secret", "scope": "oauth_scope"}
_EXTENSION: Final = "extension_"
#: Field -> the properties that may set it.
_TOKEN_PROPERTIES: Final = {item.name: setting_of(item).properties for item in fields(OAuthOptions)}
#: The last part of the class that Java clients name for a token endpoint; here it follows from the properties.
_ENDPOINT_HANDLER: Final = "OAuthBearerLoginCallbackHandler"


@dataclass(frozen=True, kw_only=True)
class SecurityOptions(OAuthOptions):
    """Authentication between client and brokers; a part of `KafkaOptions`, which checks it."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT",
        properties=("security.protocol",),
        why="Kafka's own default; credentials with a protocol that would ignore them are refused",
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None = setting(
        None,
        properties=("sasl.mechanism", "sasl.mechanisms"),
        why="no default: Kafka's (GSSAPI) needs a Kerberos library, which the extra [gssapi] brings",
    )
    sasl_username: str | None = setting(
        None, properties=("sasl.username",), why="the user, also read from sasl.jaas.config"
    )
    sasl_password: str | None = setting(
        None, properties=("sasl.password",), secret=True, why="the password, also read from sasl.jaas.config"
    )
    kerberos_service_name: str | None = setting(
        None,
        properties=("sasl.kerberos.service.name",),
        why="GSSAPI: the first part of the brokers' principals; None: kafka, as with librdkafka",
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
    """Translate properties without a field.

    Returns:
        Values by field name, and the properties that remain to be read normally.

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
    handler = left.pop("sasl.login.callback.handler.class", None)
    if handler is not None and str(handler).rpartition(".")[2] != _ENDPOINT_HANDLER:
        raise ConfigurationError(
            option="sasl.login.callback.handler.class",
            value=handler,
            rule=f"there is no JVM that could run it; only {_ENDPOINT_HANDLER} has a counterpart here",
            remedy="give oauth_cb, a Python function that returns tokens",
        )
    jaas = left.pop("sasl.jaas.config", None)
    if jaas is None:
        return {}, left
    if "sasl.username" in left or "sasl.password" in left:
        raise _jaas_refused("sasl.username or sasl.password is given as well", "keep one of the two ways")
    mechanism = str(left.get("sasl.mechanism", left.get("sasl.mechanisms", ""))).upper()
    values = _read_jaas(as_text("sasl.jaas.config", jaas, secret=True), mechanism)
    twice = [name for item, names in _TOKEN_PROPERTIES.items() if item in values for name in names if name in left]
    if twice:
        raise _jaas_refused(f"{twice[0]} is given as well", "keep one of the two ways")
    return values, left


def _read_jaas(text: str, mechanism: str) -> dict[str, object]:
    """The values in a JAAS text, by field."""
    match = _JAAS.fullmatch(text)
    module = match["module"].rpartition(".")[2] if match else ""
    if module == "Krb5LoginModule":
        raise _jaas_refused("there is no JVM that could run Krb5LoginModule", f"leave it out: {KERBEROS_TICKETS}")
    if match is None or module not in _JAAS_MODULES:
        raise _jaas_refused(
            'it has the form \'<...>PlainLoginModule required username="..." password="...";\', or the same with '
            "ScramLoginModule or OAuthBearerLoginModule",
            "use one of the three, or give properties such as sasl.username and sasl.password",
        )
    if mechanism not in _JAAS_MODULES[module]:
        raise _jaas_refused(
            f"{module} serves {' and '.join(_JAAS_MODULES[module])}, and sasl.mechanism is {mechanism or 'not given'}",
            "set sasl.mechanism to match",
        )
    found = _JAAS_OPTION.findall(match["options"])
    options = {name: _ESCAPED.sub(r"\1", double or single) or bare for name, double, single, bare in found}
    if mechanism == "OAUTHBEARER":
        return _read_token_jaas(options)
    if not options.get("username") or not options.get("password"):
        raise _jaas_refused("it has a username and a password", "add both")
    return {field: options[name] for name, field in _PASSWORD_JAAS.items()}


def _read_token_jaas(options: Mapping[str, str]) -> dict[str, object]:
    """Options of OAuthBearerLoginModule: the client's credentials, or empty if the properties have them."""
    unknown = [name for name in options if name not in _TOKEN_JAAS and not name.startswith(_EXTENSION)]
    if unknown:
        rule = f"OAuthBearerLoginModule has {', '.join(_TOKEN_JAAS)} and {_EXTENSION}..., and no {unknown[0]}"
        raise _jaas_refused(rule, "leave it out")
    values: dict[str, object] = {field: options[name] for name, field in _TOKEN_JAAS.items() if name in options}
    extensions = {name.removeprefix(_EXTENSION): text for name, text in options.items() if name.startswith(_EXTENSION)}
    if extensions:
        values["oauth_extensions"] = ",".join(f"{name}={text}" for name, text in extensions.items())
    return values


def _jaas_refused(rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option="sasl.jaas.config", value=HIDDEN, rule=rule, remedy=remedy)


def check_security(options: SecurityOptions) -> None:
    """Refuse credentials that the protocol would ignore, and a protocol without its credentials.

    Raises:
        ConfigurationError: naming the property to add or to remove.
    """
    login = {"sasl.username": options.sasl_username, "sasl.password": options.sasl_password}
    tokens = given_for_tokens(options)
    kerberos = {"sasl.kerberos.service.name": options.kerberos_service_name}
    sasl = {"sasl.mechanism": options.sasl_mechanism, **login, **tokens, **kerberos}
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
    if protocol.startswith("SASL"):
        _check_mechanism(options, login, tokens, kerberos)
    if options.ssl_key_location is not None and options.ssl_certificate_location is None:
        raise ConfigurationError(
            option="ssl.key.location",
            value=options.ssl_key_location,
            rule="a private key is of no use without its certificate",
            remedy="add ssl.certificate.location",
        )


def _check_mechanism(
    options: SecurityOptions, login: Mapping[str, object], tokens: Mapping[str, object], kerberos: Mapping[str, object]
) -> None:
    """Check that each mechanism has the options it needs, and none that only another would use."""
    mechanism = options.sasl_mechanism
    if mechanism is None:
        rule = "it needs sasl.mechanism, and what that needs in turn"
        remedy = "add sasl.mechanism"
        raise ConfigurationError(option="security.protocol", value=options.security_protocol, rule=rule, remedy=remedy)
    of_mechanism = {"OAUTHBEARER": tokens, "GSSAPI": kerberos}.get(mechanism, login)
    given = {**login, **tokens, **kerberos}
    surplus = [name for name, value in given.items() if value is not None and name not in of_mechanism]
    if surplus:
        raise ConfigurationError(
            option=surplus[0],
            value=shown(surplus[0], given[surplus[0]]),
            rule=f"it would be ignored with sasl.mechanism={mechanism}",
            remedy=f"leave {surplus[0]} out, or set another sasl.mechanism",
        )
    if mechanism == "OAUTHBEARER":
        check_tokens(options)
    for name, value in login.items() if of_mechanism is login else ():
        if value is None:
            rule = f"sasl.mechanism={mechanism} needs sasl.username and sasl.password"
            raise ConfigurationError(option=name, value=None, rule=rule, remedy=f"add {name}")


def _check_ignored(protocol: str, given: Mapping[str, object], *, wanted: bool, remedy: str) -> None:
    unused = [name for name, value in given.items() if value is not None]
    if unused and not wanted:
        raise ConfigurationError(
            option=unused[0],
            value=shown(unused[0], given[unused[0]]),
            rule=f"it would be ignored with security.protocol={protocol}",
            remedy=f"set security.protocol to {remedy}, or leave {unused[0]} out",
        )
