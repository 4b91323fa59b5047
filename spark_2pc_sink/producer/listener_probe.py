"""A probe of a listener that ends connections without a word: what does it want?

A listener of Kafka answers a client of another protocol than its own by closing the connection. So does a broker that
is stopping. A probe tells them apart: it connects once more and asks as a client of the other protocol would.

- To a client of TLS in its handshake: does the listener answer a request that was sent without TLS?
- To a client of TLS after it: does it refuse the certificate of the client? With TLS 1.3 it says so behind the
  handshake, and a request that is already on its way makes the machine drop that alert.
- To a client that does not log in: does it name the mechanisms of logins? SaslHandshake is the one request that a
  listener with SASL takes without a login, and another listener answers it with ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from kafka.errors import KafkaError as LibraryError
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslHandshakeRequest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.producer.direct_exchange import left_s_until
from spark_2pc_sink.producer.tls_refusals import TlsFailedError

#: A mechanism that no listener has, so that its answer is the list of those that it has.
_NO_MECHANISM: Final = "?"
#: For the whole of a probe: other connections of the caller wait meanwhile.
TIMEOUT_S: Final = 2.0
#: An alert about the client's certificate follows the handshake within a round trip.
_ALERT_S: Final = 0.3
_READ_BYTES: Final = 64 * 1024


#: The other end closes in the handshake; which of them Python raises depends on what has arrived by then.
_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


@dataclass(frozen=True)
class Listener:
    """What a probe has found out.

    Attributes:
        tls_failed: why TLS cannot be agreed upon; None where it can, or nothing was found.
        without_tls: True where the listener answers without TLS, and the client has it.
        mechanisms: of logins, where the listener wants one.
    """

    tls_failed: TlsFailedError | None = None
    without_tls: bool = False
    mechanisms: tuple[str, ...] = ()


def probe(host: str, port: int, tls: ssl.SSLContext | None) -> Listener:
    """Connect to a listener and find out what it wants; an empty `Listener` where that cannot be told.

    Args:
        host: as the client has it.
        port: of the listener.
        tls: of the client; None without TLS.
    """
    end_s = time.monotonic() + TIMEOUT_S
    try:
        with closing(_connected(host, port, end_s)) as plain:
            if tls is None:
                return Listener(mechanisms=_mechanisms(plain, end_s))
            with closing(tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)) as sock:
                return _probe_tls(sock, end_s)
    except TlsFailedError as failed:
        if isinstance(failed.error, _CLOSED) and tls is not None:
            return Listener(without_tls=_answers_without_tls(host, port, end_s))
        return Listener(tls_failed=failed)
    except (OSError, LibraryError):
        # It is away or it is stopping: what the first attempt has met, too, which is the one to report.
        return Listener()


def _connected(host: str, port: int, end_s: float) -> socket.socket:
    return socket.create_connection((host, port), timeout=left_s_until(end_s))


def _probe_tls(sock: ssl.SSLSocket, end_s: float) -> Listener:
    sock.settimeout(left_s_until(end_s))
    sock.do_handshake()
    sock.settimeout(min(_ALERT_S, left_s_until(end_s)))
    try:
        if not sock.recv(_READ_BYTES):
            return Listener()
    except TimeoutError:
        return Listener(mechanisms=_mechanisms(sock, end_s))
    return Listener()


def _answers_without_tls(host: str, port: int, end_s: float) -> bool:
    try:
        with closing(_connected(host, port, end_s)) as sock:
            _ask(sock, ApiVersionsRequest(version=0), end_s)
    except (OSError, LibraryError):
        return False
    return True


def _mechanisms(sock: socket.socket, end_s: float) -> tuple[str, ...]:
    answer = _ask(sock, SaslHandshakeRequest(mechanism=_NO_MECHANISM, version=1), end_s)
    return tuple(answer.mechanisms) if answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM else ()


def _ask(sock: socket.socket, request: Any, end_s: float) -> Any:
    """One request and its answer on a new connection.

    Raises:
        OSError, kafka.errors.KafkaError: there is none in time, or it is none of Kafka's.
    """
    parser = KafkaProtocol(client_id="spark-2pc-sink")
    parser.send_request(request)
    sock.settimeout(left_s_until(end_s))
    sock.sendall(parser.send_bytes())
    # bounded: each pass takes bytes of one answer, whose length the parser bounds, and all end at end_s
    while True:
        sock.settimeout(left_s_until(end_s))
        data = sock.recv(_READ_BYTES)
        if not data:
            message = "closed"
            raise ConnectionResetError(message)
        for _, response in parser.receive_bytes(data):
            return response
