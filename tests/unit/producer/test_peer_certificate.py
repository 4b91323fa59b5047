"""What an error tells of a certificate that a peer has shown."""

from __future__ import annotations

import pytest

from spark_2pc_sink.producer.peer_certificate import PeerCertificate, most_telling, read_certificate

INFO = {
    "subject": ((("countryName", "DE"),), (("commonName", "broker"), ("serialNumber", "7"))),
    "issuer": ((("organizationName", "Example"),), (("commonName", "root\nERROR forged line"),)),
    "notBefore": "Jan  1 00:00:00 2026 GMT",
    "notAfter": "Feb 28 23:59:59 2026 GMT",
    "subjectAltName": (("DNS", "broker.example.org"), ("DirName", (("x", "y"),)), ("IP Address", "10.0.0.1")),
}
JANUARY_S = 1_767_225_600.0


def certificate(name: str, *, first_s: float = 0, last_s: float = 100) -> PeerCertificate:
    return PeerCertificate(subject=name, issuer="", names=(), not_before_s=first_s, not_after_s=last_s)


def test_subject_issuer_names_and_dates_in_one_line() -> None:
    """A stranger has written it: a line break would forge a line of a log."""
    assert str(read_certificate(INFO)) == (
        "subject C=DE, CN=broker, serialNumber=7, issuer O=Example, CN=root?ERROR forged line, for "
        "DNS:broker.example.org, IP Address:10.0.0.1, valid from 2026-01-01 00:00:00 UTC to 2026-02-28 23:59:59 UTC"
    )


def test_many_names_are_cut_and_an_empty_subject_is_told() -> None:
    many = tuple(("DNS", f"h{number}") for number in range(20))
    text = str(read_certificate({**INFO, "subject": (), "subjectAltName": many}))
    assert text.startswith("subject (empty), issuer")
    assert "DNS:h7, ..., valid" in text


@pytest.mark.parametrize(("now_s", "valid"), [(JANUARY_S, True), (JANUARY_S - 1, False), (JANUARY_S + 1e8, False)])
def test_dates(now_s: float, valid: bool) -> None:
    assert read_certificate(INFO).valid_at(now_s) is valid


def test_the_certificate_whose_dates_are_the_trouble_is_shown() -> None:
    leaf, old = certificate("leaf"), certificate("authority", last_s=10)
    assert most_telling([leaf, old], 50) == old
    assert most_telling([leaf, old], 5) == leaf
    assert most_telling([]) is None
