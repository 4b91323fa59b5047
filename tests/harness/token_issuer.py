"""A token issuer for tests: a token endpoint (OAuth 2.0, client credentials) and its JWKS, over HTTP on 127.0.0.1."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

from spark_2pc_sink.testing import KafkaBroker, free_port
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM
from spark_2pc_sink.testing.processes import Lifetime
from tests.harness.secure_kafka import add_listener

ISSUER, AUDIENCE = "https://issuer.test", "kafka"
#: The second half stands as it is in every quotation.
SECRET_PART = "planted-for-the-issuer"
CLIENT_ID, CLIENT_SECRET = "orders", f"s3cr%t/+:{SECRET_PART}"
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer"


class TokenIssuer:
    """Issues signed tokens to one client for as long as its ``with`` block lasts.

    Args:
        tls: of the server; None for plain HTTP.

    Attributes:
        lifetime_s: of the tokens that are issued from now on.
        failing: an answer in place of tokens: status and body; None: tokens.
        asked: the form and the headers of the newest request.
    """

    def __init__(self, *, lifetime_s: float = 3_600, tls: ssl.SSLContext | None = None) -> None:
        self._scheme = "http" if tls is None else "https"
        self.lifetime_s = lifetime_s
        self.audience = AUDIENCE
        self.issued = 0
        self.failing: tuple[HTTPStatus, str] | None = None
        self.asked: tuple[dict[str, list[str]], dict[str, str]] = ({}, {})
        self._key = RSAKey.generate_key(2048, parameters={"kid": "one", "use": "sig", "alg": "RS256"})
        self.port = free_port()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> TokenIssuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def token_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/token"

    @property
    def jwks_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/jwks"

    def token(self, subject: str = CLIENT_ID) -> tuple[str, float]:
        """A new token, and when it expires in seconds since 1970."""
        self.issued += 1
        now_s = time.time()
        claims = {"iss": ISSUER, "aud": self.audience, "sub": subject, "iat": now_s, "exp": now_s + self.lifetime_s}
        header = {"alg": "RS256", "kid": "one"}
        return jwt.encode(header, {**claims, "scope": "kafka"}, self._key), now_s + self.lifetime_s

    def client(self, **changes: str) -> dict[str, str]:
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.token_url,
            "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            **changes,
        }

    def broker_properties(self, listener: str) -> dict[str, str]:
        """Properties of a broker that lets in who has a token from here, at a listener."""
        of_listener = f"listener.name.{listener.lower()}.oauthbearer.sasl"
        return {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{of_listener}.jaas.config": f"{_VALIDATOR}.OAuthBearerLoginModule required;",
            f"{of_listener}.server.callback.handler.class": f"{_VALIDATOR}.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": self.jwks_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            # Half a minute unless set, for which an expired token would pass.
            "sasl.oauthbearer.clock.skew.seconds": "0",
        }

    @property
    def broker_jvm_option(self) -> str:
        """Lets the broker's virtual machine ask here (Kafka 3.9.1 and later)."""
        return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks_url},{self.token_url}"

    def answer(self, path: str, form: dict[str, list[str]], headers: dict[str, str]) -> tuple[HTTPStatus, str]:
        if path == "/jwks":
            return HTTPStatus.OK, json.dumps({"keys": [self._key.as_dict(private=False)]})
        self.asked = (form, headers)
        if self.failing is not None:
            return self.failing
        expected = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if headers.get("Authorization") != f"Basic {expected}" or form.get("grant_type") != ["client_credentials"]:
            refusal = {"error": "invalid_client", "error_description": "who are you?"}
            return HTTPStatus.UNAUTHORIZED, json.dumps(refusal)
        value, _ = self.token()
        answer = {"access_token": value, "token_type": "Bearer", "expires_in": self.lifetime_s, "scope": "kafka"}
        return HTTPStatus.OK, json.dumps(answer)


def _handler(issuer: TokenIssuer) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(*issuer.answer(self.path, {}, dict(self.headers)))

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            form = parse_qs(self.rfile.read(length).decode())
            self._reply(*issuer.answer(self.path, form, dict(self.headers)))

        def _reply(self, status: HTTPStatus, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its own
            del format, args

    return Handler


LISTENER = "TOKENS"


class TokenBroker(Lifetime):
    """A broker with two listeners: one asks for nothing, the other one for a token.

    Attributes:
        bootstrap: address of the listener that asks for nothing.
        tokens_address: address of the listener that asks for tokens.
    """

    def __init__(self) -> None:
        self.issuer = TokenIssuer()
        self.broker = KafkaBroker(two_phase_commit=True, jvm_options=(*QUICK_START_JVM, self.issuer.broker_jvm_option))
        self.bootstrap = self.broker.bootstrap
        self.tokens_address = add_listener(self.broker, LISTENER)
        self.broker.properties |= self.issuer.broker_properties(LISTENER)

    def start(self) -> None:
        self.issuer.__enter__()
        self.broker.start()

    def close(self) -> None:
        self.broker.close()
        self.issuer.__exit__()

    def create_topic(self, name: str, *, partitions: int = 1) -> str:
        return self.broker.create_topic(name, partitions=partitions)

    def client_properties(self, oauth_cb: Callable[[str], Any] | None = None) -> dict[str, Any]:
        """Kafka properties of a client, which gets tokens from the issuer's endpoint or from a function."""
        login = self.issuer.client() if oauth_cb is None else {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": oauth_cb}
        return {"bootstrap.servers": self.tokens_address, "security.protocol": "SASL_PLAINTEXT", **login}
