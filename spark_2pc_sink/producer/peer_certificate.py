"""The certificate that a peer shows, as an error tells it: whose it is, who has signed it, and from when to when.

A handshake that fails leaves no certificate that ``getpeercert`` would show. OpenSSL has it all the same.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, cast

#: RFC 4514, section 3; another attribute keeps the name that OpenSSL gives it.
_SHORT: Final = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "domainComponent": "DC",
}
#: A certificate may be for hundreds of names.
_NAMES_MAX: Final = 8


@dataclass(frozen=True)
class PeerCertificate:
    """What an error tells of a certificate.

    Attributes:
        subject: whose it is.
        issuer: who has signed it.
        names: hosts that it is for.
        not_before_s: seconds since 1970 from which on it is valid.
        not_after_s: until when.
    """

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before_s: float
    not_after_s: float

    def valid_at(self, now_s: float) -> bool:
        """Whether its dates allow it."""
        return self.not_before_s <= now_s <= self.not_after_s

    def __str__(self) -> str:
        more = ", ..." if len(self.names) > _NAMES_MAX else ""
        names = f", for {', '.join(self.names[:_NAMES_MAX])}{more}" if self.names else ""
        dates = f"valid from {_date(self.not_before_s)} to {_date(self.not_after_s)}"
        return f"subject {self.subject or '(empty)'}, issuer {self.issuer or '(empty)'}{names}, {dates}"


def shown_by_peer(sock: ssl.SSLSocket) -> tuple[PeerCertificate, ...]:
    """The chain that a peer has shown in a handshake that may have failed, its own certificate first."""
    # Python has the public ssl.SSLSocket.get_unverified_chain from 3.13 on, and this beneath it since 3.10.
    connection = getattr(sock, "_sslobj", None)
    chain = None if connection is None else connection.get_unverified_chain()
    return tuple(read_certificate(each.get_info()) for each in chain or ())


def most_telling(chain: Iterable[PeerCertificate], now_s: float | None = None) -> PeerCertificate | None:
    """The certificate to show: the first one whose dates are the trouble, else the peer's own."""
    now_s = time.time() if now_s is None else now_s
    shown = tuple(chain)
    return next((each for each in shown if not each.valid_at(now_s)), next(iter(shown), None))


def read_certificate(info: Mapping[str, Any]) -> PeerCertificate:
    """A certificate as ``ssl.SSLSocket.getpeercert`` describes one."""
    return PeerCertificate(
        subject=_name(info.get("subject", ())),
        issuer=_name(info.get("issuer", ())),
        names=tuple(_printable(f"{kind}:{name}") for kind, name in _pairs(info.get("subjectAltName", ()))),
        not_before_s=ssl.cert_time_to_seconds(info["notBefore"]),
        not_after_s=ssl.cert_time_to_seconds(info["notAfter"]),
    )


def _name(relative: Iterable[Iterable[tuple[str, str]]]) -> str:
    return _printable(", ".join(f"{_SHORT.get(kind, kind)}={text}" for part in relative for kind, text in part))


def _pairs(found: Iterable[Any]) -> Iterator[tuple[str, str]]:
    return (cast("tuple[str, str]", each) for each in found if isinstance(each[1], str))


def _printable(text: str) -> str:
    """Without line breaks and the like: a stranger has written it, and a log has lines."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _date(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
