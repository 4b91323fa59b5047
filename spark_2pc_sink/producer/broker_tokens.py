"""Tokens for kafka-python, which asks for one at each login, and again before the session of a connection ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.logins.tokens import Token, TokenSource

if TYPE_CHECKING:  # kafka-python has no type information, and its class only says what stands here.
    AbstractTokenProvider = object
else:
    from kafka.net.sasl.oauth import AbstractTokenProvider


class BrokerTokens(AbstractTokenProvider):
    """The tokens that the connections of one process show, of a source that others may use too.

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
