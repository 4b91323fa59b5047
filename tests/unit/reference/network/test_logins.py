"""Who comes in: SASL/PLAIN, and TLS listeners with certificates made for the test."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from kafka.net.sasl.scram import ScramClient
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import BrokerProperties, Users
from spark_2pc_sink.reference.network.connection import server_context
from spark_2pc_sink.reference.network.sasl import SaslRefusedError, ScramExchange
from tests.unit.reference.net import METADATA_VERSION, Client, ask_whoami, metadata, metadata_request, serving, whoami

PROPERTIES = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "connection.failed.authentication.delay.ms": "1",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_alice="secret" user_bob="p\\"w" user_zoë="ünï";'
    ),
}


async def handshake(client: Client, mechanism: str = "PLAIN") -> Any:
    return await client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)


async def authenticate(client: Client, message: bytes) -> Any:
    return await client.ask(SaslAuthenticateRequest(auth_bytes=message), 2)


@pytest.mark.parametrize(
    ("message", "principal"),
    [
        (b"\0alice\0secret", "User:alice"),
        (b"alice\0alice\0secret", "User:alice"),
        (b'\0bob\0p"w', "User:bob"),
        ("\0zoë\0ünï".encode(), "User:zoë"),
    ],
)
async def test_the_right_password_comes_in(message: bytes, principal: str) -> None:
    async with serving(metadata(whoami), properties=PROPERTIES) as server:
        client = await Client.connect(server)
        assert await client.works()
        shaken = await handshake(client)
        assert (shaken.error_code, list(shaken.mechanisms)) == (0, ["PLAIN"])
        answer = await authenticate(client, message)
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        assert await ask_whoami(client) == principal
        assert server.metrics.failed_logins == 0


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0alice\0\xff", "Authentication failed: Invalid username or password"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"bob\0alice\0secret", "Authentication failed: Client requested an authorization id that is different"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
    ],
)
async def test_the_wrong_one_is_told_so_and_the_connection_ends(
    message: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(metadata(whoami), properties=PROPERTIES) as server:
        client = await Client.connect(server)
        await handshake(client)
        answer = await authenticate(client, message)
        assert answer.error_code == 58
        assert answer.error_message.startswith(text)
        assert await client.ends() == b""
        assert server.metrics.failed_logins == 1
    (line,) = caplog.messages
    assert text in line
    assert "secret" not in line
    assert "wrong" not in line


@pytest.mark.parametrize("steps", ["M", "VM", "HM", "A", "VV", "VHH"])
async def test_anything_else_before_the_login_ends_the_connection(steps: str, caplog: pytest.LogCaptureFixture) -> None:
    """V ApiVersions, H SaslHandshake, A SaslAuthenticate, M Metadata; the last of each is out of order."""
    requests = {
        "V": (ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3),
        "H": (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        "A": (SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2),
        "M": (metadata_request(), METADATA_VERSION),
    }

    async with serving(metadata(whoami), properties=PROPERTIES) as server:
        client = await Client.connect(server)
        for step in steps[:-1]:
            client.send(*requests[step])
            await client.receive()
        client.send(*requests[steps[-1]])
        assert await client.ends() == b""
        assert server.metrics.protocol_errors == 1
    assert "before the login" in caplog.text


BOTH = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ENABLED = {**PROPERTIES, "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"}
USERS = Users({"alice": "secret", "a=b,c": "pa,ss=wörd", "zoë": "ünï"})
REFUSED = "Authentication failed during authentication due to invalid credentials with SASL mechanism"


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize(
    ("user", "password", "named"),
    [("alice", "secret", "alice"), ("a=b,c", "pa,ss=wörd", "a=3Db=2Cc"), ("zoë", "ünï", "zoë")],
)
def test_the_right_password_comes_in_by_scram(user: str, password: str, named: str, mechanism: str) -> None:
    """kafka-python's client also checks the server's signature."""
    client, exchange = ScramClient(named, password, mechanism), ScramExchange(USERS, mechanism)
    answer, nobody = exchange.evaluate(client.first_message())
    assert nobody is None
    client.process_server_first_message(answer)
    answer, known = exchange.evaluate(client.final_message())
    client.process_server_final_message(answer)
    assert known == user


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"n,,n=carol,r=abc", "unknown user"),
        (b"n,,n=al=41ice,r=abc", "malformed first message"),
        (b"p=tls-unique,,n=alice,r=abc", "malformed first message"),
        (b"n,,n=\xff,r=abc", "a message is not UTF-8"),
    ],
)
def test_a_first_message_that_is_refused(message: bytes, reason: str) -> None:
    with pytest.raises(SaslRefusedError) as caught:
        ScramExchange(USERS, "SCRAM-SHA-256").evaluate(message)
    assert caught.value.client_message == f"{REFUSED} SCRAM-SHA-256"
    assert caught.value.log_message == f"{REFUSED} SCRAM-SHA-256 ({reason})"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "does not continue the first"),
        (lambda final: final.replace(b",p=", b"x,p="), "does not continue the first"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAAA", "malformed second message"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAA", "the proof has the wrong length"),
    ],
    ids=["channel", "nonce", "no base64", "short proof"],
)
def test_a_second_message_that_is_refused(change: Any, reason: str) -> None:
    client, exchange = ScramClient("alice", "secret", "SCRAM-SHA-256"), ScramExchange(USERS, "SCRAM-SHA-256")
    answer, _ = exchange.evaluate(client.first_message())
    client.process_server_first_message(answer)
    with pytest.raises(SaslRefusedError) as caught:
        exchange.evaluate(change(client.final_message()))
    assert reason in caught.value.log_message


async def test_a_refusal_is_told_and_logged_without_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(metadata(whoami), properties=ENABLED) as server:
            client, login = await Client.connect(server), ScramClient("alice", "wrong", "SCRAM-SHA-256")
            await handshake(client, mechanism="SCRAM-SHA-256")
            login.process_server_first_message((await authenticate(client, login.first_message())).auth_bytes)
            answer = await authenticate(client, login.final_message())
            assert (answer.error_code, answer.error_message) == (58, f"{REFUSED} SCRAM-SHA-256")
            assert await client.ends() == b""
            assert server.metrics.failed_logins == 1
    (line,) = caplog.messages
    assert "(the password does not match)" in line
    assert "wrong" not in line


@dataclass
class Certificates:
    authority: trustme.CA
    properties: dict[str, str]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    path, authority = tmp_path_factory.mktemp("certificates") / "server.pem", trustme.CA()
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(path)
    return Certificates(authority, {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(path)})


async def test_a_client_comes_in_by_tls(certificates: Certificates) -> None:
    context = ssl.create_default_context()
    certificates.authority.configure_trust(context)
    async with serving(metadata(whoami), properties=certificates.properties) as server:
        client = await Client.connect(server, ssl=context)
        assert await ask_whoami(client) == "User:ANONYMOUS"


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_is_not_what_it_should_be_is_refused(
    certificates: Certificates, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)
    properties = BrokerProperties.from_mapping({**certificates.properties, "ssl.keystore.location": str(path)})
    with pytest.raises(ConfigurationError, match=r"ssl\.keystore\.location"):
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
