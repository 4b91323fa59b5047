"""TLS: what its files mean, which are refused, and which failures end a connection for good. Covers B25 (no hang)."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from spark_2pc_sink.errors import ConfigurationError, TlsRefusedError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection import TlsFailedError
from spark_2pc_sink.kafka.connection_failures import client_context, protocol_refusal, tls_refusal
from spark_2pc_sink.options import KafkaOptions

PASSWORD = b"pass-word"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """authority.pem, me.pem (certificate and key), and the same with key.pem apart and encrypted: chain.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    issued = authority.issue_cert("me@example.org")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "me.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "chain.pem")
    key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD))
    (folder / "key.pem").write_bytes(encrypted)
    (folder / "text.pem").write_text("no certificate")
    return folder


def options(folder: Path, **files: str) -> KafkaOptions:
    """Options with TLS; a value with a dot is a file in ``folder``."""
    given = {name: str(folder / value) if "." in value else value for name, value in files.items()}
    return KafkaOptions(bootstrap_servers=("127.0.0.1:1",), security_protocol="SSL", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("compared", [True, False])
def test_an_authority_is_trusted_in_place_of_the_system(folder: Path, *, compared: bool) -> None:
    """Also where the name is not compared, the certificate has to be signed."""
    context = client_context(tls_options(ssl_ca_location=str(folder / "authority.pem"), ssl_check_hostname=compared))
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, compared)


@pytest.mark.parametrize(
    "files",
    [
        {"ssl_certificate_location": "me.pem"},
        {"ssl_certificate_location": "chain.pem", "ssl_key_location": "key.pem", "ssl_key_password": PASSWORD.decode()},
    ],
)
def test_a_clients_certificate_is_read(folder: Path, files: dict[str, str]) -> None:
    assert client_context(options(folder, **files)) is not None


def test_revoked_certificates_are_looked_for(folder: Path) -> None:
    context = client_context(options(folder, ssl_ca_location="authority.pem", ssl_crl_location="authority.pem"))
    assert context is not None
    assert context.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF


@pytest.mark.parametrize(
    ("files", "option", "said"),
    [
        ({"ssl_ca_location": "none.pem"}, "ssl.ca.location", "none.pem.*trusted certificates.*No such file"),
        ({"ssl_ca_location": "text.pem"}, "ssl.ca.location", "text.pem"),
        ({"ssl_crl_location": "none.pem"}, "ssl.crl.location", "none.pem.*revoked"),
        ({"ssl_certificate_location": "chain.pem"}, "ssl.certificate.location", "chain.pem.*private key"),
        (
            {"ssl_certificate_location": "chain.pem", "ssl_key_location": "none.pem"},
            "ssl.certificate.location",
            "chain.pem, with ssl.key.location=.*none.pem",
        ),
        (
            {"ssl_certificate_location": "chain.pem", "ssl_key_location": "key.pem", "ssl_key_password": "wrong"},
            "ssl.certificate.location",
            "ssl.key.password is for an encrypted key",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(
    folder: Path, files: dict[str, str], option: str, said: str
) -> None:
    """At once, and never by asking for a password at the terminal."""
    with pytest.raises(ConfigurationError, match=said) as caught:
        Cluster(options(folder, **files))
    assert caught.value.option == option
    assert "wrong" not in str(caught.value)


WHERE = "broker h:9093"


def tls_options(protocol: str = "SSL", **given: Any) -> KafkaOptions:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"}
    more = login if protocol.startswith("SASL") else {}
    return KafkaOptions(bootstrap_servers=("h:9093",), security_protocol=protocol, **more, **given)  # type: ignore[arg-type]


def said(reason: str, **given: Any) -> TlsRefusedError | None:
    """What becomes of an error of OpenSSL's."""
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return tls_refusal(TlsFailedError(error), WHERE, tls_options(**given))


@pytest.mark.parametrize(
    ("reason", "certificate", "says"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", None, "none is set; it answered CERTIFICATE_REQUIRED"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", None, "none is set (or there is no common cipher)"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "me.pem", "no TLS version or cipher is common to both"),
        ("TLSV1_ALERT_UNKNOWN_CA", "me.pem", "refused the client's certificate ssl.certificate.location=me.pem"),
        ("UNSUPPORTED_PROTOCOL", None, "no TLS version or cipher is common to both; it answered UNSUPPORTED_PROTOCOL"),
        ("WRONG_VERSION_NUMBER", None, "its answer is not TLS (WRONG_VERSION_NUMBER)"),
        # What may be temporary is not a refusal.
        ("TLSV1_ALERT_INTERNAL_ERROR", None, ""),
        ("UNEXPECTED_EOF_WHILE_READING", None, ""),
    ],
)
def test_an_alert_and_its_remedy(reason: str, certificate: str | None, says: str) -> None:
    """B25: told at once, with the option that mends it."""
    error = said(reason, ssl_certificate_location=certificate)
    assert (error is None) is not bool(says)
    if error is not None:
        assert says in str(error)
        assert f"TLS with the {WHERE}" in str(error)


@pytest.mark.parametrize(
    ("code", "words", "given", "says"),
    [
        (20, "unable to get local issuer certificate", {}, "the system's (ssl.ca.location is not set)"),
        (19, "self-signed certificate in chain", {"ssl_ca_location": "a.pem"}, "those in ssl.ca.location=a.pem"),
        (62, "Hostname mismatch, certificate is not valid for 'h'.", {}, "refused (Hostname mismatch"),
        (10, "certificate has expired", {}, "refused (certificate has expired). Remedy: renew"),
        (9, "certificate is not yet valid", {}, "refused (certificate is not yet valid). Remedy: renew"),
        (23, "certificate revoked", {"ssl_crl_location": "r.pem"}, "refused (certificate revoked). Remedy: give the"),
        (12, "CRL has expired", {"ssl_crl_location": "r.pem"}, "(CRL has expired). Remedy: ssl.crl.location=r.pem has"),
        (26, "unsuitable certificate purpose", {}, "refused (unsuitable certificate purpose)"),
    ],
)
def test_a_certificate_and_its_remedy(code: int, words: str, given: dict[str, str], says: str) -> None:
    """OpenSSL's reason, the option that mends it, and the command that shows the certificate."""
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.reason, error.verify_code, error.verify_message = "CERTIFICATE_VERIFY_FAILED", code, words
    refused = tls_refusal(TlsFailedError(error), WHERE, tls_options(**given))
    assert refused is not None
    assert (refused.code, refused.name) == (code, "CERTIFICATE_VERIFY_FAILED")
    assert says in str(refused)
    assert str(refused).endswith("openssl s_client -showcerts -connect h:9093")


@pytest.mark.parametrize(
    ("protocol", "other"),
    [("PLAINTEXT", "SSL"), ("SASL_PLAINTEXT", "SASL_SSL"), ("SSL", "PLAINTEXT"), ("SASL_SSL", "SASL_PLAINTEXT")],
)
def test_the_other_protocol_is_named(protocol: str, other: str) -> None:
    error = protocol_refusal(WHERE, tls_options(protocol), peer_has_tls=not protocol.endswith("SSL"))
    assert f"set security.protocol={other}," in str(error)
