"""SASL on the server's side (KIP-43, KIP-152): what a connection may say before it has logged in.

The order is Kafka's: at most one ApiVersions, then SaslHandshake, then the messages of the mechanism, one for PLAIN and
two for SCRAM: as SaslAuthenticate after a handshake of version 1, as bare frames after one of version 0. Anything else
ends the connection. The machine has no clock and no socket; its `Step` says what to send, and what then.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.config.listeners import PLAIN, Users
from spark_2pc_sink.reference.network.exchange import Exchange, LoginRefusedError
from spark_2pc_sink.reference.network.plain import PlainExchange
from spark_2pc_sink.reference.network.scram import ScramExchange
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.protocol.codec import Request, write_response

HANDSHAKE_VERSIONS: Final = (0, 1)
AUTHENTICATE_VERSIONS: Final = (0, 2)
#: From this version of the handshake on the messages of the mechanism are Kafka requests.
_WRAPPED_VERSION: Final = 1


class Expect(Enum):
    """What may come next."""

    VERSIONS_OR_HANDSHAKE = "ApiVersions or SaslHandshake"
    HANDSHAKE = "SaslHandshake"
    WRAPPED = "SaslAuthenticate"
    BARE = "a message of the mechanism"
    NOTHING = "nothing"


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
        mechanisms: how, in the order in which clients are told.
    """

    def __init__(self, users: Users, mechanisms: tuple[str, ...]) -> None:
        self._users = users
        self._mechanisms = mechanisms
        self._exchange: Exchange = PlainExchange(users)
        self.expect: Expect = Expect.VERSIONS_OR_HANDSHAKE

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
        """What follows from a message that is no Kafka request; a wrong one has no answer, as in Kafka."""
        try:
            answer, principal = self._evaluate(bytes(frame))
        except LoginRefusedError as error:
            return Step(None, refused=error.logged)
        return Step((struct.pack(">i", len(answer)), answer), principal=principal)

    def _handshake(self, request: Request) -> Step:
        mechanism, head = request.body.mechanism, request.head
        known = mechanism in self._mechanisms
        code = Code.NONE if known else Code.UNSUPPORTED_SASL_MECHANISM
        response = SaslHandshakeResponse(error_code=code, mechanisms=list(self._mechanisms))
        reply = write_response(response, head.correlation_id, version=head.version)
        if not known:
            self.expect = Expect.NOTHING
            return Step(reply, refused=f"the mechanism {mechanism!r} is not enabled")
        self._exchange = PlainExchange(self._users) if mechanism == PLAIN else ScramExchange(self._users, mechanism)
        self.expect = Expect.WRAPPED if head.version >= _WRAPPED_VERSION else Expect.BARE
        return Step(reply)

    def _authenticate(self, request: Request) -> Step:
        head = request.head
        try:
            answer, principal = self._evaluate(request.body.auth_bytes)
        except LoginRefusedError as error:
            response = _authenticated(Code.SASL_AUTHENTICATION_FAILED, error.told)
            return Step(write_response(response, head.correlation_id, version=head.version), refused=error.logged)
        response = _authenticated(Code.NONE, None, answer)
        return Step(write_response(response, head.correlation_id, version=head.version), principal=principal)

    def _evaluate(self, message: bytes) -> tuple[bytes, str | None]:
        """The mechanism's answer, and who has logged in, if anybody has; after the last message comes nothing more."""
        expected, self.expect = self.expect, Expect.NOTHING
        answer, user = self._exchange.evaluate(message)
        if user is None:
            self.expect = expected
        return answer, None if user is None else f"User:{user}"

    def _unexpected(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            peer="the client", detail=f"{what} before the login, where {self.expect.value} is expected"
        )


def _authenticated(code: Code, message: str | None, answer: bytes = b"") -> Any:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=answer, session_lifetime_ms=0)


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
