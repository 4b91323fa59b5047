"""The source of tokens: how long one is used, and where no new one can be had; and what Kerberos needs."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.extras import MissingExtraError
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
    *("token", ("token",), ("", 1.0), ("two words", 1.0), (b"bytes", 1.0), ("token", 1.0, "me", {}, "more")),
    *(("token", "soon"), ("token", True), ("token", 1.0, "me", "x=y")),
    *(("token", 1.0, "me", {"auth": "x"}), ("token", 1.0, "me", {"name": "line\x01"})),
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
