"""TLS for broker connections, and failed connections: connect again, or raise a permanent error.

A failure of TLS that is not in the tables below may be temporary: a connection reset in the handshake, or a broker that
is stopping. A Kafka listener answers a client with the wrong protocol by closing the connection. So does a broker that
is stopping. A probe tells them apart: it connects once more as a client with the other protocol.

- For a TLS client, in its handshake: does the listener answer a request sent without TLS?
- For a TLS client, after it: does the listener refuse the client's certificate? With TLS 1.3 it says so after the
  handshake, and a request already in flight makes the operating system drop that alert.
- For a client without login: does the listener list login mechanisms? SaslHandshake is the one request that
  a SASL listener accepts without a login, and other listeners answer it with ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Final

from spark_2pc_sink.causes import causes
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError, KafkaError, TlsRefusedError
from spark_2pc_sink.kafka.connection import SASL_VERSION, Connection, LoginRefusedError, SentRequest, TlsFailedError
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.logins.tokens import BrokerTokens
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.settings import refused
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
    def __init__(self, options: KafkaOptions, tokens: BrokerTokens | None) -> None:
        self._options = options
        self._tokens = tokens
        #: Brokers that have answered a request: our settings match their listeners.
        self.answered: set[int | str] = set()

    def classify(
        self, node_id: int | str, address: tuple[str, int] | None, error: BaseException, tls: ssl.SSLContext | None
    ) -> Exception:
        """The exception for a failed connection: `NodeUnavailableError` if a retry may succeed, or a permanent one."""
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
            ours = f"sasl.mechanism={self._options.sasl_mechanism}"
            detail = f"does not support {ours}. Use one of its sasl.enabled.mechanisms, or add this one there"
            return kafka_error(error.api, error.code, f"the {where} {detail}")
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


def _probe(where: str, address: tuple[str, int], options: KafkaOptions, tls: ssl.SSLContext | None) -> Exception | None:
    """Connect once more, and return the error if the listener has another protocol; None also if that is unknown."""
    end_s = time.monotonic() + TIMEOUT_S
    try:
        if tls is not None:
            # Nothing is sent, so that an alert about the client's certificate is received.
            with (
                socket.create_connection(address, timeout=TIMEOUT_S) as plain,
                tls.wrap_socket(plain, server_hostname=address[0]) as sock,
                suppress(TimeoutError),
            ):
                sock.settimeout(_ALERT_S)
                sock.recv(1)
    except ssl.SSLError as error:
        if not isinstance(error, _CLOSED):
            return tls_refusal(TlsFailedError(error), where, options)
        without_tls = _answer(Connection(address, options, None, login=False), end_s)
        return None if without_tls is None else protocol_refusal(where, options, peer_has_tls=False)
    except OSError:
        # It is down or stopping, as the first attempt has found, which is the error to report.
        return None
    if options.security_protocol.startswith("SASL"):
        return None
    answer = _answer(Connection(address, options, tls, login=False), end_s)
    if answer is None or answer.error_code != Code.UNSUPPORTED_SASL_MECHANISM:
        return None
    protocol = "SASL_SSL" if options.security_protocol == "SSL" else "SASL_PLAINTEXT"
    remedy = f"Set security.protocol={protocol}, sasl.mechanism and the options of that mechanism"
    detail = f"the {where} requires a login by {' or '.join(answer.mechanisms)}. {remedy}"
    return kafka_error("SaslHandshake", Code.SASL_AUTHENTICATION_FAILED, detail)


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


#: OpenSSL's X509_V_ERR codes (openssl-verification-options(1) has their meaning).
_NO_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21})
_OUT_OF_DATE: Final = frozenset({9, 10})
_NO_CRL: Final = frozenset({3, 11, 12})
_WRONG_NAME: Final = frozenset({62, 64})
#: Alerts about the client's certificate (RFC 8446, section 6.2).
_CLIENT_CERTIFICATE: Final = re.compile(
    "ACCESS_DENIED|DECRYPT_ERROR|UNKNOWN_CA"
    "|(BAD|NO|UNSUPPORTED)_CERTIFICATE|CERTIFICATE_(EXPIRED|REQUIRED|REVOKED|UNKNOWN)"
)
#: Alerts, and local errors, that mean no common version or cipher.
_NOTHING_IN_COMMON: Final = frozenset(
    {"INSUFFICIENT_SECURITY", "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION"}
)
#: TLS 1.2 uses it for both: no common cipher, or a missing client certificate.
_EITHER: Final = "HANDSHAKE_FAILURE"
#: The peer does not speak TLS. OpenSSL 3.2 and later use the second.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
_ALERT: Final = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_ALERT_(\w+)")


def client_context(options: KafkaOptions) -> ssl.SSLContext | None:
    """The TLS context; None if ``security.protocol`` has no TLS. ConfigurationError for an invalid file."""
    if not options.security_protocol.endswith("SSL"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.ssl_check_hostname
    if options.ssl_ca_location is None:
        context.load_default_certs()
    else:
        with _reading("ssl.ca.location", options.ssl_ca_location, "trusted certificates"):
            context.load_verify_locations(options.ssl_ca_location)
    if options.ssl_crl_location is not None:
        with _reading("ssl.crl.location", options.ssl_crl_location, "revoked certificates"):
            context.load_verify_locations(options.ssl_crl_location)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    certificate, key = options.ssl_certificate_location, options.ssl_key_location
    if certificate is not None:
        files = certificate if key is None else f"{certificate}, with ssl.key.location={key}"
        with _reading("ssl.certificate.location", files, "the client's certificates and their private key"):
            # A key without a password must not make OpenSSL prompt for one at the terminal.
            context.load_cert_chain(certificate, key, password=options.ssl_key_password or "")
    return context


@contextmanager
def _reading(option: str, files: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        rule = f"must be a PEM file with {what} that this process can read: {error}"
        remedy = "correct the file, on the driver and on executors; ssl.key.password is for an encrypted key"
        raise refused(option, files, rule, remedy) from error


def tls_refusal(failed: TlsFailedError, where: str, options: KafkaOptions) -> TlsRefusedError | None:
    """The error for a permanent failure; None if a retry may succeed."""
    error = failed.error
    if error is None:
        return protocol_refusal(where, options, peer_has_tls=True)
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = f"its certificate is refused ({error.verify_message.rstrip('.')})"
        # OpenSSL's client shows what Python does not: the certificates in a failed handshake.
        look = f"openssl s_client -showcerts -connect {where.rpartition(' ')[2]}"
        remedy = f"{_certificate_remedy(error.verify_code, where, options)}. To see it: {look}"
    elif (found := _alert_finding(reason, options)) is not None:
        problem, remedy = found
    else:
        return None
    return TlsRefusedError(
        api="TLS",
        code=getattr(error, "verify_code", 0),
        name=reason,
        detail=f"TLS with the {where} cannot be negotiated: {problem}",
        remedy=remedy,
    )


def protocol_refusal(where: str, options: KafkaOptions, *, peer_has_tls: bool) -> TlsRefusedError:
    protocol = options.security_protocol
    other = {"PLAINTEXT": "SSL", "SSL": "PLAINTEXT", "SASL_SSL": "SASL_PLAINTEXT", "SASL_PLAINTEXT": "SASL_SSL"}
    uses, selects = ("uses TLS", "without TLS") if peer_has_tls else ("does not use TLS", "with TLS")
    return TlsRefusedError(
        api="TLS",
        code=0,
        name="WRONG_PROTOCOL",
        detail=f"the {where} {uses} on this port, but security.protocol={protocol} is {selects}",
        remedy=f"set security.protocol={other[protocol]}, or use the port of another listener in bootstrap.servers",
    )


def _certificate_remedy(code: int, where: str, options: KafkaOptions) -> str:
    if code in _WRONG_NAME:
        return (
            "use a name in the certificate, in bootstrap.servers and in the broker's advertised.listeners, or issue "
            "one for this name; ssl.endpoint.identification.algorithm=none disables the check of names"
        )
    if code in _OUT_OF_DATE:
        now = datetime.fromtimestamp(time.time(), timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        return (
            f"renew the certificate of the broker (ssl.keystore.location there); if this machine's time, {now}, is "
            "wrong, set its clock"
        )
    if code in _NO_AUTHORITY:
        trusted = options.ssl_ca_location
        ours = "the system's (ssl.ca.location is not set)" if trusted is None else f"those in ssl.ca.location={trusted}"
        return f"the trusted ones are {ours}: set ssl.ca.location to a PEM file with the certificate of the issuer"
    if code in _NO_CRL:
        return (
            f"ssl.crl.location={options.ssl_crl_location} has no valid list of the issuer: renew it, or omit the option"
        )
    return f"give the {where} another certificate"


def _alert_finding(reason: str, options: KafkaOptions) -> tuple[str, str] | None:
    alert = _ALERT.fullmatch(reason)
    said = alert[1] if alert else reason
    about_ours = _CLIENT_CERTIFICATE.fullmatch(said)
    certificate = options.ssl_certificate_location
    if certificate is None and (about_ours or said == _EITHER):
        other = " (or there is no common cipher)" if said == _EITHER else ""
        return (
            f"it requires a client certificate, and none is set{other}; it answered {said}",
            "set ssl.certificate.location to a PEM file with the client's certificate and key",
        )
    if about_ours:
        return (
            f"it refused the client's certificate ssl.certificate.location={certificate}; it answered {said}",
            "check its dates, and that an authority in ssl.truststore.location of the broker has signed it",
        )
    if said in _NOTHING_IN_COMMON or said == _EITHER:
        return (
            f"no TLS version or cipher is common to both; it answered {said}",
            "allow TLS 1.2 or 1.3 in ssl.enabled.protocols of the broker, and check its ssl.cipher.suites",
        )
    if said in _NO_TLS:
        return (
            f"its answer is not TLS ({said}), which security.protocol={options.security_protocol} requires",
            "use the port of a listener with TLS in bootstrap.servers (this one has none), or set security.protocol",
        )
    return None
