"""Tokens for Amazon MSK: the vendor's signer is called as its documentation says. No cluster of MSK is asked."""

from __future__ import annotations

import base64
import http.client
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.logins.msk import msk_iam
from spark_2pc_sink.logins.tokens import Token, token_source
from spark_2pc_sink.options import KafkaOptions


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
