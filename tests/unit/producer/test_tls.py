"""The files of TLS: what they mean, and how those that cannot be read are refused. Covers B25 (no hang)."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.tls import client_context
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


def test_without_tls_there_is_nothing_to_read() -> None:
    assert client_context(KafkaOptions(bootstrap_servers=("127.0.0.1:1",))) is None


def test_an_authority_is_trusted_in_place_of_the_system(folder: Path) -> None:
    context = client_context(options(folder, ssl_ca_location="authority.pem"))
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_name_that_is_not_compared_is_still_signed_for() -> None:
    context = client_context(
        KafkaOptions(bootstrap_servers=("127.0.0.1:1",), security_protocol="SSL", ssl_check_hostname=False)
    )
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)


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
        ({"ssl_certificate_location": "none.pem"}, "ssl.certificate.location", "none.pem.*No such file"),
        ({"ssl_certificate_location": "chain.pem"}, "ssl.certificate.location", "chain.pem.*private key"),
        (
            {"ssl_certificate_location": "chain.pem", "ssl_key_location": "none.pem"},
            "ssl.certificate.location",
            "chain.pem, with ssl.key.location=.*none.pem",
        ),
        (
            {"ssl_certificate_location": "chain.pem", "ssl_key_location": "key.pem"},
            "ssl.certificate.location",
            "ssl.key.password is for an encrypted key",
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
