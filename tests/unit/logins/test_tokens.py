"""Tokens: how long one is used, where no new one can be had, a client of a token endpoint, Amazon MSK, Kerberos."""

from __future__ import annotations

import base64
import contextlib
import http.client
import logging
import pickle
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from pyspark.serializers import CloudPickleSerializer

from spark_2pc_sink.errors import AuthorizationError, ConfigurationError
from spark_2pc_sink.extras import MissingExtraError
from spark_2pc_sink.logins.msk import msk_iam
from spark_2pc_sink.logins.tokens import (
    BrokerTokens,
    Token,
    TokenSource,
    TokenUnavailableError,
    check_library,
    confluent_callback,
    token_source,
)
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.verification.topic_reader import client_settings
from tests.harness.token_issuer import CLIENT_ID, CLIENT_SECRET, SECRET_PART, TokenIssuer

NOW_S = 1_000_000.0


class Issuer:
    """Gives numbered tokens that live for so long, and has a clock."""

    def __init__(self, lifetime_s: float | None) -> None:
        self.lifetime_s = lifetime_s
        self.issued = 0
        self.now_s = NOW_S
        self.fails = False

    def ask(self) -> Token:
        if self.fails:
            raise TokenUnavailableError("no answer")
        self.issued += 1
        expires_at_s = None if self.lifetime_s is None else self.now_s + self.lifetime_s
        return Token(f"t{self.issued}", expires_at_s)

    def source(self) -> TokenSource:
        return TokenSource(self.ask, now_s=lambda: self.now_s)


def options_of(function: Callable[[str], Any], **more: str) -> KafkaOptions:
    return KafkaOptions.parse(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": function,
            **more,
        }
    )


def source_of(function: Callable[[str], Any], **more: str) -> TokenSource:
    source = token_source(options_of(function, **more))
    assert source is not None
    return source


@pytest.mark.parametrize(("age_s", "token"), [(0, "t1"), (79, "t1"), (80, "t2"), (500, "t2")])
def test_a_token_is_renewed_when_most_of_its_life_is_over(age_s: float, token: str) -> None:
    """Java's sasl.login.refresh.window.factor is 0.8."""
    issuer = Issuer(100)
    source = issuer.source()
    assert source.token().value == "t1"
    issuer.now_s += age_s
    assert source.token().value == token


def test_a_token_of_unknown_life_is_used_once() -> None:
    source = Issuer(None).source()
    assert [source.token().value for _ in range(3)] == ["t1", "t2", "t3"]


def test_the_old_token_serves_while_no_new_one_can_be_had(caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(100)
    source = issuer.source()
    source.token()
    issuer.fails = True
    issuer.now_s += 90
    with caplog.at_level(logging.WARNING):
        assert source.token().value == "t1"
    assert "could not renew the token; the current one expires in 10 s: no answer" in caplog.text
    issuer.now_s += 10
    with pytest.raises(TokenUnavailableError, match="no answer"):
        source.token()
    issuer.fails = False
    assert source.token().value == "t2"


def test_a_refused_token_is_not_shown_again() -> None:
    """One that was let in before may have been revoked: a new one is worth a try. A new one is refused for good."""
    issuer = Issuer(100)
    tokens = BrokerTokens(issuer.source())
    assert (tokens.token(), tokens.token()) == ("t1", "t1")
    assert tokens.refused()
    assert tokens.token() == "t2"
    assert not tokens.refused()
    assert tokens.token() == "t3"


def test_what_the_function_gets_and_gives() -> None:
    """By the convention of confluent-kafka: the configuration in, token, expiry, principal and extensions out."""
    expiry = 32_503_680_000
    source = source_of(
        lambda config: (f"token-for-{config}", expiry, "me", {"logicalCluster": "lkc-1"}),
        **{"sasl.oauthbearer.config": "scope"},
    )
    tokens = BrokerTokens(source)
    assert tokens.token() == "token-for-scope"
    assert tokens.extensions() == {"logicalCluster": "lkc-1"}
    assert confluent_callback(source)("") == ("token-for-scope", expiry, "", {"logicalCluster": "lkc-1"})
    assert "token-for" not in repr(source.token())


NONE = [
    "token",
    ("token",),
    ("", 1.0),
    ("two words", 1.0),
    (b"bytes", 1.0),
    ("token", 1.0, "me", {}, "more"),
    ("token", "soon"),
    ("token", True),
    ("token", 1.0, "me", "x=y"),
    ("token", 1.0, "me", {"auth": "x"}),
    ("token", 1.0, "me", {"name": "line\x01"}),
]


@pytest.mark.parametrize("returned", NONE)
def test_what_is_no_token_is_refused(returned: object) -> None:
    with pytest.raises(ConfigurationError):
        source_of(lambda _: returned).token()


def test_a_function_that_fails_may_be_called_again() -> None:
    def fails(_: str) -> tuple[str, float]:
        raise OSError("the metadata service is away")

    with pytest.raises(TokenUnavailableError, match="oauth_cb failed with OSError: the metadata service is away"):
        source_of(fails).token()


def test_tasks_of_a_process_share_a_token() -> None:
    """Each has unpickled its options anew; the function in them is another object each time."""
    options = options_of(lambda _: ("token", 32_503_680_000))
    pickled = CloudPickleSerializer().dumps(options)  # type: ignore[no-untyped-call]
    copies = [pickle.loads(pickled) for _ in range(2)]  # noqa: S301 - our own
    assert copies[0] == copies[1] == options
    assert len({options, *copies}) == 1
    sources = {id(token_source(copy)) for copy in (*copies, options)}
    assert len(sources) == 1
    assert "lambda" in repr(options)


PLACE = {"bootstrap.servers": "h:1"}
LOGIN = {**PLACE, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}


def test_without_the_package_the_error_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingExtraError, match=r'gssapi is not installed: run pip install "\.\[gssapi\]"'):
        check_library(KafkaOptions.parse(LOGIN))


def test_verify_refuses_by_name_where_its_library_has_no_kerberos() -> None:
    """As in the wheels of confluent-kafka."""
    with pytest.raises(ConfigurationError, match=r"built without Kerberos.*--command-config"):
        client_settings(KafkaOptions.parse(LOGIN))


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with TokenIssuer(lifetime_s=60) as started:
        yield started


def token(issuer: TokenIssuer, **changes: str) -> Token:
    """What a client gets whose properties are those of `TokenIssuer.client` with changes."""
    return endpoint_source(
        issuer.client(**{f"sasl.oauthbearer.{name}": value for name, value in changes.items()})
    ).token()


def endpoint_source(client: dict[str, str]) -> TokenSource:
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
            source = endpoint_source({**issuer.client(), **changes})
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


def signed(token: str) -> tuple[str, dict[str, list[str]]]:
    """The host of the signed URL that a token is, and what the URL says."""
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    return str(url.hostname), parse_qs(url.query)


def token_of(function: Any, config: str) -> Token:
    options = {
        "bootstrap.servers": "h:9098",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": function,
        "sasl.oauthbearer.config": config,
    }
    source = token_source(KafkaOptions.parse(options))
    assert source is not None
    return source.token()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of an account that there is not."""
    file = tmp_path / "credentials"
    file.write_text("[orders]\naws_access_key_id = OFPROFILE\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OFENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("config", "key"), [("region=eu-west-1", "OFENV"), ("region=eu-west-1 profile=orders", "OFPRO")]
)
def test_a_token_is_a_signed_url(config: str, key: str) -> None:
    """Named as in a file, so that a command finds the function too."""
    token = token_of("spark_2pc_sink.logins.msk:msk_iam", config)
    host, said = signed(token.value)
    assert host == "kafka.eu-west-1.amazonaws.com"
    assert said["Action"] == ["kafka-cluster:Connect"]
    assert said["X-Amz-Credential"][0].startswith(key)
    # A quarter of an hour.
    assert token.expires_at_s is not None
    assert 800 < token.expires_at_s - time.time() <= 900


@pytest.mark.parametrize(
    "config", ["", "eu-west-1", "region=", "region=a zone=b", "region=a profile=b role_arn=c", "profile=b"]
)
def test_another_configuration_is_refused(config: str) -> None:
    """At once: no other attempt could help."""
    with pytest.raises(ConfigurationError):
        token_of(msk_iam, config)


@pytest.mark.usefixtures("credentials")
def test_no_log_has_what_logs_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """botocore shows each request and answer at DEBUG, and http.client prints them where a program wants that."""
    monkeypatch.setattr(http.client.HTTPConnection, "debuglevel", 1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key-planted")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-planted")
    with caplog.at_level(1):
        token, _ = msk_iam("region=eu-west-1")
        logging.getLogger("botocore.auth").debug("Signature of somebody else: %s", "shown")
    _, said = signed(token)
    shown = caplog.text + "".join(capfd.readouterr())
    # The log is that of a signature, and the others' is as it was.
    assert "CanonicalRequest: (withheld)" in shown
    assert "Signature of somebody else: shown" in shown
    assert "planted" not in shown
    assert not [form for form in (token, *said["X-Amz-Signature"]) if form in shown]
