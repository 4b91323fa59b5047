"""TLS for broker connections: the context from the user's PEM files, and which failures are permanent.

A failure that is not in the tables below may be temporary: a connection reset in the handshake, or a broker that
is stopping. Such a connection is retried until the deadline.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Final

from spark_2pc_sink.errors import TlsRefusedError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.settings import refused

#: OpenSSL's X509_V_ERR codes (openssl-verification-options(1) has their meaning).
_NO_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21})
_OUT_OF_DATE: Final = frozenset({9, 10})
_NO_CRL: Final = frozenset({3, 11, 12})
_WRONG_NAME: Final = frozenset({62, 64})
#: Alerts about the client's certificate (RFC 8446, section 6.2).
_CLIENT_CERTIFICATE: Final = frozenset(
    {
        "ACCESS_DENIED",
        "BAD_CERTIFICATE",
        "CERTIFICATE_EXPIRED",
        "CERTIFICATE_REQUIRED",
        "CERTIFICATE_REVOKED",
        "CERTIFICATE_UNKNOWN",
        "DECRYPT_ERROR",
        "NO_CERTIFICATE",
        "UNKNOWN_CA",
        "UNSUPPORTED_CERTIFICATE",
    }
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
    """The TLS context for connections; None if ``security.protocol`` has no TLS.

    Raises:
        ConfigurationError: a file cannot be read or has invalid content.
    """
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


class TlsFailedError(OSError):
    """TLS with a peer has failed. Internal to this package.

    Args:
        error: OpenSSL's error; None if the peer speaks TLS, and this connection does not.
    """

    def __init__(self, error: ssl.SSLError | None) -> None:
        super().__init__("the peer uses TLS" if error is None else str(error))
        self.error = error


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
    certificate = options.ssl_certificate_location
    if certificate is None and said in {*_CLIENT_CERTIFICATE, _EITHER}:
        other = " (or there is no common cipher)" if said == _EITHER else ""
        return (
            f"it requires a client certificate, and none is set{other}; it answered {said}",
            "set ssl.certificate.location to a PEM file with the client's certificate and key",
        )
    if said in _CLIENT_CERTIFICATE:
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
