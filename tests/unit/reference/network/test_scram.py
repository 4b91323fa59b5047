"""SASL/SCRAM (RFC 5802, RFC 7677): what the server says, and whom it lets in."""

from __future__ import annotations

import base64
import logging
import struct
from typing import Any

import pytest
from kafka.net.sasl.scram import ScramClient
from kafka.protocol.sasl import SaslAuthenticateResponse

from spark_2pc_sink.reference.config.listeners import Users
from spark_2pc_sink.reference.network.sasl import LoginRefusedError, ScramExchange
from tests.unit.reference.net import Client, metadata, serving
from tests.unit.reference.network.test_sasl import PROPERTIES, ask_whoami, authenticate, handshake, whoami

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
def test_the_right_password_comes_in(user: str, password: str, named: str, mechanism: str) -> None:
    assert log_in(user, password, mechanism, named) == user


@pytest.mark.parametrize("mechanism", BOTH)
def test_the_wrong_one_does_not(mechanism: str) -> None:
    with pytest.raises(LoginRefusedError, match=f"{REFUSED} {mechanism}"):
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
        (b"n,,n=carol,r=abc", "there is no such user"),
        (b"n,,n=,r=abc", "the first message has another form"),
        (b"n,,n=alice", "the first message has another form"),
        (b"n,,n=al=41ice,r=abc", "the first message has another form"),
        (b"p=tls-unique,,n=alice,r=abc", "the first message has another form"),
        (b"", "the first message has another form"),
        (b"n,,n=\xff,r=abc", "a message is no UTF-8"),
    ],
)
def test_a_first_message_that_is_refused(message: bytes, reason: str) -> None:
    with pytest.raises(LoginRefusedError) as caught:
        ScramExchange(USERS, "SCRAM-SHA-256").evaluate(message)
    assert caught.value.told == f"{REFUSED} SCRAM-SHA-256"
    assert caught.value.logged == f"{REFUSED} SCRAM-SHA-256 ({reason})"


def test_an_authorization_id_of_somebody_else_is_refused_and_ones_own_is_not() -> None:
    with pytest.raises(LoginRefusedError, match="authorization id that is different from username"):
        ScramExchange(USERS, "SCRAM-SHA-256").evaluate(b"n,a=bob,n=alice,r=abc")
    answer, _ = ScramExchange(USERS, "SCRAM-SHA-256").evaluate(b"n,a=alice,n=alice,r=abc,tokenauth=false")
    assert answer.startswith(b"r=abc")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "belongs to another first one"),
        (lambda final: final.replace(b",p=", b"x,p="), "belongs to another first one"),
        (lambda final: final.replace(b",p=", b",q="), "has another form"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAAA", "has another form"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAA", "the proof has another length"),
    ],
    ids=["channel", "nonce", "no proof", "no base64", "short proof"],
)
def test_a_second_message_that_is_refused(change: Any, reason: str) -> None:
    client, exchange = ScramClient("alice", "secret", "SCRAM-SHA-256"), ScramExchange(USERS, "SCRAM-SHA-256")
    answer, _ = exchange.evaluate(client.first_message())
    client.process_server_first_message(answer)
    with pytest.raises(LoginRefusedError) as caught:
        exchange.evaluate(change(client.final_message()))
    assert reason in caught.value.logged


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
    assert "(the password is another)" in line
    assert "wrong" not in line


async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are() -> None:
    properties = {**PROPERTIES, "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    async with serving(properties=properties) as server:
        client = await Client.connect(server)
        answer = await handshake(client)
        assert (answer.error_code, list(answer.mechanisms)) == (33, ["SCRAM-SHA-512"])
        assert await client.ends() == b""
