"""TLS listeners, with certificates made for the test."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.network.connection import certificate_principal, server_context
from tests.unit.reference.net import Client, ask_whoami, metadata, serving, whoami


@dataclass
class Certificates:
    authority: trustme.CA
    properties: dict[str, str]
    folder: Path

    def client(self, name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if name is not None:
            self.authority.issue_cert(
                "alice@example.org", common_name=name, organization_name="Smith, Inc"
            ).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    properties = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(folder / "server.pem")}
    return Certificates(authority, properties, folder)


def with_client_auth(certificates: Certificates, auth: str) -> dict[str, str]:
    trusted = str(certificates.folder / "authority.pem")
    return {**certificates.properties, "ssl.client.auth": auth, "ssl.truststore.location": trusted}


async def test_a_client_with_a_certificate_is_known_by_its_name(certificates: Certificates) -> None:
    async with serving(metadata(whoami), properties=with_client_auth(certificates, "required")) as server:
        client = await Client.connect(server, ssl=certificates.client("alice"))
        principal = await ask_whoami(client)
        assert principal.startswith("User:CN=alice,")
        assert r"O=Smith\, Inc" in principal


@pytest.mark.parametrize(("auth", "comes_in"), [("none", True), ("requested", True), ("required", False)])
async def test_a_client_without_a_certificate(certificates: Certificates, auth: str, comes_in: bool) -> None:
    async with serving(metadata(whoami), properties=with_client_auth(certificates, auth)) as server:
        client = await Client.connect(server, ssl=certificates.client())
        if comes_in:
            assert await ask_whoami(client) == "User:ANONYMOUS"
            return
        # With TLS 1.3 the client learns that it was refused from its first read.
        with pytest.raises((ssl.SSLError, asyncio.IncompleteReadError, ConnectionResetError)):
            await ask_whoami(client)
        assert not server.connections


@pytest.mark.parametrize("name", ["ssl.keystore.location", "ssl.truststore.location"])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_is_not_what_it_should_be_is_refused(
    certificates: Certificates, tmp_path: Path, name: str, content: str | None
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)
    properties = BrokerProperties.from_mapping({**with_client_auth(certificates, "required"), name: str(path)})
    with pytest.raises(ConfigurationError, match=name):
        server_context(properties)


def test_an_encrypted_key_needs_its_password(certificates: Certificates, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as pem  # noqa: PLC0415 - comes with trustme

    issued = certificates.authority.issue_cert("127.0.0.1")
    key = pem.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"open sesame"))
    path = tmp_path / "locked.pem"
    path.write_bytes(locked + b"".join(each.bytes() for each in issued.cert_chain_pems))
    named = {**certificates.properties, "ssl.keystore.location": str(path)}
    server_context(BrokerProperties.from_mapping({**named, "ssl.key.password": "open sesame"}))
    for wrong in ({}, {"ssl.key.password": "open barley"}):
        with pytest.raises(ConfigurationError, match=r"ssl\.key\.password"):
            server_context(BrokerProperties.from_mapping({**named, **wrong}))


@pytest.mark.parametrize(
    ("subject", "principal"),
    [
        ((), "User:ANONYMOUS"),
        (((("countryName", "DE"),), (("organizationName", "O"),), (("commonName", "a"),)), "User:CN=a,O=O,C=DE"),
        (((("commonName", "a"), ("userId", "7")),), "User:CN=a+UID=7"),
        (((("commonName", '#a+b"c'),),), 'User:CN=\\#a\\+b\\"c'),
    ],
)
def test_a_distinguished_name_is_written_as_java_writes_it(subject: Any, principal: str) -> None:
    assert certificate_principal({"subject": subject}) == principal
