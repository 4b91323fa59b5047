"""Expiring logins: a token, the source that keeps one for all connections of a process, and Kerberos tickets.

The token source is chosen by the user's Kafka properties: a function (``oauth_cb``), or a token endpoint
(`spark_2pc_sink.logins.oidc`). Both Kafka libraries get its tokens, each in its own form. Each process that opens
connections gets its own token: the driver, each task's process, a command. Tokens are not passed on, since one
could expire on the way.

Each GSSAPI login reads the tickets again, from libkrb5's configured locations, so they may be renewed during a
job: from a keytab (``KRB5_CLIENT_KTNAME``), or by the owner of the credential cache (``KRB5CCNAME``). A missing ticket
is treated like an unreachable broker.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.kafka_security import check_extensions
from spark_2pc_sink.options.settings import HIDDEN, refused


def check_library(options: KafkaOptions) -> None:
    """Check that GSSAPI is available, if the options require it."""
    if options.sasl_mechanism == "GSSAPI":
        with extra("gssapi"):
            import gssapi  # noqa: F401, PLC0415 - optional, and kafka-python's to use


_log = sink_log(__name__)

#: A token is renewed after this part of its lifetime; Java's sasl.login.refresh.window.factor. kafka-python logs
#: in again after 85 % of a session or later, and so with a new token.
RENEW_AFTER: Final = 0.8
#: Most sources per process. More mean that options are created again for each batch.
_SOURCES_MAX: Final = 64


class TokenUnavailableError(Exception):
    """No token is available now; one may be soon. Its text contains no secret."""


@dataclass(frozen=True)
class Token:
    """A client's credential in place of a password."""

    value: str = field(repr=False)
    #: Expiry, in seconds since 1970; None if unknown. Such a token is used once.
    expires_at_s: float | None = None
    #: SASL extensions that go with it (KIP-342).
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


class TokenSource:
    """Caches the newest token until most of its lifetime is over. One thread requests it, and the others wait."""

    def __init__(self, ask: Callable[[], Token], *, now_s: Callable[[], float] = time.time) -> None:
        self._ask = ask
        self._now_s = now_s
        self._lock = threading.Lock()
        self._newest: Token | None = None
        self._renew_at_s = 0.0
        self._given_out = 0

    def token(self) -> Token:
        """A token that is valid for some time; if no new one is available, the previous one until it expires.

        Raises:
            TokenUnavailableError: none is available now.
            AuthorizationError: the credentials were refused.
            ConfigurationError: the user's function returned something other than a token.
        """
        with self._lock:
            now_s = self._now_s()
            token = self._newest
            if token is None or now_s >= self._renew_at_s:
                token = self._renewed(now_s)
            self._given_out += 1
            return token

    def forget(self, token: Token) -> bool:
        """Discard a token refused by a broker, and tell whether a new one may be accepted.

        It may, if this one was used before: it was revoked, or the issuer has new keys, or it expired on its way.
        """
        with self._lock:
            if self._newest is not token:
                return True
            self._newest = None
            return self._given_out > 1

    def _renewed(self, now_s: float) -> Token:
        before = self._newest
        try:
            token = self._requested(now_s)
        except TokenUnavailableError as error:
            if before is None or before.expires_at_s is None or before.expires_at_s <= now_s:
                raise
            _log.warning(
                "could not renew the token; the current one expires in %.0f s: %s", before.expires_at_s - now_s, error
            )
            return before
        lasts_s = 0.0 if token.expires_at_s is None else token.expires_at_s - now_s
        self._newest, self._renew_at_s, self._given_out = token, now_s + RENEW_AFTER * lasts_s, 0
        return token

    def _requested(self, now_s: float) -> Token:
        token = self._ask()
        if token.expires_at_s is not None and token.expires_at_s <= now_s:
            late_s = now_s - token.expires_at_s
            raise TokenUnavailableError(f"the issued token expired {late_s:.0f} s ago; check the clocks")
        return token


_sources: dict[Hashable, TokenSource] = {}
_sources_lock = threading.Lock()

#: Return value of the user's function: token and expiry; then a principal; then extensions.
_PARTS_MIN, _PARTS_MAX = 2, 4
#: confluent-kafka requires an expiry, and requests a new token before it.
_ASKED_AGAIN_S: Final = 60
#: RFC 6750, section 2.1 (b64token): anything else would break the message to the broker.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def token_source(options: KafkaOptions) -> TokenSource | None:
    """The process-wide token source of a login, shared by connections and tasks; None if the login needs no token."""
    if options.sasl_mechanism != "OAUTHBEARER":
        return None
    key: Hashable
    ask: Callable[[], Token]
    if (given := options.oauth_cb) is not None:
        key = ("function", given.key, options.oauth_config)
        ask = partial(_call, given.function, options.oauth_config or "")
    else:
        # Authlib is needed for token endpoints only.
        from spark_2pc_sink.logins.oidc import TokenEndpoint  # noqa: PLC0415

        login = (options.oauth_client_id, options.oauth_client_secret, options.oauth_scope, options.oauth_extensions)
        key = ("endpoint", options.oauth_token_url, *login, options.https_ca_location)
        ask = TokenEndpoint(options).ask
    with _sources_lock:
        if key not in _sources:
            if len(_sources) >= _SOURCES_MAX:
                del _sources[next(iter(_sources))]
            _sources[key] = TokenSource(ask)
        return _sources[key]


def confluent_callback(source: TokenSource) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    """A token source as confluent-kafka's ``oauth_cb``. A token without an expiry is requested again soon."""

    def oauth_cb(_config: str) -> tuple[str, float, str, dict[str, str]]:
        token = source.token()
        expires_at_s = time.time() + _ASKED_AGAIN_S if token.expires_at_s is None else token.expires_at_s
        return token.value, expires_at_s, "", dict(token.extensions)

    return oauth_cb


@AbstractTokenProvider.register
class BrokerTokens:
    """A token source as kafka-python's token provider: used at each login, and again before a session ends."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._shown: Token | None = None

    def token(self) -> str:
        """The token for a login that begins now."""
        self._shown = self._source.token()
        return self._shown.value

    def extensions(self) -> dict[str, str]:
        """The SASL extensions that go with the token of `token` (KIP-342)."""
        return {} if self._shown is None else dict(self._shown.extensions)

    def refused(self) -> bool:
        """Discard the token that a broker refused, see `TokenSource.forget`."""
        return self._shown is not None and self._source.forget(self._shown)


def _call(function: Callable[[str], Any], config: str) -> Token:
    """Get a token from the user's function; if that fails, a retry may succeed."""
    try:
        returned = function(config)
    except ConfigurationError:
        raise
    except Exception as error:
        raise TokenUnavailableError(f"oauth_cb failed with {type(error).__name__}: {error}") from error
    parts = returned if isinstance(returned, (tuple, list)) else ()
    if not _PARTS_MIN <= len(parts) <= _PARTS_MAX or not isinstance(parts[0], str) or not _TOKEN.fullmatch(parts[0]):
        raise _returned_wrong("a token of letters, digits and -._~+/= followed by its expiry")
    if isinstance(parts[1], bool) or not isinstance(parts[1], (int, float)):
        raise _returned_wrong("an expiry in seconds since 1970")
    extensions = parts[3] if len(parts) == _PARTS_MAX else {}
    if not isinstance(extensions, Mapping):
        raise _returned_wrong("extensions as a mapping of strings")
    texts = {str(name): str(value) for name, value in extensions.items()}
    check_extensions(texts, option="oauth_cb")
    return Token(parts[0], float(parts[1]), texts)


def _returned_wrong(wanted: str) -> ConfigurationError:
    remedy = "return (token, expiry in seconds since 1970), optionally followed by a principal and extensions"
    return refused("oauth_cb", HIDDEN, f"it must return {wanted}", remedy)
