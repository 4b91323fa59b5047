"""SASL/OAUTHBEARER properties: a function that returns tokens, or a client of a token endpoint (KIP-768, KIP-1139)."""

from __future__ import annotations

import importlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import HIDDEN, setting

#: The properties that a client of a token endpoint requires.
_OIDC_REQUIRED: Final = {
    "oauth_token_url": "sasl.oauthbearer.token.endpoint.url",
    "oauth_client_id": "sasl.oauthbearer.client.id",
    "oauth_client_secret": "sasl.oauthbearer.client.secret",
}
_OIDC_ONLY: Final = {
    **_OIDC_REQUIRED,
    "oauth_scope": "sasl.oauthbearer.scope",
    "oauth_extensions": "sasl.oauthbearer.extensions",
    "https_ca_location": "https.ca.location",
}
_OTHERS: Final = {
    "oauth_method": "sasl.oauthbearer.method",
    "oauth_cb": "oauth_cb",
    "oauth_config": "sasl.oauthbearer.config",
}
#: RFC 7628, section 3.1 (kvpairs): valid characters of a SASL extension.
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]*")
_NAMED_FUNCTION: Final = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


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
class OAuthOptions:
    """How the client gets the tokens of SASL/OAUTHBEARER; a part of `SecurityOptions`, which checks it."""

    oauth_cb: TokenFunction | None = setting(  # noqa: RUF009 - makes a field
        None,
        properties=("oauth_cb",),
        given="Callable[[str], tuple] | str",
        why="a function that takes the text of sasl.oauthbearer.config and returns (token, expiry in seconds since "
        "1970), by the convention of confluent-kafka; or its name as 'module:function', for files. Driver, tasks and "
        "commands call it, each in its own process. Returned after that may be a principal, which is not used, and a "
        "mapping of SASL extensions",
    )
    oauth_config: str | None = setting(
        None, properties=("sasl.oauthbearer.config",), why="the text that oauth_cb is called with; '' unless given"
    )
    oauth_method: Literal["default", "oidc"] | None = setting(
        None,
        properties=("sasl.oauthbearer.method",),
        why="'oidc': tokens are those of a token endpoint; 'default': those of oauth_cb. None: what the other "
        "properties say",
    )
    oauth_token_url: str | None = setting(
        None,
        properties=("sasl.oauthbearer.token.endpoint.url",),
        why="where a client asks for tokens with its credentials (OAuth 2.0 client credentials grant, KIP-768)",
    )
    oauth_client_id: str | None = setting(
        None,
        properties=("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id"),
        why="the name of that client, also read from sasl.jaas.config",
    )
    oauth_client_secret: str | None = setting(
        None,
        properties=("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"),
        secret=True,
        why="its secret, also read from sasl.jaas.config",
    )
    oauth_scope: str | None = setting(
        None,
        properties=("sasl.oauthbearer.scope",),
        why="what the client asks access for, names with spaces between; also read from sasl.jaas.config",
    )
    oauth_extensions: str | None = setting(
        None,
        properties=("sasl.oauthbearer.extensions",),
        why="SASL extensions for the broker, 'name=value,name=value'; also read from sasl.jaas.config",
    )
    https_ca_location: str | None = setting(
        None,
        properties=("https.ca.location",),
        why="a PEM file of the certificates that the token endpoint is trusted by; None: those of Python's certifi",
    )

    @property
    def sasl_extensions(self) -> dict[str, str]:
        """The extensions of ``sasl.oauthbearer.extensions``."""
        return read_extensions(self.oauth_extensions or "")


def read_token_function(given: object) -> TokenFunction:
    """The function itself, or the one named by ``'module:function'``.

    Raises:
        ConfigurationError: it is neither, or the function does not exist here.
    """
    if isinstance(given, TokenFunction):
        return given
    if isinstance(given, str):
        given = _imported(given)
    if not callable(given):
        raise _refused(
            "oauth_cb",
            HIDDEN,
            "it is a function, or the name of one as 'module:function'",
            "pass a function that returns (token, expiry in seconds since 1970)",
        )
    return TokenFunction(given, uuid.uuid4().hex)


def _imported(text: str) -> object:
    named = _NAMED_FUNCTION.fullmatch(text)
    if named is None:
        remedy = "write it as my_package.my_module:my_function"
        raise _refused("oauth_cb", HIDDEN, "the name of a function is 'module:function'", remedy)
    try:
        return getattr(importlib.import_module(named["module"]), named["name"])
    except (ImportError, AttributeError) as error:
        rule = f"this process cannot import it: {error}"
        remedy = "install the module where the driver, the executors and the commands run, or set PYTHONPATH"
        raise _refused("oauth_cb", text, rule, remedy) from error


def read_extensions(text: str) -> dict[str, str]:
    """SASL extensions from ``'name=value,name=value'``.

    Raises:
        ConfigurationError: a name or a value that RFC 7628 does not allow.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        found[name] = value
    check_extensions(found, option="sasl.oauthbearer.extensions")
    return found


def check_extensions(extensions: Mapping[str, str], *, option: str) -> None:
    """Refuse extensions that RFC 7628 does not allow, as they would end the login without an error message.

    Raises:
        ConfigurationError: naming the extension.
    """
    for name, value in extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth" or not _EXTENSION_VALUE.fullmatch(value):
            raise _refused(
                option,
                name,
                "a SASL extension is a name of letters, which is not 'auth', and a value of printable ASCII characters",
                "correct it, as in logicalCluster=lkc-123,identityPoolId=pool-abc",
            )


def given_for_tokens(options: OAuthOptions) -> dict[str, object]:
    """The given properties that only OAUTHBEARER uses, by name."""
    named = {**_OTHERS, **_OIDC_ONLY}
    return {name: getattr(options, item) for item, name in named.items() if getattr(options, item) is not None}


def check_tokens(options: OAuthOptions) -> None:
    """Make sure that there is exactly one source of tokens, with all its properties.

    Raises:
        ConfigurationError: naming the property to add or to remove.
    """
    of_endpoint = [name for item, name in _OIDC_ONLY.items() if getattr(options, item) is not None]
    if options.oauth_cb is not None:
        surplus = [*of_endpoint, *(["sasl.oauthbearer.method"] if options.oauth_method == "oidc" else [])]
        if surplus:
            rule = "tokens come from oauth_cb or from a token endpoint, and oauth_cb is given"
            raise _refused(surplus[0], HIDDEN, rule, "leave one of the two out")
        return
    if options.oauth_config is not None:
        rule = "it is what oauth_cb is called with, and oauth_cb is not given"
        raise _refused("sasl.oauthbearer.config", HIDDEN, rule, "add oauth_cb, or leave it out")
    if not of_endpoint or options.oauth_method == "default":
        raise _refused(
            "sasl.mechanism",
            "OAUTHBEARER",
            f"it needs oauth_cb, or {', '.join(_OIDC_REQUIRED.values())}",
            "add oauth_cb with a function, or these",
        )
    for item, name in _OIDC_REQUIRED.items():
        if getattr(options, item) is None:
            rule = f"a token endpoint is asked with {', '.join(_OIDC_REQUIRED.values())}"
            raise _refused(name, None, rule, f"add {name}")
    _check_url(str(options.oauth_token_url))
    read_extensions(options.oauth_extensions or "")


def _check_url(text: str) -> None:
    try:
        url = urlsplit(text)
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("https", "http") or not url.hostname or url.username is not None or url.fragment:
        rule = "it is an https or http URL without user and fragment"
        # It is not shown: it may hold a password.
        raise _refused("sasl.oauthbearer.token.endpoint.url", HIDDEN, rule, "pass https://login.example.org/token")


def _refused(option: str, value: object, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option=option, value=value, rule=rule, remedy=remedy)
