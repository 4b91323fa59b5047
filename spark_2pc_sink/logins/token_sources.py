"""The token source for the user's Kafka properties, and a token in the forms of the two Kafka libraries."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.logins.tokens import Token, TokenSource, TokenUnavailableError, shared_source
from spark_2pc_sink.options.kafka_oauth import check_extensions
from spark_2pc_sink.options.settings import HIDDEN

if TYPE_CHECKING:  # kafka-python has no type information, and its class only says what stands here.
    from spark_2pc_sink.options import KafkaOptions

    AbstractTokenProvider = object
else:
    from kafka.net.sasl.oauth import AbstractTokenProvider

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
