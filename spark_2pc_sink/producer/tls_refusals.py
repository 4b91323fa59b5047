"""Which failures of TLS no repetition changes, in words, and the option that mends each.

What is not in these tables may be temporary: a connection that is reset in the handshake, a broker that is stopping.
Such a connection is made again until the deadline.
"""

from __future__ import annotations

import re
import ssl
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from spark_2pc_sink.errors import TlsRefusedError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.peer_certificate import PeerCertificate, most_telling

#: OpenSSL's X509_V_ERR codes (openssl-verification-options(1) has their meaning).
_NO_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21})
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_REVOKED: Final = 23
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
#: Alerts, and findings of our own side, by which both have no version or cipher in common.
_NOTHING_IN_COMMON: Final = frozenset(
    {"INSUFFICIENT_SECURITY", "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION"}
)
#: TLS 1.2 has it for both: no cipher in common, or no certificate of the client.
_EITHER: Final = "HANDSHAKE_FAILURE"
#: What comes back is no TLS. OpenSSL 3.2 and later says the second.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
_ALERT: Final = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_ALERT_(\w+)")


class TlsFailedError(OSError):
    """TLS with a peer has failed; raised by our sockets, and never seen outside of this package.

    Args:
        error: as OpenSSL tells it; None where the peer speaks TLS, and we do not.
        chain: the certificates that the peer has shown.
    """

    def __init__(self, error: ssl.SSLError | None, chain: tuple[PeerCertificate, ...] = ()) -> None:
        super().__init__("the peer speaks TLS" if error is None else str(error))
        self.error = error
        self.chain = chain


@dataclass(frozen=True)
class _Finding:
    what: str
    remedy: str


def tls_refusal(failed: TlsFailedError, where: str, options: KafkaOptions) -> TlsRefusedError | None:
    """The error for a failure that no repetition changes; None where one may.

    Args:
        failed: from the socket.
        where: 'broker HOST:PORT'.
        options: what the connection was made with.
    """
    error = failed.error
    if error is None:
        return protocol_refusal(where, options, peer_has_tls=True)
    reason = error.reason or ""
    shown = most_telling(failed.chain)
    if isinstance(error, ssl.SSLCertVerificationError):
        finding = _judge_certificate(error, where, options)
    elif (found := _judge_reason(reason, options)) is not None:
        finding = found
    else:
        return None
    return TlsRefusedError(
        api="TLS",
        code=getattr(error, "verify_code", 0),
        name=reason,
        detail=f"TLS with the {where} cannot be agreed upon: {finding.what}",
        certificate="" if shown is None else str(shown),
        remedy=finding.remedy,
    )


def protocol_refusal(where: str, options: KafkaOptions, *, peer_has_tls: bool) -> TlsRefusedError:
    """The error for a client that speaks TLS where the listener does not, or the other way round."""
    protocol = options.security_protocol
    other = {"PLAINTEXT": "SSL", "SSL": "PLAINTEXT", "SASL_SSL": "SASL_PLAINTEXT", "SASL_PLAINTEXT": "SASL_SSL"}
    speaks, sent = ("speaks TLS", "no TLS") if peer_has_tls else ("speaks no TLS", "TLS")
    return TlsRefusedError(
        api="TLS",
        code=0,
        name="WRONG_PROTOCOL",
        detail=f"the {where} {speaks} at this port, and security.protocol={protocol} is {sent}",
        certificate="",
        remedy=f"set security.protocol={other[protocol]}, or give the port of another listener in bootstrap.servers",
    )


def _judge_certificate(error: ssl.SSLCertVerificationError, where: str, options: KafkaOptions) -> _Finding:
    code, words = error.verify_code, error.verify_message.rstrip(".")
    if code in _WRONG_NAME:
        return _Finding(
            f"its certificate is for other names ({words})",
            "connect by a name in the certificate, in bootstrap.servers and in advertised.listeners of the broker, or "
            "have one made for this name; ssl.endpoint.identification.algorithm=none compares no names",
        )
    if code in {_EXPIRED, _NOT_YET_VALID}:
        state = "has expired" if code == _EXPIRED else "is not valid yet"
        now = datetime.fromtimestamp(time.time(), timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        return _Finding(
            f"its certificate {state}",
            f"renew the certificate of the broker (ssl.keystore.location there); here it is {now}, so else set the "
            "clock of this machine",
        )
    if code in _NO_AUTHORITY:
        trusted = options.ssl_ca_location
        ours = "the system's (ssl.ca.location is not set)" if trusted is None else f"in ssl.ca.location={trusted}"
        return _Finding(
            f"no certificate {ours} has signed its certificate ({words})",
            "set ssl.ca.location to a PEM file with the certificate of the issuer",
        )
    if code == _REVOKED:
        listed = f"ssl.crl.location={options.ssl_crl_location}"
        return _Finding(f"its certificate is revoked in {listed}", "give the broker another certificate")
    if code in _NO_CRL:
        listed = f"ssl.crl.location={options.ssl_crl_location}"
        return _Finding(f"{listed} has no valid list of the issuer ({words})", "renew the list, or leave it out")
    return _Finding(f"its certificate is refused ({words})", f"give the {where} another certificate")


def _judge_reason(reason: str, options: KafkaOptions) -> _Finding | None:
    alert = _ALERT.fullmatch(reason)
    said = alert[1] if alert else reason
    certificate = options.ssl_certificate_location
    if certificate is None and said in {*_CLIENT_CERTIFICATE, _EITHER}:
        other = " (or there is no cipher in common)" if said == _EITHER else ""
        return _Finding(
            f"it wants a certificate of the client, and there is none{other}; it answered {said}",
            "set ssl.certificate.location to a PEM file with the client's certificate and key",
        )
    if said in _CLIENT_CERTIFICATE:
        return _Finding(
            f"it refuses the client's certificate ssl.certificate.location={certificate}; it answered {said}",
            "have it signed by an authority in ssl.truststore.location of the broker, and look at its dates",
        )
    if said in _NOTHING_IN_COMMON or said == _EITHER:
        return _Finding(
            f"there is no version or cipher of TLS in common; it says {said}",
            "allow TLS 1.2 or 1.3 in ssl.enabled.protocols of the broker, and look at its ssl.cipher.suites",
        )
    if said in _NO_TLS:
        return _Finding(
            f"what it answers is no TLS ({said}), and security.protocol={options.security_protocol} wants it",
            "give the port of a listener with TLS in bootstrap.servers (this one has none), or set security.protocol",
        )
    return None
