"""Logins that expire: a token, the source that keeps one for all connections of a process, and Kerberos tickets.

The token source follows from the user's Kafka properties: a function (``oauth_cb``), or a token endpoint
(`spark_2pc_sink.logins.oidc`). Both Kafka libraries get its tokens, each in its own form. Whoever opens a connection
asks for the token: the driver, each task's process, a command. Tokens are not sent from one to another, since one
could expire on the way.

Each login by GSSAPI looks for tickets again, where the environment of libkrb5 says, so they may be renewed under a
running job: by a keytab (``KRB5_CLIENT_KTNAME``), or by whoever keeps the credential cache (``KRB5CCNAME``). One that
is missing counts as a broker that is away.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.options.kafka_oauth import check_extensions
from spark_2pc_sink.options.settings import HIDDEN

if TYPE_CHECKING:
    from spark_2pc_sink.options import KafkaOptions

if TYPE_CHECKING:  # kafka-python has no type information, and its class only says what stands here.
    from spark_2pc_sink.options import KafkaOptions

    AbstractTokenProvider = object
else:
    from kafka.net.sasl.oauth import AbstractTokenProvider


def check_library(options: KafkaOptions) -> None:
    """Make sure that GSSAPI can be spoken, where the options ask for it.

    Raises:
        MissingExtraError: the package gssapi is not installed.
    """
    if options.sasl_mechanism == "GSSAPI":
        with extra("gssapi"):
            import gssapi  # noqa: F401, PLC0415 - optional, and kafka-python's to use


_log = sink_log(__name__)

#: A token is renewed when this much of its life has passed; Java's sasl.login.refresh.window.factor. kafka-python logs
#: in again after 85 % of a session or later, and so with a new token.
RENEW_AFTER: Final = 0.8
#: Sources of one process. More than a few mean that somebody makes options anew for each batch.
_SOURCES_MAX: Final = 64


class TokenUnavailableError(Exception):
    """There is no token now, and there may be one in a moment. Never leaves this package but as the reason of another.

    Its text has no secret.
    """


@dataclass(frozen=True)
class Token:
    """What a client shows to a broker in place of a password.

    Attributes:
        value: the token itself, as RFC 6750 writes it.
        expires_at_s: when it expires, in seconds since 1970; None where nobody says. Such a token is used once.
        extensions: SASL extensions that go with it (KIP-342).
    """

    value: str = field(repr=False)
    expires_at_s: float | None = None
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


class TokenSource:
    """Asks for tokens, and keeps the newest until most of its life is over.

    For use from several threads: one asks, and the others wait for its answer.

    Args:
        ask: gets a new token. It has a bound on its time.
        now_s: seconds since 1970.
    """

    def __init__(self, ask: Callable[[], Token], *, now_s: Callable[[], float] = time.time) -> None:
        self._ask = ask
        self._now_s = now_s
        self._lock = threading.Lock()
        self._newest: Token | None = None
        self._renew_at_s = 0.0
        self._given_out = 0

    def token(self) -> Token:
        """A token that is good for some time yet.

        Where no new one can be had, the one before is given out for as long as it lives.

        Raises:
            TokenUnavailableError: there is none now.
            AuthorizationError: the credentials were refused.
            ConfigurationError: the user's function returned something else than a token.
        """
        with self._lock:
            now_s = self._now_s()
            token = self._newest
            if token is None or now_s >= self._renew_at_s:
                token = self._renewed(now_s)
            self._given_out += 1
            return token

    def forget(self, token: Token) -> bool:
        """A broker has refused this token: it is not given out again.

        Returns:
            Whether a new one may be let in: this one has been used before, so it was revoked, or the issuer has new
            keys, or it expired on its way.
        """
        with self._lock:
            if self._newest is not token:
                return True
            self._newest = None
            return self._given_out > 1

    def _renewed(self, now_s: float) -> Token:
        before = self._newest
        try:
            token = self._asked(now_s)
        except TokenUnavailableError as error:
            if before is None or before.expires_at_s is None or before.expires_at_s <= now_s:
                raise
            _log.warning("no new token, and the one before lasts %.0f s more: %s", before.expires_at_s - now_s, error)
            return before
        lasts_s = 0.0 if token.expires_at_s is None else token.expires_at_s - now_s
        self._newest, self._renew_at_s, self._given_out = token, now_s + RENEW_AFTER * lasts_s, 0
        return token

    def _asked(self, now_s: float) -> Token:
        token = self._ask()
        if token.expires_at_s is not None and token.expires_at_s <= now_s:
            late_s = now_s - token.expires_at_s
            raise TokenUnavailableError(f"a token came that expired {late_s:.0f} s ago; are the clocks right?")
        return token


_sources: dict[Hashable, TokenSource] = {}
_sources_lock = threading.Lock()


def shared_source(key: Hashable, ask: Callable[[], Token]) -> TokenSource:
    """The source of this process for a key: connections that log in alike share a token, and so do tasks.

    Args:
        key: equal where the tokens are the same.
        ask: see `TokenSource`.
    """
    with _sources_lock:
        if key not in _sources:
            if len(_sources) >= _SOURCES_MAX:
                del _sources[next(iter(_sources))]
            _sources[key] = TokenSource(ask)
        return _sources[key]


#: What a function returns: token and expiry; then a principal; then extensions.
_PARTS_MIN, _PARTS_MAX = 2, 4
#: confluent-kafka wants an expiry, and asks again before it.
_ASKED_AGAIN_S: Final = 60
#: RFC 6750, section 2.1 (b64token): anything else would break the message to the broker.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def token_source(options: KafkaOptions) -> TokenSource | None:
    """The source of tokens for these options, one for the process; None where a login needs no token.

    Raises:
        MissingExtraError: tokens come from a token endpoint, and the packages for that are missing.
    """
    if options.sasl_mechanism != "OAUTHBEARER":
        return None
    if options.oauth_cb is not None:
        given = options.oauth_cb
        ask = partial(_call, given.function, options.oauth_config or "")
        return shared_source(("function", given.key, options.oauth_config), ask)
    # Authlib is for those who need it.
    from spark_2pc_sink.logins.oidc import TokenEndpoint  # noqa: PLC0415

    credentials = (
        options.oauth_token_url,
        options.oauth_client_id,
        options.oauth_client_secret,
        options.oauth_scope,
        options.oauth_extensions,
        options.https_ca_location,
    )
    return shared_source(("endpoint", *credentials), TokenEndpoint(options).ask)


def confluent_callback(source: TokenSource) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    """A token source as confluent-kafka's ``oauth_cb``. Of a token without an expiry the client asks again soon."""

    def oauth_cb(_config: str) -> tuple[str, float, str, dict[str, str]]:
        token = source.token()
        expires_at_s = time.time() + _ASKED_AGAIN_S if token.expires_at_s is None else token.expires_at_s
        return token.value, expires_at_s, "", dict(token.extensions)

    return oauth_cb


class BrokerTokens(AbstractTokenProvider):
    """A token source as kafka-python asks for tokens: at each login, and again before a session ends.

    Args:
        source: of the tokens.
    """

    def __init__(self, source: TokenSource) -> None:
        super().__init__()
        self._source = source
        self._shown: Token | None = None

    def token(self) -> str:
        """The token for a login that begins now.

        Raises:
            TokenUnavailableError, AuthorizationError, ConfigurationError: see `TokenSource.token`.
        """
        self._shown = self._source.token()
        return self._shown.value

    def extensions(self) -> dict[str, str]:
        """The SASL extensions that go with the token of `token` (KIP-342)."""
        return {} if self._shown is None else dict(self._shown.extensions)

    def refused(self) -> bool:
        """A broker refused what was shown: it is not shown again.

        Returns:
            Whether a new token may be let in, see `TokenSource.forget`.
        """
        return self._shown is not None and self._source.forget(self._shown)


def _call(function: Callable[[str], Any], config: str) -> Token:
    """A token from the user's function.

    Raises:
        TokenUnavailableError: the function failed; what failed once may not fail again.
        ConfigurationError: it returned something else than a token.
    """
    try:
        returned = function(config)
    except ConfigurationError:
        raise
    except Exception as error:
        raise TokenUnavailableError(f"oauth_cb failed with {type(error).__name__}: {error}") from error
    parts = returned if isinstance(returned, (tuple, list)) else ()
    if not _PARTS_MIN <= len(parts) <= _PARTS_MAX or not isinstance(parts[0], str) or not _TOKEN.fullmatch(parts[0]):
        raise _returned_wrong("a token of letters, digits and -._~+/= with its expiry behind it")
    if isinstance(parts[1], bool) or not isinstance(parts[1], (int, float)):
        raise _returned_wrong("an expiry that is a number of seconds since 1970")
    extensions = parts[3] if len(parts) == _PARTS_MAX else {}
    if not isinstance(extensions, Mapping):
        raise _returned_wrong("extensions that are a mapping of texts")
    texts = {str(name): str(value) for name, value in extensions.items()}
    check_extensions(texts, option="oauth_cb")
    return Token(parts[0], float(parts[1]), texts)


def _returned_wrong(wanted: str) -> ConfigurationError:
    return ConfigurationError(
        option="oauth_cb",
        value=HIDDEN,
        rule=f"it returned something else than {wanted}",
        remedy="return (token, expiry in seconds since 1970), and after these a principal and a mapping of extensions",
    )
