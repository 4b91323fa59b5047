"""Tokens of a token endpoint: the client credentials grant of OAuth 2.0, by Authlib (KIP-768)."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.causes import causes
from spark_2pc_sink.errors import AuthorizationError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.logins.tokens import Token, TokenUnavailableError

with extra("oidc"):
    import requests
    from authlib.common.errors import AuthlibBaseError
    from authlib.integrations.requests_client import OAuth2Session
    from requests.adapters import HTTPAdapter
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from spark_2pc_sink.options import KafkaOptions

#: For the connection to the endpoint, and for each part of its answer. Other connections of the caller wait meanwhile.
TIMEOUT_S: Final = 5


class _QuietConnection(HTTPConnection):
    #: A program may set it on ``http.client`` for all: it prints each request, the client's credentials among them.
    debuglevel = 0


class _QuietTlsConnection(HTTPSConnection):
    debuglevel = 0


class _QuietPool(HTTPConnectionPool):
    ConnectionCls = _QuietConnection


class _QuietTlsPool(HTTPSConnectionPool):
    ConnectionCls = _QuietTlsConnection


class _QuietAdapter(HTTPAdapter):
    """Makes connections that print nothing."""

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        """As its own, with pools of such connections."""
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = {"http": _QuietPool, "https": _QuietTlsPool}


class TokenEndpoint:
    """Asks a token endpoint with the client's credentials.

    Args:
        options: that have been checked.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._url = str(options.oauth_token_url)
        self._client_id = str(options.oauth_client_id)
        self._client_secret = str(options.oauth_client_secret)
        self._scope = options.oauth_scope
        self._extensions = options.sasl_extensions
        self._trusted = options.https_ca_location or True

    def ask(self) -> Token:
        """A new token.

        Raises:
            TokenUnavailableError: no answer, or one that another attempt may change.
            AuthorizationError: the endpoint refused the credentials, or answered something else than a token. The code
                is the HTTP status; 0 where its certificate is not trusted.
        """
        statuses: list[HTTPStatus] = []
        try:
            answer = self._answer(statuses)
        except (requests.RequestException, OSError, AuthlibBaseError, ValueError) as error:
            self._check_trusted(error)
            if not statuses or _may_pass(statuses[-1]):
                raise TokenUnavailableError(f"the token endpoint {self._url} cannot be asked: {error}") from error
            raise self._refused(statuses, str(error)) from error
        value, lasts_s = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(value, str) or not value:
            raise self._refused(statuses, "the answer has no access_token")
        expires_at_s = None if lasts_s is None else time.time() + float(lasts_s)
        return Token(value, expires_at_s, self._extensions)

    def _answer(self, statuses: list[HTTPStatus]) -> Mapping[str, Any]:
        """The parsed answer; its status is appended to ``statuses``."""

        def checked(response: requests.Response) -> requests.Response:
            statuses.append(HTTPStatus(response.status_code))
            if _may_pass(statuses[-1]):
                response.raise_for_status()
            return response

        # By its default the client's credentials go into the header Authorization: client_secret_basic.
        with OAuth2Session(self._client_id, self._client_secret, scope=self._scope) as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, _QuietAdapter())
            session.register_compliance_hook("access_token_response", checked)
            answer: Mapping[str, Any] = session.fetch_token(
                self._url,
                grant_type="client_credentials",
                timeout=TIMEOUT_S,
                verify=self._trusted,
                # A redirection would carry the credentials to somebody else.
                allow_redirects=False,
            )
        return answer

    def _check_trusted(self, error: Exception) -> None:
        """Raise where the endpoint's certificate is not trusted, which no repetition changes."""
        found = next((each for each in causes(error) if isinstance(each, ssl.SSLCertVerificationError)), None)
        if found is None:
            return
        trusted = "the system's" if self._trusted is True else f"those in https.ca.location={self._trusted}"
        raise AuthorizationError(
            api=f"the token endpoint {self._url}",
            code=0,
            name="CERTIFICATE_VERIFY_FAILED",
            detail=f"its certificate is refused ({found.verify_message}), and the trusted ones are {trusted}. Set "
            "https.ca.location to a PEM file with the certificate of its issuer",
        ) from None

    def _refused(self, statuses: list[HTTPStatus], detail: str) -> AuthorizationError:
        status = statuses[-1]
        return AuthorizationError(
            api=f"the token endpoint {self._url}",
            code=status.value,
            name=status.phrase,
            detail=f"client {self._client_id!r} gets no token: {detail}",
        )


def _may_pass(status: HTTPStatus) -> bool:
    """Whether another attempt may be answered otherwise; what else is not a token is a refusal."""
    busy = status in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
    return busy or status >= HTTPStatus.INTERNAL_SERVER_ERROR
