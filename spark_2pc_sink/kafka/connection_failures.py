"""Classification of failed connections: connect again, or raise a permanent error.

A Kafka listener answers a client with the wrong protocol by closing the connection. So does a broker that
is stopping. A probe tells them apart: it connects once more as a client with the other protocol.

- For a TLS client, in its handshake: does the listener answer a request sent without TLS?
- For a TLS client, after it: does the listener refuse the client's certificate? With TLS 1.3 it says so after the
  handshake, and a request already in flight makes the operating system drop that alert.
- For a client without login: does the listener list login mechanisms? SaslHandshake is the one request that
  a SASL listener accepts without a login, and other listeners answer it with ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from kafka.protocol.sasl import SaslHandshakeRequest

from spark_2pc_sink.causes import causes
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, ConfigurationError, KafkaError, RemoteProtocolError
from spark_2pc_sink.kafka.connection import CLIENT, LENGTH, LoginRefusedError, api_versions_request, decoded, framed
from spark_2pc_sink.kafka.tls import TlsFailedError, protocol_refusal, tls_refusal
from spark_2pc_sink.logins.tokens import BrokerTokens
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.error_codes import describe_error
from spark_2pc_sink.wire.messages import KafkaRequest
from spark_2pc_sink.wire.responses import KafkaResponse

#: Errors of a connection that a broker closes silently, when it is stopping or expects another protocol.
_ENDED: Final = (ConnectionResetError, BrokenPipeError, TlsFailedError)
#: An unsupported mechanism, so that the answer lists the listener's mechanisms.
_NO_MECHANISM: Final = "?"
#: Limit for a whole probe: the caller's other connections wait in the meantime.
TIMEOUT_S: Final = 2.0
#: An alert about the client's certificate follows the handshake within a round trip.
_ALERT_S: Final = 0.3
#: Larger than any answer to a probe's request.
_ANSWER_BYTES_MAX: Final = 64 * 1024
#: The peer closes in the handshake; which of them Python raises depends on the data received by then.
_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class NodeUnavailableError(Exception):
    """A broker was unreachable, or gave no answer: retry, or ask another. Internal to this package."""


class ConnectionFailures:
    """Classifies the failures of one client's connections."""

    def __init__(self, options: KafkaOptions, tokens: BrokerTokens | None) -> None:
        self._options = options
        self._tokens = tokens
        #: Brokers that have answered a request: our settings match their listeners.
        self.answered: set[int | str] = set()

    def classify(
        self, node_id: int | str, address: tuple[str, int] | None, error: BaseException, tls: ssl.SSLContext | None
    ) -> Exception:
        """The exception for a failed connection.

        Returns:
            `NodeUnavailableError` if a retry may succeed; else the permanent error.
        """
        if isinstance(error, (KafkaError, ConfigurationError)):
            return error  # from the token source, or a broker that is too old
        where = _named(node_id, address)
        failed = next((each for each in causes(error) if isinstance(each, TlsFailedError)), None)
        refused: Exception | None = None if failed is None else tls_refusal(failed, where, self._options)
        refused = refused or self._login_refusal(where, error)
        if refused is None and node_id not in self.answered:
            refused = self._protocol_refusal(where, address, error, tls)
        return refused or NodeUnavailableError(f"{where}: {error}")

    def _login_refusal(self, where: str, error: BaseException) -> Exception | None:
        if not isinstance(error, LoginRefusedError):
            return None
        if error.code == Code.UNSUPPORTED_SASL_MECHANISM:
            detail = f"does not support sasl.mechanism={self._options.sasl_mechanism}. Use one of its "
            return _login_error(error, f"the {where} {detail}sasl.enabled.mechanisms, or add this one there")
        if error.code != Code.SASL_AUTHENTICATION_FAILED:
            return None
        if self._tokens is not None and self._tokens.refused():
            return NodeUnavailableError(f"{where} refused a token that it had accepted before: {error}")
        user = self._options.sasl_username or self._options.oauth_client_id
        who = f"{'its principal' if user is None else f'user {user!r}'} with {self._options.sasl_mechanism}"
        return _login_error(error, f"the {where} refused the login of {who}: {error}")

    def _protocol_refusal(
        self, where: str, address: tuple[str, int] | None, error: BaseException, tls: ssl.SSLContext | None
    ) -> Exception | None:
        if isinstance(error, LoginRefusedError) and error.code == Code.ILLEGAL_SASL_STATE:
            without = "SSL" if self._options.security_protocol == "SASL_SSL" else "PLAINTEXT"
            detail = f"does not accept logins on this port. Set security.protocol={without}, or use another port"
            return _login_error(error, f"the {where} {detail}")
        if address is None or not any(isinstance(each, _ENDED) for each in causes(error)):
            return None
        found, options = probe(*address, tls), self._options
        if found.without_tls:
            return protocol_refusal(where, options, peer_has_tls=False)
        if found.tls_failed is not None:
            return tls_refusal(found.tls_failed, where, options)
        if not found.mechanisms or options.security_protocol.startswith("SASL"):
            return None
        return AuthorizationError(
            api="SaslHandshake",
            code=Code.SASL_AUTHENTICATION_FAILED,
            name=Code.SASL_AUTHENTICATION_FAILED.name,
            detail=f"the {where} requires a login by {' or '.join(found.mechanisms)}. Set security.protocol="
            f"{'SASL_SSL' if options.security_protocol == 'SSL' else 'SASL_PLAINTEXT'}, sasl.mechanism and the options "
            "of that mechanism",
        )


def _login_error(error: LoginRefusedError, detail: str) -> AuthorizationError:
    return AuthorizationError(api=error.api, code=error.code, name=describe_error(error.code).name, detail=detail)


def _named(node_id: int | str, address: tuple[str, int] | None) -> str:
    """The broker's name for messages; one known only by address has no node id yet."""
    if address is None:
        return f"broker {node_id}"
    number = f" {node_id} at" if isinstance(node_id, int) else ""
    return f"broker{number} {address[0]}:{address[1]}"


# --- the probe -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbedListener:
    """Result of a probe.

    Attributes:
        tls_failed: why TLS cannot be negotiated; None if it can, or if unknown.
        without_tls: True if the listener answers without TLS, and the client uses it.
        mechanisms: login mechanisms, if the listener requires a login.
    """

    tls_failed: TlsFailedError | None = None
    without_tls: bool = False
    mechanisms: tuple[str, ...] = ()


def probe(host: str, port: int, tls: ssl.SSLContext | None) -> ProbedListener:
    """Connect to a listener and find out its protocol; an empty `ProbedListener` if that is not possible."""
    end_s = time.monotonic() + TIMEOUT_S
    try:
        with closing(_connected(host, port, end_s)) as plain:
            if tls is None:
                return ProbedListener(mechanisms=_mechanisms(plain, end_s))
            with closing(tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)) as sock:
                return _probe_tls(sock, end_s)
    except TlsFailedError as failed:
        if isinstance(failed.error, _CLOSED) and tls is not None:
            return ProbedListener(without_tls=_answers_without_tls(host, port, end_s))
        return ProbedListener(tls_failed=failed)
    except (OSError, RemoteProtocolError):
        # It is down or stopping, as the first attempt has found, which is the error to report.
        return ProbedListener()


def _connected(host: str, port: int, end_s: float) -> socket.socket:
    return socket.create_connection((host, port), timeout=_left_s_until(end_s))


def _probe_tls(sock: ssl.SSLSocket, end_s: float) -> ProbedListener:
    sock.settimeout(_left_s_until(end_s))
    try:
        sock.do_handshake()
        sock.settimeout(min(_ALERT_S, _left_s_until(end_s)))
        sock.recv(1)
    except TimeoutError:
        return ProbedListener(mechanisms=_mechanisms(sock, end_s))
    except ssl.SSLError as error:
        raise TlsFailedError(error) from error
    return ProbedListener()


def _answers_without_tls(host: str, port: int, end_s: float) -> bool:
    try:
        with closing(_connected(host, port, end_s)) as sock:
            _ask(sock, api_versions_request(), end_s)
    except (OSError, RemoteProtocolError):
        return False
    return True


def _mechanisms(sock: socket.socket, end_s: float) -> tuple[str, ...]:
    answer = _ask(sock, SaslHandshakeRequest(mechanism=_NO_MECHANISM, version=1), end_s)
    return tuple(answer.mechanisms) if answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM else ()


def _ask(sock: socket.socket, request: KafkaRequest, end_s: float) -> KafkaResponse:
    """Send one request on a new connection and return its answer.

    Raises:
        OSError, RemoteProtocolError: no answer in time, or it is not a Kafka answer.
    """
    sock.settimeout(_left_s_until(end_s))
    sock.sendall(framed(request, 1, CLIENT))
    (size,) = LENGTH.unpack(_read(sock, LENGTH.size, end_s))
    if not 0 <= size <= _ANSWER_BYTES_MAX:
        raise RemoteProtocolError(peer="a listener", detail=f"it announced an answer of {size} bytes")
    return decoded(request.header, 1, _read(sock, size, end_s))


def _read(sock: socket.socket, size: int, end_s: float) -> bytes:
    found = b""
    while len(found) < size:  # bounded: by size and end_s
        sock.settimeout(_left_s_until(end_s))
        data = sock.recv(size - len(found))
        if not data:
            message = "closed"
            raise ConnectionResetError(message)
        found += data
    return found


def _left_s_until(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
