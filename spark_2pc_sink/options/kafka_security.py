"""SASL and TLS properties: Java's stores and JAAS text translated, one source of tokens, contradictions refused.

Tokens of SASL/OAUTHBEARER come from a user's function, or from a token endpoint (KIP-768, KIP-1139).
"""

from __future__ import annotations

import pkgutil
import re
import shlex
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import HIDDEN, Theme, as_text, refused, setting, setting_of, shown, shown_name

#: Other places to configure a Kerberos login.
KERBEROS_TICKETS: Final = (
    "set KRB5_CLIENT_KTNAME (a keytab) or KRB5CCNAME (tickets that something renews) in the environment of driver and "
    "executors; see docs/logins.md"
)
_token: Final = partial(setting, None, group=Theme.LOG_IN, dotted=True)
_file: Final = partial(setting, None, group=Theme.ENCRYPT, dotted=True)


def _upper(given: object, name: str) -> str:
    """A text whose case both client families ignore."""
    return as_text(name, given).upper()


@dataclass(frozen=True)
class TokenFunction:
    """A user's function that returns tokens, by the convention of confluent-kafka's ``oauth_cb``.

    It is called with the text of ``sasl.oauthbearer.config``, and returns the token, when the token expires in seconds
    since 1970, and optionally a principal and a mapping of SASL extensions. Driver, tasks and commands call it, each
    in its own process. A pickled copy equals its original, so that a task reuses the tokens and connections of the
    previous one.
    """

    function: Callable[[str], Any] = field(compare=False)
    key: str

    def __repr__(self) -> str:
        # Not the function's repr: the arguments of a functools.partial may be secrets.
        return f"TokenFunction({getattr(self.function, '__qualname__', type(self.function).__qualname__)})"


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """Authentication between client and brokers; a part of `KafkaOptions`, which checks it."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT",
        "Kafka's own default; credentials with a protocol that would ignore them are refused",
        group=Theme.ENCRYPT,
        dotted=True,
        parse=_upper,
    )
    ssl_ca_location: str | None = _file(
        "a PEM file of trusted certificates; None trusts the system's. A truststore only with its type PEM",
        properties=("ssl.ca.location", "ssl.truststore.location"),
    )
    ssl_certificate_location: str | None = _file(
        "a PEM file with the client's certificate chain. A keystore only with its type PEM",
        properties=("ssl.certificate.location", "ssl.keystore.location"),
    )
    ssl_key_location: str | None = _file(
        "a PEM file with the client's private key; None if the certificate's file contains it"
    )
    ssl_key_password: str | None = _file("the password of an encrypted private key", secret=True)
    ssl_crl_location: str | None = _file("a PEM file of revoked certificates")
    ssl_check_hostname: bool = setting(
        default=True,
        why="'https': the broker's name must match its certificate; 'none' or '': it is not compared",
        group=Theme.ENCRYPT,
        properties=("ssl.endpoint.identification.algorithm",),
        given="Literal['https', 'none', '']",
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None = _token(
        "no default: Kafka's (GSSAPI) needs a Kerberos library, which the extra [gssapi] installs",
        properties=("sasl.mechanism", "sasl.mechanisms"),
        parse=_upper,
    )
    sasl_username: str | None = _token("the user, also read from sasl.jaas.config")
    sasl_password: str | None = _token("the password, also read from sasl.jaas.config", secret=True)
    kerberos_service_name: str | None = _token(
        "GSSAPI: the first part of the brokers' principals; None: 'kafka', as in librdkafka",
        properties=("sasl.kerberos.service.name",),
    )
    oauth_cb: TokenFunction | None = _token(
        "a function that takes the text of sasl.oauthbearer.config and returns (token, expiry in seconds since 1970), "
        "by the convention of confluent-kafka; or its name as 'module:function', for files. Driver, tasks and commands "
        "call it, each in its own process. It may also return a principal, which is not used, and a mapping of SASL "
        "extensions",
        properties=("oauth_cb",),
        given="Callable[[str], tuple] | str",
        parse=lambda given, _: read_token_function(given),
    )
    oauth_config: str | None = _token(
        "the argument of oauth_cb; by default ''", properties=("sasl.oauthbearer.config",)
    )
    oauth_method: Literal["default", "oidc"] | None = _token(
        "'oidc': tokens come from a token endpoint; 'default': from oauth_cb. None: decided by the other properties",
        properties=("sasl.oauthbearer.method",),
        parse=lambda given, name: as_text(name, given).lower(),
    )
    oauth_token_url: str | None = _token(
        "the token endpoint (OAuth 2.0 client credentials grant, KIP-768)",
        properties=("sasl.oauthbearer.token.endpoint.url",),
    )
    oauth_client_id: str | None = _token(
        "the client's id at the token endpoint, also read from sasl.jaas.config",
        properties=("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id"),
    )
    oauth_client_secret: str | None = _token(
        "the client's secret, also read from sasl.jaas.config",
        properties=("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"),
        secret=True,
    )
    oauth_scope: str | None = _token(
        "the requested scopes, separated by spaces; also read from sasl.jaas.config",
        properties=("sasl.oauthbearer.scope",),
    )
    oauth_extensions: str | None = _token(
        "SASL extensions for the broker, 'name=value,name=value'; also read from sasl.jaas.config",
        properties=("sasl.oauthbearer.extensions",),
    )
    https_ca_location: str | None = _token(
        "a PEM file of certificates trusted for the token endpoint; None: those of Python's certifi"
    )

    @property
    def sasl_extensions(self) -> dict[str, str]:
        return read_extensions(self.oauth_extensions or "")

    def given(self, names: tuple[str, ...]) -> dict[str, object]:
        """The values of the fields that are not None, by the names of their properties."""
        return {_PROPERTY[name]: value for name in names if (value := getattr(self, name)) is not None}


#: The preferred name of each property.
_PROPERTY: Final = {item.name: shown_name(item) for item in fields(SecurityOptions)}
#: What a client of a token endpoint requires, all that only such a client uses, and all that only OAUTHBEARER uses.
_ENDPOINT_REQUIRED: Final = ("oauth_token_url", "oauth_client_id", "oauth_client_secret")
_ENDPOINT: Final = (*_ENDPOINT_REQUIRED, "oauth_scope", "oauth_extensions", "https_ca_location")
_TOKENS: Final = ("oauth_method", "oauth_cb", "oauth_config", *_ENDPOINT)
_PASSWORD: Final = ("sasl_username", "sasl_password")
_KERBEROS: Final = ("kerberos_service_name",)
_SASL: Final = ("sasl_mechanism", *_PASSWORD, *_TOKENS, *_KERBEROS)
_TLS: Final = (
    "ssl_ca_location",
    "ssl_certificate_location",
    "ssl_key_location",
    "ssl_key_password",
    "ssl_crl_location",
)


def check_security(options: SecurityOptions) -> None:
    """Refuse credentials that the protocol would ignore, and a protocol without its credentials."""
    protocol = options.security_protocol
    tls = options.given(_TLS)
    if not options.ssl_check_hostname:
        tls[_PROPERTY["ssl_check_hostname"]] = "none"
    for given, used, remedy in (
        (options.given(_SASL), protocol.startswith("SASL"), "SASL_SSL or SASL_PLAINTEXT"),
        (tls, protocol.endswith("SSL"), "SSL or SASL_SSL"),
    ):
        if given and not used:
            name, value = next(iter(given.items()))
            rule = f"it would be ignored with security.protocol={protocol}"
            raise refused(name, shown(name, value), rule, f"set security.protocol to {remedy}, or leave {name} out")
    if protocol.startswith("SASL"):
        _check_mechanism(options)
    if options.ssl_key_location is not None and options.ssl_certificate_location is None:
        rule = "a private key requires its certificate"
        raise refused("ssl.key.location", options.ssl_key_location, rule, "add ssl.certificate.location")


def _check_mechanism(options: SecurityOptions) -> None:
    mechanism = options.sasl_mechanism
    if mechanism is None:
        rule = "it requires sasl.mechanism and its credentials"
        raise refused("security.protocol", options.security_protocol, rule, "add sasl.mechanism")
    used = {"OAUTHBEARER": _TOKENS, "GSSAPI": _KERBEROS}.get(mechanism, _PASSWORD)
    surplus = options.given(tuple(name for name in (*_PASSWORD, *_TOKENS, *_KERBEROS) if name not in used))
    for name, value in surplus.items():
        rule = f"it would be ignored with sasl.mechanism={mechanism}"
        raise refused(name, shown(name, value), rule, f"leave {name} out, or set another sasl.mechanism")
    if mechanism == "OAUTHBEARER":
        _check_tokens(options)
    for field_name in _PASSWORD if used is _PASSWORD else ():
        if getattr(options, field_name) is None:
            name = _PROPERTY[field_name]
            rule = f"sasl.mechanism={mechanism} requires sasl.username and sasl.password"
            raise refused(name, None, rule, f"add {name}")


def _check_tokens(options: SecurityOptions) -> None:
    """Make sure that there is exactly one source of tokens, with all its properties."""
    of_endpoint = options.given(_ENDPOINT)
    required = ", ".join(_PROPERTY[name] for name in _ENDPOINT_REQUIRED)
    if options.oauth_cb is not None:
        surplus = [*of_endpoint, *(["sasl.oauthbearer.method"] if options.oauth_method == "oidc" else [])]
        if surplus:
            rule = "tokens come from oauth_cb or from a token endpoint, and oauth_cb is given"
            raise refused(surplus[0], HIDDEN, rule, "leave one of the two out")
        return
    if options.oauth_config is not None:
        rule = "it is the argument of oauth_cb, which is not given"
        raise refused("sasl.oauthbearer.config", HIDDEN, rule, "add oauth_cb, or leave it out")
    if not of_endpoint or options.oauth_method == "default":
        rule = f"it requires oauth_cb, or {required}"
        raise refused("sasl.mechanism", "OAUTHBEARER", rule, "add oauth_cb with a function, or these")
    for field_name in _ENDPOINT_REQUIRED:
        if getattr(options, field_name) is None:
            name = _PROPERTY[field_name]
            raise refused(name, None, f"a token endpoint requires {required}", f"add {name}")
    try:
        url = urlsplit(str(options.oauth_token_url))
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("https", "http") or not url.hostname or url.username is not None or url.fragment:
        rule = "it must be an https or http URL without user and fragment"
        # It is not shown: it may hold a password.
        raise refused("sasl.oauthbearer.token.endpoint.url", HIDDEN, rule, "pass https://login.example.org/token")
    read_extensions(options.oauth_extensions or "")


#: RFC 7628, section 3.1 (kvpairs): valid characters of a SASL extension.
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]*")
_NAMED_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def read_token_function(given: object) -> TokenFunction:
    if isinstance(given, TokenFunction):
        return given
    if isinstance(given, str):
        given = _imported(given)
    if not callable(given):
        rule = "it must be a function, or the name of one as 'module:function'"
        raise refused("oauth_cb", HIDDEN, rule, "pass a function that returns (token, expiry in seconds since 1970)")
    return TokenFunction(given, uuid.uuid4().hex)


def _imported(text: str) -> object:
    if not _NAMED_FUNCTION.fullmatch(text):
        remedy = "write it as my_package.my_module:my_function"
        raise refused("oauth_cb", HIDDEN, "the name of a function must be 'module:function'", remedy)
    try:
        return pkgutil.resolve_name(text)
    except (ImportError, AttributeError) as error:
        rule = f"this process cannot import it: {error}"
        remedy = "install the module where the driver, the executors and the commands run, or set PYTHONPATH"
        raise refused("oauth_cb", text, rule, remedy) from error


def read_extensions(text: str) -> dict[str, str]:
    """SASL extensions from ``'name=value,name=value'``."""
    parts = (part.strip().partition("=") for part in text.split(",") if part.strip())
    found = {name: value for name, _, value in parts}
    check_extensions(found, option="sasl.oauthbearer.extensions")
    return found


def check_extensions(extensions: Mapping[str, str], *, option: str) -> None:
    """Refuse extensions that RFC 7628 does not allow, as they would end the login without an error message."""
    for name, value in extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth" or not _EXTENSION_VALUE.fullmatch(value):
            rule = "a SASL extension must be a name of letters other than 'auth', and a value of printable ASCII"
            raise refused(option, name, rule, "correct it, as in logicalCluster=lkc-123,identityPoolId=pool-abc")


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
#: The last part of the class that Java clients name for a token endpoint; here it follows from the properties.
_ENDPOINT_HANDLER: Final = "OAuthBearerLoginCallbackHandler"


def read_security(properties: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Translate properties without a field; returns values by field name, and the remaining properties."""
    left = dict(properties)
    for store in ("ssl.truststore", "ssl.keystore"):
        kind = left.pop(f"{store}.type", None)
        name = f"{store}.location"
        if name in left and str(kind).upper() != "PEM":
            given, pkcs12, pem = (shlex.quote(f"{left[name]}{suffix}") for suffix in ("", ".p12", ".pem"))
            option = "ssl.ca.location" if store == "ssl.truststore" else "ssl.certificate.location"
            rule = f"Java key stores are not supported, and {store}.type is not PEM"
            remedy = (
                f"convert it: `keytool -importkeystore -srckeystore {given} -destkeystore {pkcs12} -deststoretype "
                f"PKCS12` and `openssl pkcs12 -nodes -in {pkcs12} -out {pem}`, and set {option}={left[name]}.pem in "
                f"place of the properties {store}.*"
            )
            raise refused(name, left[name], rule, remedy)
    handler = left.pop("sasl.login.callback.handler.class", None)
    if handler is not None and str(handler).rpartition(".")[2] != _ENDPOINT_HANDLER:
        rule = f"there is no JVM that could run it; only {_ENDPOINT_HANDLER} has a counterpart here"
        remedy = "give oauth_cb, a Python function that returns tokens"
        raise refused("sasl.login.callback.handler.class", handler, rule, remedy)
    jaas = left.pop("sasl.jaas.config", None)
    if jaas is None:
        return {}, left
    mechanism = str(left.get("sasl.mechanism", left.get("sasl.mechanisms", ""))).upper()
    values = _read_jaas(as_text("sasl.jaas.config", jaas, secret=True), mechanism)
    for item in fields(SecurityOptions):
        for name in setting_of(item).properties or (shown_name(item),):
            if item.name in values and name in left:
                raise _jaas_refused(f"{name} is given as well", "keep one of the two ways")
    return values, left


def _read_jaas(text: str, mechanism: str) -> dict[str, object]:
    match = _JAAS.fullmatch(text)
    module = match["module"].rpartition(".")[2] if match else ""
    if module == "Krb5LoginModule":
        raise _jaas_refused("there is no JVM that could run Krb5LoginModule", f"leave it out: {KERBEROS_TICKETS}")
    if match is None or module not in _JAAS_MODULES:
        raise _jaas_refused(
            'it must have the form \'<...>PlainLoginModule required username="..." password="...";\', or the same with '
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
        raise _jaas_refused("it must have a username and a password", "add both")
    return {field: options[name] for name, field in _PASSWORD_JAAS.items()}


def _read_token_jaas(options: Mapping[str, str]) -> dict[str, object]:
    """Options of OAuthBearerLoginModule: the client's credentials, or empty if the properties have them."""
    unknown = [name for name in options if name not in _TOKEN_JAAS and not name.startswith(_EXTENSION)]
    if unknown:
        rule = f"OAuthBearerLoginModule has no {unknown[0]}, only {', '.join(_TOKEN_JAAS)} and {_EXTENSION}..."
        raise _jaas_refused(rule, "leave it out")
    values: dict[str, object] = {field: options[name] for name, field in _TOKEN_JAAS.items() if name in options}
    extensions = {name.removeprefix(_EXTENSION): text for name, text in options.items() if name.startswith(_EXTENSION)}
    if extensions:
        values["oauth_extensions"] = ",".join(f"{name}={text}" for name, text in extensions.items())
    return values


def _jaas_refused(rule: str, remedy: str) -> ConfigurationError:
    return refused("sasl.jaas.config", HIDDEN, rule, remedy)
