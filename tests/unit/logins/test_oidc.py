"""A client of a token endpoint: what it sends, what it takes for a token, and what each refusal says."""

from __future__ import annotations

import base64
import contextlib
import ssl
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import pytest
import trustme

from spark_2pc_sink.errors import AuthorizationError
from spark_2pc_sink.logins.tokens import Token, TokenSource, TokenUnavailableError, token_source
from spark_2pc_sink.options import KafkaOptions
from tests.harness.token_issuer import CLIENT_ID, CLIENT_SECRET, SECRET_PART, TokenIssuer


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with TokenIssuer(lifetime_s=60) as started:
        yield started


def token(issuer: TokenIssuer, **changes: str) -> Token:
    """What a client gets whose properties are those of `TokenIssuer.client` with changes."""
    return source_of(issuer.client(**{f"sasl.oauthbearer.{name}": value for name, value in changes.items()})).token()


def source_of(client: dict[str, str]) -> TokenSource:
    options = KafkaOptions.parse({"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", **client})
    source = token_source(options)
    assert source is not None
    return source


def test_the_credentials_go_into_the_header(issuer: TokenIssuer) -> None:
    """RFC 6749, sections 2.3.1 and 4.4.2: also with characters that mean something in a form."""
    began_s = time.time()
    given = token(issuer, scope="kafka write", extensions="logicalCluster=lkc-1,identityPoolId=pool-2")
    assert given.expires_at_s is not None
    assert began_s + 60 <= given.expires_at_s <= time.time() + 60
    assert given.extensions == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
    form, headers = issuer.asked
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka write"]}
    assert headers["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (HTTPStatus.UNAUTHORIZED, '{"error": "invalid_client"}', r"invalid_client.*answered Unauthorized, code 401"),
        (HTTPStatus.OK, "<html>", r"client 'orders' was refused a token.*answered OK, code 200"),
        (HTTPStatus.OK, "{}", r"no access_token.*answered OK, code 200"),
        (HTTPStatus.OK, '{"access_token": 5}', r"no access_token.*answered OK, code 200"),
        (HTTPStatus.OK, '{"access_token": "t", "expires_in": "soon"}', r"soon.*answered OK, code 200"),
        (HTTPStatus.FOUND, "elsewhere", r"answered Found, code 302"),
    ],
)
def test_a_refusal_is_told_at_once(issuer: TokenIssuer, status: HTTPStatus, body: str, said: str) -> None:
    issuer.failing = (status, body)
    with pytest.raises(AuthorizationError, match=said) as caught:
        token(issuer)
    assert issuer.token_url in str(caught.value)
    assert CLIENT_SECRET not in str(caught.value)
    assert caught.value.code == status


@pytest.mark.parametrize("status", [HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS])
def test_what_may_pass_is_asked_again(issuer: TokenIssuer, status: HTTPStatus) -> None:
    issuer.failing = (status, "later")
    with pytest.raises(TokenUnavailableError, match=f"the token endpoint .* failed: {status.value}"):
        token(issuer)


def test_an_endpoint_that_is_not_trusted_is_told_at_once(tmp_path: Path) -> None:
    """Another attempt would meet the same certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    says = r"issuer certificate.*Set https\.ca\.location.*CERTIFICATE_VERIFY_FAILED"
    with TokenIssuer(tls=context) as issuer:
        for changes in ({}, {"https.ca.location": str(tmp_path / "other.pem")}):
            source = source_of({**issuer.client(), **changes})
            with pytest.raises(AuthorizationError, match=says) as caught:
                source.token()
            assert CLIENT_SECRET not in repr(caught.value)


@pytest.mark.parametrize("status", [None, HTTPStatus.UNAUTHORIZED])
def test_nothing_is_printed_where_a_program_prints_all_requests(
    issuer: TokenIssuer,
    status: HTTPStatus | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """``http.client`` prints, past logging, what it sends: the client's credentials in the header."""
    monkeypatch.setattr(HTTPConnection, "debuglevel", 1)
    issuer.failing = None if status is None else (status, "{}")
    with caplog.at_level(1), contextlib.suppress(AuthorizationError):
        token(issuer)
    assert capsys.readouterr().out == ""
    assert SECRET_PART not in caplog.text
    assert base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode() not in caplog.text
