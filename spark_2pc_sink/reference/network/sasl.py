"""SASL/PLAIN on the server's side (KIP-43, KIP-152): what a connection may say before it has logged in.

The order is Kafka's: at most one ApiVersions, then SaslHandshake, then one PLAIN message (RFC 4616): SaslAuthenticate
after a handshake of version 1, a bare frame after one of version 0. Anything else ends the connection. The machine
has no clock and no socket; its `Step` says what to send, and what then.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.config.listeners import PlainUsers
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.protocol.codec import Request, write_response

#: ``sasl.enabled.mechanisms``.
MECHANISMS: Final = ("PLAIN",)
HANDSHAKE_VERSIONS: Final = (0, 1)
AUTHENTICATE_VERSIONS: Final = (0, 2)
#: From this version of the handshake on the messages of the mechanism are Kafka requests.
_WRAPPED_VERSION: Final = 1
#: The reply to a bare PLAIN message: an empty frame.
_BARE_DONE: Final = (b"\x00\x00\x00\x00", b"")
_REFUSED: Final = "Authentication failed: Invalid username or password"


class Expect(Enum):
    """What may come next."""

    VERSIONS_OR_HANDSHAKE = "ApiVersions or SaslHandshake"
    HANDSHAKE = "SaslHandshake"
    WRAPPED = "SaslAuthenticate"
    BARE = "a PLAIN message"
    NOTHING = "nothing"


class _LoginError(Exception):
    """The client may not come in.

    Args:
        detail: for the log; also for the client, where it is told.
    """


@dataclass(frozen=True)
class Step:
    """What follows from one frame.

    Args:
        reply: to send, or None.
        principal: who has logged in, or None while nobody has.
        refused: why the connection ends after the reply, which waits for
            ``connection.failed.authentication.delay.ms``; or None.
    """

    reply: tuple[bytes, bytes | bytearray] | None
    principal: str | None = None
    refused: str | None = None


class Login:
    """The login of one connection.

    Args:
        users: who may log in.
    """

    def __init__(self, users: PlainUsers) -> None:
        self._users = users
        self.expect = Expect.VERSIONS_OR_HANDSHAKE

    @property
    def takes_bare_frames(self) -> bool:
        """True where the next frame is no Kafka request."""
        return self.expect is Expect.BARE

    def versions_asked(self) -> None:
        """An ApiVersions request came; its answer is the same as ever.

        Raises:
            RemoteProtocolError: it came at the wrong time.
        """
        if self.expect is not Expect.VERSIONS_OR_HANDSHAKE:
            raise self._unexpected("ApiVersions")
        self.expect = Expect.HANDSHAKE

    def request(self, api: Api, request: Request) -> Step:
        """What follows from a request other than ApiVersions.

        Raises:
            RemoteProtocolError: it came at the wrong time; there is no answer.
        """
        if api is Api.SASL_HANDSHAKE and self.expect in {Expect.VERSIONS_OR_HANDSHAKE, Expect.HANDSHAKE}:
            return self._handshake(request)
        if api is Api.SASL_AUTHENTICATE and self.expect is Expect.WRAPPED:
            return self._authenticate(request)
        raise self._unexpected(api.name)

    def bare_frame(self, frame: bytes | bytearray) -> Step:
        """What follows from a PLAIN message that is no Kafka request; a wrong one has no answer, as in Kafka."""
        self.expect = Expect.NOTHING
        try:
            return Step(_BARE_DONE, principal=self._principal(bytes(frame)))
        except _LoginError as error:
            return Step(None, refused=str(error))

    def _handshake(self, request: Request) -> Step:
        mechanism, head = request.body.mechanism, request.head
        known = mechanism in MECHANISMS
        code = Code.NONE if known else Code.UNSUPPORTED_SASL_MECHANISM
        response = SaslHandshakeResponse(error_code=code, mechanisms=list(MECHANISMS))
        reply = write_response(response, head.correlation_id, version=head.version)
        if not known:
            self.expect = Expect.NOTHING
            return Step(reply, refused=f"the mechanism {mechanism!r} is not enabled")
        self.expect = Expect.WRAPPED if head.version >= _WRAPPED_VERSION else Expect.BARE
        return Step(reply)

    def _authenticate(self, request: Request) -> Step:
        self.expect = Expect.NOTHING
        head = request.head
        try:
            principal = self._principal(request.body.auth_bytes)
        except _LoginError as error:
            response = _authenticated(Code.SASL_AUTHENTICATION_FAILED, str(error))
            return Step(write_response(response, head.correlation_id, version=head.version), refused=str(error))
        response = _authenticated(Code.NONE, None)
        return Step(write_response(response, head.correlation_id, version=head.version), principal=principal)

    def _principal(self, message: bytes) -> str:
        """Who a PLAIN message proves to be; the texts are those of Kafka's PlainSaslServer."""
        parts = message.split(b"\x00")
        if len(parts) != 3:  # noqa: PLR2004 - authorization id, user name, password
            raise _LoginError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        try:
            authorization_id, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise _LoginError(_REFUSED) from None
        if not user or not password:
            raise _LoginError(f"Authentication failed: {'password' if user else 'username'} not specified")
        # Compared for unknown users too, so that the time does not tell who exists; no password is empty.
        expected = self._users.passwords.get(user, "")
        if not hmac.compare_digest(expected.encode(), password.encode()):
            raise _LoginError(_REFUSED)
        if authorization_id not in {"", user}:
            detail = "Client requested an authorization id that is different from username"
            raise _LoginError(f"Authentication failed: {detail}")
        return f"User:{user}"

    def _unexpected(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            peer="the client", detail=f"{what} before the login, where {self.expect.value} is expected"
        )


def _authenticated(code: Code, message: str | None) -> Any:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"", session_lifetime_ms=0)


class SaslHandlers:
    """SaslHandshake and SaslAuthenticate of a connection that needs no login, or is past it: ILLEGAL_SASL_STATE."""

    def handlers(self) -> Handlers:
        """The family's APIs."""
        return {
            Api.SASL_HANDSHAKE: Handler(*HANDSHAKE_VERSIONS, self.handshake),
            Api.SASL_AUTHENTICATE: Handler(*AUTHENTICATE_VERSIONS, self.authenticate),
        }

    async def handshake(self, _context: RequestContext, _request: Any) -> Any:
        """Refuse: as KafkaApis.handleSaslHandshakeRequest."""
        return SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE, mechanisms=[])

    async def authenticate(self, _context: RequestContext, _request: Any) -> Any:
        """Refuse: as KafkaApis.handleSaslAuthenticateRequest."""
        message = "SaslAuthenticate request received after successful authentication"
        return _authenticated(Code.ILLEGAL_SASL_STATE, message)
