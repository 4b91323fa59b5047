"""Server-side SASL (KIP-43, KIP-152): the messages that a connection may send before it has logged in.

The order is Kafka's: at most one ApiVersions, then SaslHandshake, then SaslAuthenticate with the messages of the
mechanism, one for PLAIN and two for SCRAM. Anything else ends the connection. There is no clock and no socket here.
SaslHandshake v0, after which messages are bare frames, is not offered: clients have had v1 since Kafka 1.0.

For SCRAM (RFC 5802, RFC 7677) the checks, their order and messages are those of Kafka's ScramSaslServer, so an unknown
user is refused at the first message, which reveals whether a user exists.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.config.properties import PLAIN, Users
from spark_2pc_sink.reference.protocol import ApiRequest, Reply, RequestContext, serves, write_response
from spark_2pc_sink.wire.api_versions import Api


class SaslRefusedError(Exception):
    """The login is refused, with Kafka's message for the client, and more detail for the log only."""

    def __init__(self, client_message: str, reason: str | None = None) -> None:
        super().__init__(client_message)
        self.client_message = client_message
        self.log_message: str = client_message if reason is None else f"{client_message} ({reason})"


_REFUSED: Final = "Authentication failed: Invalid username or password"
_OTHER_ID: Final = "Authentication failed: Client requested an authorization id that is different from username"


def evaluate_plain(users: Users, message: bytes) -> tuple[bytes, str | None]:
    """Answer the one message of a PLAIN login: the reply, and the user's name."""
    parts = message.split(b"\x00")
    if len(parts) != 3:  # noqa: PLR2004 - authorization id, user name, password
        raise SaslRefusedError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    try:
        authorization_id, user, password = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise SaslRefusedError(_REFUSED) from None
    if not user or not password:
        raise SaslRefusedError(f"Authentication failed: {'password' if user else 'username'} not specified")
    # Compared for unknown users too, so that timing does not reveal whether a user exists; no password is empty.
    if not hmac.compare_digest(users.passwords.get(user, "").encode(), password.encode()):
        raise SaslRefusedError(_REFUSED)
    if authorization_id not in {"", user}:
        raise SaslRefusedError(_OTHER_ID)
    return b"", user


#: The hash function of each mechanism, by hashlib's name.
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Kafka's minimum for both mechanisms. Making a credential takes some milliseconds, which blocks other connections.
ITERATIONS: Final = 4096
_SALT_BYTES: Final = 16
#: Cached credentials; one that was evicted is made again, with another salt.
_CREDENTIALS_MAX: Final = 1_024
#: RFC 5802, section 7. The optional parts between name, nonce and proof are extensions, which Kafka also ignores.
_CLIENT_FIRST: Final = re.compile(
    r"(?P<header>n,(?:a=(?P<authorization_id>[^,]+))?,)"
    r"(?P<bare>(?:m=[^,]+,)?n=(?P<user>(?:[^=,]|=2C|=3D)+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,]+)*)"
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<without_proof>c=(?P<channel>[A-Za-z0-9+/]+={0,2}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)


class _Credential(NamedTuple):
    """The server's stored form of a password (RFC 5802, section 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes


class _FirstMessages(NamedTuple):
    user: str
    credential: _Credential
    channel: bytes
    nonce: str
    messages: str


class ScramExchange:
    def __init__(self, users: Users, mechanism: str) -> None:
        self._users = users
        self._mechanism, self._hash = mechanism, _HASHES[mechanism]
        self._first: _FirstMessages | None = None

    def evaluate(self, message: bytes) -> tuple[bytes, str | None]:
        """Answer one client message: the reply, and the user's name once the exchange is complete."""
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise self._refused("a message is not UTF-8") from None
        if self._first is None:
            return self._evaluate_first(text), None
        return self._evaluate_final(text, self._first), self._first.user

    def _evaluate_first(self, text: str) -> bytes:
        if (found := _CLIENT_FIRST.fullmatch(text)) is None:
            raise self._refused("malformed first message")
        user = found["user"].replace("=2C", ",").replace("=3D", "=")
        if (password := self._users.passwords.get(user)) is None:
            raise self._refused("unknown user")
        if found["authorization_id"] not in {None, found["user"]}:
            raise SaslRefusedError(_OTHER_ID)
        credential = _credential(self._mechanism, user, password)
        nonce = found["nonce"] + secrets.token_hex(_SALT_BYTES)
        answer = f"r={nonce},s={base64.b64encode(credential.salt).decode()},i={ITERATIONS}"
        self._first = _FirstMessages(user, credential, found["header"].encode(), nonce, f"{found['bare']},{answer}")
        return answer.encode()

    def _evaluate_final(self, text: str, first: _FirstMessages) -> bytes:
        if (found := _CLIENT_FINAL.fullmatch(text)) is None:
            raise self._refused("malformed second message")
        try:
            channel, proof = (base64.b64decode(found[name], validate=True) for name in ("channel", "proof"))
        except binascii.Error:
            raise self._refused("malformed second message") from None
        if found["nonce"] != first.nonce or channel != first.channel:
            raise self._refused("the second message does not continue the first")
        authenticated = f"{first.messages},{found['without_proof']}".encode()
        client_signature = hmac.digest(first.credential.stored_key, authenticated, self._hash)
        if len(proof) != len(client_signature):
            raise self._refused("the proof has the wrong length")
        client_key = bytes(one ^ other for one, other in zip(proof, client_signature, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if not hmac.compare_digest(stored_key, first.credential.stored_key):
            raise self._refused("the password does not match")
        return b"v=" + base64.b64encode(hmac.digest(first.credential.server_key, authenticated, self._hash))

    def _refused(self, reason: str) -> SaslRefusedError:
        """As in Kafka's SaslServerAuthenticator, the client gets no more detail (KIP-152)."""
        text = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        return SaslRefusedError(f"{text} {self._mechanism}", reason)


@lru_cache(maxsize=_CREDENTIALS_MAX)
def _credential(mechanism: str, _user: str, password: str) -> _Credential:
    name, salt = _HASHES[mechanism], secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, ITERATIONS)
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return _Credential(salt, stored_key, hmac.digest(salted, b"Server Key", name))


class Login:
    def __init__(self, users: Users, mechanisms: tuple[str, ...]) -> None:
        self._users = users
        self._mechanisms = list(mechanisms)
        self._evaluate: Callable[[bytes], tuple[bytes, str | None]] = partial(evaluate_plain, users)
        self._expected: tuple[Api, ...] = (Api.API_VERSIONS, Api.SASL_HANDSHAKE)

    def api_versions_requested(self) -> None:
        self._check(Api.API_VERSIONS)
        self._expected = (Api.SASL_HANDSHAKE,)

    def request(self, api: Api, request: ApiRequest) -> tuple[Reply, str | None, str | None]:
        """The reply to one frame, the principal once logged in, and why the connection must end after the reply."""
        self._check(api)
        head = request.head
        user = refused = None
        response: Any
        if api is Api.SASL_HANDSHAKE:
            response, refused = self._handshake(request.body.mechanism)
        else:
            try:
                answer, user = self._evaluate(request.body.auth_bytes)
                response = SaslAuthenticateResponse(error_message=None, auth_bytes=answer)
            except SaslRefusedError as error:
                refused, code = error.log_message, Code.SASL_AUTHENTICATION_FAILED
                response = SaslAuthenticateResponse(error_code=code, error_message=error.client_message)
        reply = write_response(response, head.correlation_id, version=head.version)
        return reply, None if user is None else f"User:{user}", refused

    def _handshake(self, mechanism: str) -> tuple[Any, str | None]:
        response = SaslHandshakeResponse(error_code=Code.NONE, mechanisms=self._mechanisms)
        if mechanism not in self._mechanisms:
            response.error_code = Code.UNSUPPORTED_SASL_MECHANISM
            return response, f"the mechanism {mechanism!r} is not enabled"
        if mechanism != PLAIN:
            self._evaluate = ScramExchange(self._users, mechanism).evaluate
        self._expected = (Api.SASL_AUTHENTICATE,)
        return response, None

    def _check(self, api: Api) -> None:
        if api not in self._expected:
            expected = " or ".join(each.name for each in self._expected)
            raise RemoteProtocolError(peer="the client", detail=f"{api.name} before the login; expected {expected}")


class SaslHandlers:
    """SaslHandshake and SaslAuthenticate on a connection that needs no login, or has logged in: ILLEGAL_SASL_STATE."""

    @serves(Api.SASL_HANDSHAKE, 1, 1)
    async def handshake(self, _context: RequestContext, _request: Any) -> Any:
        return SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE)

    @serves(Api.SASL_AUTHENTICATE, 0, 2)
    async def authenticate(self, _context: RequestContext, _request: Any) -> Any:
        message = "SaslAuthenticate request received after successful authentication"
        return SaslAuthenticateResponse(error_code=Code.ILLEGAL_SASL_STATE, error_message=message)
