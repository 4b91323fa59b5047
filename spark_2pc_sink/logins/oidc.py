"""Tokens from a token endpoint: the OAuth 2.0 client credentials grant, with Authlib (KIP-768)."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

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

from spark_2pc_sink.options import KafkaOptions

#: Limit for connecting, and for each read. The caller's other connections wait in the meantime.
TIMEOUT_S: Final = 5


def _quiet(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
    # A program may set it globally on ``http.client``: it prints each request, including the client's credentials.
    connection = type("QuietConnection", (pool.ConnectionCls,), {"debuglevel": 0})
    return type("QuietPool", (pool,), {"ConnectionCls": connection})


class _QuietAdapter(HTTPAdapter):
    """Makes connections without debug output."""

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = {
            "http": _quiet(HTTPConnectionPool),
            "https": _quiet(HTTPSConnectionPool),
        }


class TokenEndpoint:
    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._url = options.oauth_token_url
        self._trusted = options.https_ca_location or True

    def ask(self) -> Token:
        """Request a token. The code of an AuthorizationError is the HTTP status, or 0 for an untrusted certificate."""
        statuses: list[HTTPStatus] = []
        try:
            answer = self._answer(statuses)
        except (requests.RequestException, OSError, AuthlibBaseError, ValueError) as error:
            self._check_trusted(error)
            if not statuses or _is_temporary(statuses[-1]):
                raise TokenUnavailableError(f"the request to the token endpoint {self._url} failed: {error}") from error
            raise self._refused(statuses, str(error)) from error
        value, lasts_s = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(value, str) or not value:
            raise self._refused(statuses, "the answer contains no access_token")
        expires_at_s = None if lasts_s is None else time.time() + float(lasts_s)
        return Token(value, expires_at_s, self._options.sasl_extensions)

    def _answer(self, statuses: list[HTTPStatus]) -> Mapping[str, Any]:
        """The parsed answer; its status is appended to ``statuses``."""

        def checked(response: requests.Response) -> requests.Response:
            statuses.append(HTTPStatus(response.status_code))
            if _is_temporary(statuses[-1]):
                response.raise_for_status()
            return response

        options = self._options
        # By default the client's credentials are in the header Authorization: client_secret_basic.
        with OAuth2Session(options.oauth_client_id, options.oauth_client_secret, scope=options.oauth_scope) as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, _QuietAdapter())
            session.register_compliance_hook("access_token_response", checked)
            answer: Mapping[str, Any] = session.fetch_token(
                self._url,
                grant_type="client_credentials",
                timeout=TIMEOUT_S,
                verify=self._trusted,
                # A redirect would send the credentials to another host.
                allow_redirects=False,
            )
        return answer

    def _check_trusted(self, error: Exception) -> None:
        """Raise if the endpoint's certificate is not trusted, which is permanent."""
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
            detail=f"client {self._options.oauth_client_id!r} was refused a token: {detail}",
        )


def _is_temporary(status: HTTPStatus) -> bool:
    """Whether a retry may give another answer; any other status without a token is a refusal."""
    busy = status in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
    return busy or status >= HTTPStatus.INTERNAL_SERVER_ERROR
