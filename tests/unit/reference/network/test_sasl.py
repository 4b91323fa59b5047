"""SASL/PLAIN: who comes in, who does not, and what is said before."""

from __future__ import annotations

import asyncio
import base64
import logging
import struct
from typing import Any

import pytest
from kafka.net.sasl.scram import ScramClient
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from spark_2pc_sink.reference.config.listeners import Users
from spark_2pc_sink.reference.network import connection as connections
from spark_2pc_sink.reference.network.sasl import SaslRefusedError, ScramExchange
from tests.unit.reference.net import METADATA_VERSION, Client, ask_whoami, metadata, metadata_request, serving, whoami
from tests.unit.reference.waiting import until

PROPERTIES = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "connection.failed.authentication.delay.ms": "1",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_alice="secret" user_bob="p\\"w" user_zoë="ünï";'
    ),
}


async def handshake(client: Client, version: int = 1, mechanism: str = "PLAIN") -> Any:
    return await client.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, version)


async def authenticate(client: Client, message: bytes, version: int = 2) -> Any:
    return await client.ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, version)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("message", "principal"),
    [
        (b"\0alice\0secret", "User:alice"),
        (b"alice\0alice\0secret", "User:alice"),
        (b'\0bob\0p"w', "User:bob"),
        ("\0zoë\0ünï".encode(), "User:zoë"),
    ],
)
async def test_the_right_password_comes_in(message: bytes, principal: str, version: int) -> None:
    async with serving(metadata(whoami), properties=PROPERTIES) as server:
        client = await Client.connect(server)
        assert await client.works()
        shaken = await handshake(client)
        assert (shaken.error_code, list(shaken.mechanisms)) == (0, ["PLAIN"])
        answer = await authenticate(client, message, version)
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        assert await ask_whoami(client) == principal
        assert server.metrics.failed_logins == 0


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0carol\0secret", "Authentication failed: Invalid username or password"),
        (b"\0alice\0\xff", "Authentication failed: Invalid username or password"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"bob\0alice\0secret", "Authentication failed: Client requested an authorization id that is different"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
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


async def test_an_unknown_mechanism_is_answered_with_those_that_there_are() -> None:
    async with serving(properties=PROPERTIES) as server:
        client = await Client.connect(server)
        answer = await handshake(client, mechanism="SCRAM-SHA-256")
        assert (answer.error_code, list(answer.mechanisms)) == (33, ["PLAIN"])
        assert await client.ends() == b""


async def test_a_handshake_of_version_0_is_followed_by_a_bare_message() -> None:
    async with serving(metadata(whoami), properties=PROPERTIES) as server:
        client = await Client.connect(server)
        assert (await handshake(client, 0)).error_code == 0
        message = b"\0alice\0secret"
        client.writer.write(struct.pack(">i", len(message)) + message)
        assert await client.receive() == b""
        assert await ask_whoami(client) == "User:alice"
        wrong = await Client.connect(server)
        await handshake(wrong, 0)
        wrong.writer.write(struct.pack(">i", 3) + b"\0a\0")
        assert await wrong.ends() == b""


@pytest.mark.parametrize("steps", ["M", "VM", "HM", "A", "VV", "HH", "HV", "VHH"])
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


async def test_an_unknown_version_of_api_versions_may_be_followed_by_a_known_one() -> None:
    async with serving(properties=PROPERTIES) as server:
        client = await Client.connect(server)
        client.writer.write(struct.pack(">ihhihb", 11, 18, 99, 1, -1, 0))
        answer = ApiVersionsResponse.decode(await client.receive(), version=0, header=True)
        assert (answer.error_code, [(each.api_key, each.max_version) for each in answer.api_keys]) == (35, [(18, 5)])
        assert await client.works()
        assert (await handshake(client)).error_code == 0


async def test_a_second_login_is_refused_and_so_is_one_where_none_is_needed() -> None:
    async with serving(metadata(whoami)) as server:
        client = await Client.connect(server)
        assert (await handshake(client)).error_code == 34
        assert (await authenticate(client, b"\0alice\0secret")).error_code == 34
        assert await ask_whoami(client) == "User:ANONYMOUS"


async def test_a_long_request_before_the_login_ends_the_connection_and_after_it_does_not() -> None:
    properties = {**PROPERTIES, "sasl.server.max.receive.size": "100"}
    async with serving(metadata(whoami), properties=properties) as server:
        client = await Client.connect(server)
        await handshake(client)
        await authenticate(client, b"\0alice\0secret")
        client.writer.write(struct.pack(">ihhih", 20_000, 3, 0, 1, -1) + bytes(20_000 - 10))
        await client.receive()
        stranger = await Client.connect(server)
        stranger.writer.write(struct.pack(">i", 101))
        assert await stranger.ends() == b""


async def test_a_refusal_takes_its_time_and_holds_up_nobody_else() -> None:
    properties = {**PROPERTIES, "connection.failed.authentication.delay.ms": "60000"}
    async with serving(properties=properties) as server:
        client = await Client.connect(server)
        await handshake(client)
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
        await until(lambda: server.metrics.failed_logins == 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)
        bystander = await Client.connect(server)
        await handshake(bystander)
        assert (await authenticate(bystander, b"\0alice\0secret")).error_code == 0


async def test_a_client_that_has_logged_in_is_not_closed_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOGIN_DEADLINE_S", 0.1)
    async with serving(metadata(whoami), properties=PROPERTIES) as server:
        client = await Client.connect(server)
        await handshake(client)
        await authenticate(client, b"\0alice\0secret")
        stranger = await Client.connect(server)
        assert await stranger.ends() == b""
        assert await ask_whoami(client) == "User:alice"


async def test_a_client_that_does_not_log_in_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(connections, "LOGIN_DEADLINE_S", 0.5)
        async with serving(properties=PROPERTIES) as server:
            client = await Client.connect(server)
            assert await client.works()
            assert await client.ends() == b""
            assert server.metrics.failed_logins == 1
    assert "no login within" in caplog.text


BOTH = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ENABLED = {**PROPERTIES, "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"}
USERS = Users({"alice": "secret", "a=b,c": "pa,ss=wörd", "zoë": "ünï"})
REFUSED = "Authentication failed during authentication due to invalid credentials with SASL mechanism"


def log_in(user: str, password: str, mechanism: str, named: str | None = None) -> str | None:
    """Who kafka-python's client becomes, which also checks the server's signature."""
    client, exchange = ScramClient(named or user, password, mechanism), ScramExchange(USERS, mechanism)
    answer, nobody = exchange.evaluate(client.first_message())
    assert nobody is None
    client.process_server_first_message(answer)
    answer, known = exchange.evaluate(client.final_message())
    client.process_server_final_message(answer)
    return known


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize(
    ("user", "password", "named"),
    [("alice", "secret", "alice"), ("a=b,c", "pa,ss=wörd", "a=3Db=2Cc"), ("zoë", "ünï", "zoë")],
)
def test_the_right_password_comes_in_by_scram(user: str, password: str, named: str, mechanism: str) -> None:
    assert log_in(user, password, mechanism, named) == user


@pytest.mark.parametrize("mechanism", BOTH)
def test_the_wrong_one_does_not(mechanism: str) -> None:
    with pytest.raises(SaslRefusedError, match=f"{REFUSED} {mechanism}"):
        log_in("alice", "Secret", mechanism)


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 7677, section 3."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    monkeypatch.setattr("secrets.token_bytes", lambda _length: salt)
    monkeypatch.setattr("secrets.token_hex", lambda _length: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    exchange = ScramExchange(Users({"user": "pencil"}), "SCRAM-SHA-256")
    answer, _ = exchange.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert answer == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    answer, user = exchange.evaluate(b"c=biws,r=" + nonce + b",p=" + proof)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert user == "user"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"n,,n=carol,r=abc", "unknown user"),
        (b"n,,n=,r=abc", "malformed first message"),
        (b"n,,n=alice", "malformed first message"),
        (b"n,,n=al=41ice,r=abc", "malformed first message"),
        (b"p=tls-unique,,n=alice,r=abc", "malformed first message"),
        (b"", "malformed first message"),
        (b"n,,n=\xff,r=abc", "a message is not UTF-8"),
    ],
)
def test_a_first_message_that_is_refused(message: bytes, reason: str) -> None:
    with pytest.raises(SaslRefusedError) as caught:
        ScramExchange(USERS, "SCRAM-SHA-256").evaluate(message)
    assert caught.value.client_message == f"{REFUSED} SCRAM-SHA-256"
    assert caught.value.log_message == f"{REFUSED} SCRAM-SHA-256 ({reason})"


def test_an_authorization_id_of_somebody_else_is_refused_and_ones_own_is_not() -> None:
    with pytest.raises(SaslRefusedError, match="authorization id that is different from username"):
        ScramExchange(USERS, "SCRAM-SHA-256").evaluate(b"n,a=bob,n=alice,r=abc")
    answer, _ = ScramExchange(USERS, "SCRAM-SHA-256").evaluate(b"n,a=alice,n=alice,r=abc,tokenauth=false")
    assert answer.startswith(b"r=abc")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "does not continue the first"),
        (lambda final: final.replace(b",p=", b"x,p="), "does not continue the first"),
        (lambda final: final.replace(b",p=", b",q="), "malformed second message"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAAA", "malformed second message"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAA", "the proof has the wrong length"),
    ],
    ids=["channel", "nonce", "no proof", "no base64", "short proof"],
)
def test_a_second_message_that_is_refused(change: Any, reason: str) -> None:
    client, exchange = ScramClient("alice", "secret", "SCRAM-SHA-256"), ScramExchange(USERS, "SCRAM-SHA-256")
    answer, _ = exchange.evaluate(client.first_message())
    client.process_server_first_message(answer)
    with pytest.raises(SaslRefusedError) as caught:
        exchange.evaluate(change(client.final_message()))
    assert reason in caught.value.log_message


@pytest.mark.parametrize("mechanism", BOTH)
async def test_a_connection_logs_in_by_two_messages(mechanism: str) -> None:
    async with serving(metadata(whoami), properties=ENABLED) as server:
        client, login = await Client.connect(server), ScramClient("alice", "secret", mechanism)
        shaken = await handshake(client, mechanism=mechanism)
        assert (shaken.error_code, tuple(shaken.mechanisms)) == (0, ("PLAIN", *BOTH))
        login.process_server_first_message((await authenticate(client, login.first_message())).auth_bytes)
        login.process_server_final_message((await authenticate(client, login.final_message())).auth_bytes)
        assert await ask_whoami(client) == "User:alice"


async def test_a_handshake_of_version_0_is_followed_by_bare_messages() -> None:
    async with serving(metadata(whoami), properties=ENABLED) as server:
        client, login = await Client.connect(server), ScramClient("alice", "secret", "SCRAM-SHA-512")
        await handshake(client, 0, "SCRAM-SHA-512")
        for say, hear in (
            (login.first_message, login.process_server_first_message),
            (login.final_message, login.process_server_final_message),
        ):
            message = say()
            client.writer.write(struct.pack(">i", len(message)) + message)
            hear(await client.receive())
        assert await ask_whoami(client) == "User:alice"


async def test_a_refusal_is_told_and_logged_without_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(metadata(whoami), properties=ENABLED) as server:
            client, login = await Client.connect(server), ScramClient("alice", "wrong", "SCRAM-SHA-256")
            await handshake(client, mechanism="SCRAM-SHA-256")
            login.process_server_first_message((await authenticate(client, login.first_message())).auth_bytes)
            answer: SaslAuthenticateResponse = await authenticate(client, login.final_message())
            assert (answer.error_code, answer.error_message) == (58, f"{REFUSED} SCRAM-SHA-256")
            assert await client.ends() == b""
            assert server.metrics.failed_logins == 1
    (line,) = caplog.messages
    assert "(the password does not match)" in line
    assert "wrong" not in line


async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are() -> None:
    properties = {**PROPERTIES, "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    async with serving(properties=properties) as server:
        client = await Client.connect(server)
        answer = await handshake(client)
        assert (answer.error_code, list(answer.mechanisms)) == (33, ["SCRAM-SHA-512"])
        assert await client.ends() == b""
