"""A token, and the source that keeps one for all connections of a process until it is renewed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from jdbc_state.sink_log import sink_log

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
