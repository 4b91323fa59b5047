"""One connection to a broker: addresses, TCP, TLS, login and requests, on a non-blocking socket.

A connection never waits. Its driver (`spark_2pc_sink.kafka.broker_connections`) polls `Connection.fileno` for
`Connection.wanted` until `Connection.wake_s`, and then calls `Connection.advance`. Requests can be pipelined in any
number, and answers arrive in the same order.

Opening connects to each address of the host in turn, each with an equal share of the time, so that one that drops
packets does not keep the others from being tried (KIP-302). Then it negotiates TLS, requests ApiVersions, and logs in
(KIP-152). Before the broker ends the session it logs in again (KIP-368).
"""

from __future__ import annotations

import errno
import random
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias

from kafka.net.sasl import get_sasl_mechanism

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.logins.tokens import BrokerTokens
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.framed_request import FramedRequest
from spark_2pc_sink.wire.messages import KafkaResponse, describe_error

API_VERSIONS: Final = messages.api_versions_request("spark-2pc-sink")
#: Its version, and that of requests for a login: brokers since 2.4 support them, and older ones are unsupported.
API_VERSIONS_VERSION: Final = 3
SASL_VERSION: Final = 1
#: Bytes per read. Most answers are far smaller.
_READ_BYTES: Final = 256 * 1024
#: A message's length prefix.
_LENGTH: Final = struct.Struct(">i")
_CORRELATION_BYTES: Final = 4
#: The start of a TLS alert (RFC 8446, section 5.1), Kafka's answer to bytes that are not TLS. As the length of
#: a Kafka answer it would be 352 MB.
_TLS_ALERT: Final = b"\x15\x03"
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_CONNECTING: Final = frozenset({errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK})
#: A new login begins at a random part of the session in this range, to spread the load of many clients.
_SESSION_PART: Final = (0.85, 0.95)
_SESSION_S_MIN: Final = 1.0
#: Events to poll for, yielded to the driver of an opening connection; it sends back the events that occurred.
_Steps: TypeAlias = "Generator[int, int | None, None]"


class TlsFailedError(OSError):
    """TLS with a peer has failed; OpenSSL's error is None if the peer speaks TLS, and this connection does not."""

    def __init__(self, error: ssl.SSLError | None) -> None:
        super().__init__("the peer uses TLS" if error is None else str(error))
        self.error = error


class LoginRefusedError(Exception):
    def __init__(self, api: str, code: int, said: str) -> None:
        super().__init__(said)
        self.api = api
        self.code = code


@dataclass(eq=False)
class SentRequest:
    """A request in flight."""

    request: FramedRequest
    correlation_id: int
    #: When the connection is closed without an answer, on the monotonic clock.
    due_s: float
    is_done: bool = False
    value: KafkaResponse = None
    #: Why there is no answer; the broker may have acted on the request.
    exception: BaseException | None = None


class Connection:
    """One connection; construction begins to connect.

    Attributes:
        opened: whether it is, or was, open.
        answered: whether the broker has answered a request that requires a completed login.
        versions: the ApiVersions answer from opening it, until it is taken.
    """

    def __init__(
        self,
        address: tuple[str, int],
        options: KafkaOptions,
        tls: ssl.SSLContext | None,
        tokens: BrokerTokens | None = None,
        *,
        login: bool = True,
    ) -> None:
        self.address: tuple[str, int] = address
        self.failure: BaseException | None = None
        self.opened: bool = False
        self.answered: bool = False
        self.wanted: int = 0
        self.versions: KafkaResponse | None = None
        self._options = options
        self._tls = tls
        self._tokens = tokens
        self._login = login and options.security_protocol.startswith("SASL")
        self._socket: socket.socket | None = None
        self._established = False
        self._correlation_id = 0
        self._in_flight: deque[SentRequest] = deque()
        self._unsent: deque[memoryview] = deque()
        self._received = bytearray()
        self._due_s = monotonic() + options.socket_connection_setup_timeout_ms / 1000
        self._paused_until_s = 0.0
        self._login_at_s = float("inf")
        self._used_s = monotonic()
        self._wake_s = self._due_s
        self._steps: _Steps | None = self._opening()
        self.advance(None)

    @property
    def open(self) -> bool:
        return self.opened and self.failure is None

    @property
    def ready(self) -> bool:
        """Whether a request would be sent now: the connection is open, not logging in, not paused and not full."""
        return (
            self._steps is None
            and self.failure is None
            and len(self._in_flight) < self._options.max_in_flight
            and monotonic() >= self._paused_until_s
        )

    @property
    def wake_s(self) -> float:
        """When to call `advance` without an event, on the monotonic clock."""
        wake_s = self._wake_s if self._steps is not None else float("inf")
        if self._in_flight:
            wake_s = min(wake_s, self._in_flight[0].due_s)
        return wake_s if monotonic() >= self._paused_until_s else min(wake_s, self._paused_until_s)

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def send(self, request: FramedRequest) -> SentRequest:
        """Send a request on a connection that is `ready`; see `BrokerConnections.send`."""
        sent = self._send(request)
        self.advance(0)
        return sent

    def renew(self) -> None:
        """Close a connection idle for too long; log in again if the session is about to end."""
        now_s = monotonic()
        if self._steps is not None or self.failure is not None:
            return
        if not self._in_flight and now_s - self._used_s >= self._options.connections_max_idle_ms / 1000:
            self.close(ConnectionResetError("idle for connections.max.idle.ms"))
        elif now_s >= self._login_at_s:
            self._due_s = self._wake_s = now_s + self._options.request_timeout_ms / 1000
            self._steps = self._logging_in_again()
            self.advance(None)

    def close(self, error: BaseException) -> None:
        """Close the connection; requests in flight fail with ``error``. A second call does nothing."""
        if self.failure is not None:
            return
        self.failure, self._steps = error, None
        if self._socket is not None:
            self._socket.close()
        for sent in self._in_flight:
            sent.exception, sent.is_done = error, True
        self._in_flight.clear()
        self._unsent.clear()

    def advance(self, events: int | None) -> None:
        """Send, receive, connect and log in, as far as possible without waiting.

        ``events`` is 0 if only time has passed; None begins to connect or log in. A failure closes the connection, and
        is reported by its requests.
        """
        if self.failure is not None:
            return
        try:
            if self._established:
                self._flush()
                if events and events & ~select.POLLOUT:
                    self._receive()
            self._check_due()
            wanted = 0
            if self._steps is not None:
                try:
                    wanted = self._steps.send(events)
                except StopIteration:
                    self._steps, self.opened = None, True
            reading = select.POLLIN if self._established else 0
            self.wanted = wanted | reading | (select.POLLOUT if self._unsent else 0)
        except Exception as error:  # noqa: BLE001 - reported by the requests on it
            # A peer may send anything, and a login may fail in libraries: any failure ends only this connection.
            self.close(error)
        except BaseException:
            # A message may have been partially sent or read.
            self.close(ConnectionResetError("a request was interrupted"))
            raise

    def _check_due(self) -> None:
        now_s = monotonic()
        if self._in_flight and now_s >= self._in_flight[0].due_s:
            raise TimeoutError(f"request timed out after {self._options.request_timeout_ms} ms")
        if self._steps is not None and now_s >= self._due_s:
            raise TimeoutError("connecting took too long")

    def _opening(self) -> _Steps:
        yield from self._connecting()
        yield from self._negotiating_tls()
        self._established = True
        versions = yield from self._exchange(API_VERSIONS.build(API_VERSIONS_VERSION))
        if versions.error_code != Code.NONE:
            raise kafka_error("ApiVersions", versions.error_code)
        if self._login:
            yield from self._logging_in()
        self.versions = versions

    def _connecting(self) -> _Steps:
        host, port = self.address
        try:
            addresses = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectionError(f"DNS lookup of {host}:{port} failed: {error}") from error
        failed = "the host has no address"
        for left, (family, kind, protocol, _, at) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            self._wake_s = monotonic() + (self._due_s - monotonic()) / left
            self._socket = sock = socket.socket(family, kind, protocol)
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            code = sock.connect_ex(at)
            while code in _CONNECTING:
                if (yield select.POLLOUT):
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                elif monotonic() >= self._wake_s:
                    code = errno.ETIMEDOUT
            if code == 0:
                self._wake_s = self._due_s
                return
            sock.close()
            failed = f"{errno.errorcode.get(code, code)} at {':'.join(map(str, at[:2]))}"
        raise ConnectionError(failed)

    def _negotiating_tls(self) -> _Steps:
        if self._tls is None or self._socket is None:
            return
        self._socket = sock = self._tls.wrap_socket(
            self._socket, server_hostname=self.address[0], do_handshake_on_connect=False
        )
        while True:  # bounded: each pass reads sent data, and all end at the same time
            try:
                sock.do_handshake()
            except ssl.SSLWantReadError:
                yield select.POLLIN
            except ssl.SSLWantWriteError:
                yield select.POLLOUT
            except ssl.SSLError as error:
                raise TlsFailedError(error) from error
            else:
                return

    def _logging_in(self) -> _Steps:
        options = self._options
        handshake = messages.sasl_handshake_request(options.sasl_mechanism)
        answer = yield from self._exchange(handshake.build(SASL_VERSION))
        if answer.error_code != Code.NONE:
            raise LoginRefusedError("SaslHandshake", answer.error_code, describe_error(answer.error_code).name)
        if options.sasl_mechanism not in answer.mechanisms:
            raise LoginRefusedError("SaslHandshake", Code.UNSUPPORTED_SASL_MECHANISM, f"only {answer.mechanisms}")
        kind = get_sasl_mechanism(options.sasl_mechanism)
        mechanism = kind(host=self.address[0], sasl_oauth_token_provider=self._tokens, **options.login_config())
        lifetime_ms = 0
        while not mechanism.is_done():  # bounded by _due_s
            request = messages.sasl_authenticate_request(mechanism.auth_bytes())
            answer = yield from self._exchange(request.build(SASL_VERSION))
            if answer.error_code != Code.NONE:
                said = answer.error_message or describe_error(answer.error_code).name
                raise LoginRefusedError("SaslAuthenticate", Code.SASL_AUTHENTICATION_FAILED, said)
            mechanism.receive(answer.auth_bytes)
            lifetime_ms = answer.session_lifetime_ms
        if not mechanism.is_authenticated():
            raise LoginRefusedError("SaslAuthenticate", Code.SASL_AUTHENTICATION_FAILED, "the login did not succeed")
        lifetime_s = max(_SESSION_S_MIN, lifetime_ms / 1000) if lifetime_ms > 0 else float("inf")
        self._login_at_s = monotonic() + lifetime_s * random.uniform(*_SESSION_PART)  # noqa: S311 - not security-relevant

    def _logging_in_again(self) -> _Steps:
        """A failed login only ends the connection: the next one shows whether it is refused permanently."""
        while self._in_flight:
            yield select.POLLIN
        try:
            yield from self._logging_in()
        except LoginRefusedError as error:
            raise ConnectionResetError(f"the renewed login of this connection was refused: {error}") from error

    def _exchange(self, request: FramedRequest) -> Generator[int, int | None, KafkaResponse]:
        sent = self._send(request)
        self._flush()
        while not sent.is_done:
            yield select.POLLIN
        return sent.value

    def _send(self, request: FramedRequest) -> SentRequest:
        now_s = monotonic()
        self._correlation_id = (self._correlation_id + 1) % 2**31
        frame = request.encode(correlation_id=self._correlation_id, client_id=self._options.client_id)
        self._unsent.append(memoryview(frame))
        sent = SentRequest(request, self._correlation_id, due_s=now_s + self._options.request_timeout_ms / 1000)
        self._in_flight.append(sent)
        self._used_s = now_s
        return sent

    def _flush(self) -> None:
        sock = self._socket
        while self._unsent and sock is not None:
            part = self._unsent[0]
            try:
                count = sock.send(part)
            except _BLOCKED:
                return
            except ssl.SSLError as error:
                raise TlsFailedError(error) from error
            if count < len(part):
                self._unsent[0] = part[count:]
            else:
                self._unsent.popleft()

    def _receive(self) -> None:
        """Receive available data. An end or a failure after it is left to the next read: an answer may precede it."""
        sock, has_read = self._socket, False
        while sock is not None:
            try:
                data = sock.recv(_READ_BYTES)
            except _BLOCKED:
                return
            except ssl.SSLError as error:
                # With TLS 1.3 a peer refuses the client's certificate after the handshake.
                if has_read:
                    return
                raise TlsFailedError(error) from error
            if not data:
                if has_read:
                    return
                raise ConnectionResetError("socket disconnected")
            has_read = True
            self._received += data
            if self._tls is None and self._received.startswith(_TLS_ALERT) and not self.opened:
                raise TlsFailedError(None)
            self._take_answers()
            if self._tls is None and len(data) < _READ_BYTES:
                return

    def _take_answers(self) -> None:
        position, received = 0, self._received
        while len(received) - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(received, position)
            if not 0 <= size <= self._options.receive_bytes_max:
                raise RemoteProtocolError(peer="a broker", detail=f"it sent an answer with the length {size}")
            start = position + _LENGTH.size
            if len(received) - start < size:
                break
            position = start + size
            self._take(bytes(memoryview(received)[start:position]))
        del received[:position]

    def _take(self, frame: bytes) -> None:
        if not self._in_flight:
            raise RemoteProtocolError(peer="a broker", detail="it answered a request that was not sent")
        sent = self._in_flight[0]
        found = int.from_bytes(frame[:_CORRELATION_BYTES], "big", signed=True)
        if found != sent.correlation_id:
            detail = f"it answered request {found} instead of {sent.correlation_id}"
            raise RemoteProtocolError(peer="a broker", detail=detail)
        try:
            sent.value = sent.request.read(frame)
        except Exception as error:
            detail = f"an answer to {sent.request.api.name} of {len(frame)} bytes cannot be decoded: {error!r}"
            raise RemoteProtocolError(peer="a broker", detail=detail) from error
        sent.is_done = True
        self._in_flight.popleft()
        self._used_s = monotonic()
        throttle_ms = getattr(sent.value, "throttle_time_ms", 0)
        if throttle_ms > 0:
            # The broker does not read from this connection in the meantime (KIP-219).
            self._paused_until_s = self._used_s + throttle_ms / 1000
        self.answered |= self.opened and sent.request.api != Api.API_VERSIONS
