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

import contextlib
import select
import socket
import ssl
import time
from typing import Final

from spark_2pc_sink.causes import causes
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError, KafkaError
from spark_2pc_sink.kafka.connection import SASL_VERSION, Connection, LoginRefusedError, SentRequest
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.kafka.tls import TlsFailedError, protocol_refusal, tls_refusal
from spark_2pc_sink.logins.tokens import BrokerTokens
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.messages import KafkaResponse

#: Errors of a connection that a broker closes silently, when it is stopping or expects another protocol.
_ENDED: Final = (ConnectionResetError, BrokenPipeError, TlsFailedError)
#: An unsupported mechanism, so that the answer lists the listener's mechanisms.
_NO_MECHANISM: Final = "?"
#: Limit for each wait of a probe: the caller's other connections wait in the meantime.
TIMEOUT_S: Final = 2.0
#: An alert about the client's certificate follows the handshake within a round trip.
_ALERT_S: Final = 0.3
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
            detail = f"the {where} {detail}sasl.enabled.mechanisms, or add this one there"
            return kafka_error(error.api, error.code, detail)
        if error.code != Code.SASL_AUTHENTICATION_FAILED:
            return None
        if self._tokens is not None and self._tokens.refused():
            return NodeUnavailableError(f"{where} refused a token that it had accepted before: {error}")
        user = self._options.sasl_username or self._options.oauth_client_id
        who = f"{'its principal' if user is None else f'user {user!r}'} with {self._options.sasl_mechanism}"
        return kafka_error(error.api, error.code, f"the {where} refused the login of {who}: {error}")

    def _protocol_refusal(
        self, where: str, address: tuple[str, int] | None, error: BaseException, tls: ssl.SSLContext | None
    ) -> Exception | None:
        if isinstance(error, LoginRefusedError) and error.code == Code.ILLEGAL_SASL_STATE:
            without = "SSL" if self._options.security_protocol == "SASL_SSL" else "PLAINTEXT"
            detail = f"does not accept logins on this port. Set security.protocol={without}, or use another port"
            return kafka_error(error.api, error.code, f"the {where} {detail}")
        if address is None or not any(isinstance(each, _ENDED) for each in causes(error)):
            return None
        return _probe(where, address, self._options, tls)


def _named(node_id: int | str, address: tuple[str, int] | None) -> str:
    """The broker's name for messages; one known only by address has no node id yet."""
    if address is None:
        return f"broker {node_id}"
    number = f" {node_id} at" if isinstance(node_id, int) else ""
    return f"broker{number} {address[0]}:{address[1]}"


# --- the probe -------------------------------------------------------------------------------------------------------


def _probe(where: str, address: tuple[str, int], options: KafkaOptions, tls: ssl.SSLContext | None) -> Exception | None:
    """Connect once more, and return the error if the listener has another protocol; None also if that is unknown."""
    end_s = time.monotonic() + TIMEOUT_S
    try:
        if tls is not None:
            _negotiate(address, tls)
    except ssl.SSLError as error:
        if not isinstance(error, _CLOSED):
            return tls_refusal(TlsFailedError(error), where, options)
        plain = _answer(Connection(address, options, None, login=False), end_s)
        return None if plain is None else protocol_refusal(where, options, peer_has_tls=False)
    except OSError:
        # It is down or stopping, as the first attempt has found, which is the error to report.
        return None
    if options.security_protocol.startswith("SASL"):
        return None
    answer = _answer(Connection(address, options, tls, login=False), end_s)
    if answer is None or answer.error_code != Code.UNSUPPORTED_SASL_MECHANISM:
        return None
    protocol = "SASL_SSL" if options.security_protocol == "SSL" else "SASL_PLAINTEXT"
    detail = f"requires a login by {' or '.join(answer.mechanisms)}. Set security.protocol={protocol}, sasl.mechanism"
    detail = f"the {where} {detail} and the options of that mechanism"
    return kafka_error("SaslHandshake", Code.SASL_AUTHENTICATION_FAILED, detail)


def _negotiate(address: tuple[str, int], tls: ssl.SSLContext) -> None:
    """Negotiate TLS and send nothing, so that an alert about the client's certificate is received."""
    with (
        socket.create_connection(address, timeout=TIMEOUT_S) as plain,
        tls.wrap_socket(plain, server_hostname=address[0]) as sock,
        contextlib.suppress(TimeoutError),
    ):
        sock.settimeout(_ALERT_S)
        sock.recv(1)


def _answer(connection: Connection, end_s: float) -> KafkaResponse | None:
    """The listener's answer to SaslHandshake; None if there is none in time."""
    sent: SentRequest | None = None
    while connection.failure is None and time.monotonic() < end_s:
        if sent is None and connection.ready:
            sent = connection.send(messages.sasl_handshake_request(_NO_MECHANISM).build(SASL_VERSION))
        if sent is not None and sent.is_done:
            break
        poller = select.poll()
        poller.register(connection, connection.wanted)
        events = dict(poller.poll(max(0.0, end_s - time.monotonic()) * 1000))
        connection.advance(events.get(connection.fileno(), 0))
    connection.close(ConnectionResetError("the probe has ended"))
    return None if sent is None or sent.exception is not None else sent.value
