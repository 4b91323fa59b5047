"""SASL/OAUTHBEARER properties: both families' names, one way to tokens, and nothing that would be ignored."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from spark_2pc_sink.options import KafkaOptions

PLACE = {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
URL = "https://login.example.org/token"
LIBRDKAFKA = {
    "sasl.oauthbearer.method": "OIDC",
    "sasl.oauthbearer.token.endpoint.url": URL,
    "sasl.oauthbearer.client.id": "orders",
    "sasl.oauthbearer.client.secret": "s3cr;t",
    "sasl.oauthbearer.scope": "kafka",
    "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
}
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
EXTENSIONS = 'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-2"'
JAAS = f'{MODULE} required clientId="orders" clientSecret="s3cr;t" scope="kafka" {EXTENSIONS};'


def parse(**changes: Any) -> KafkaOptions:
    return KafkaOptions.parse(PLACE | changes)


def parsed(properties: dict[str, Any]) -> dict[str, object]:
    """The fields about tokens, without the method, which only one family names."""
    options = KafkaOptions.parse(PLACE | properties)
    return {name: value for name, value in vars(options).items() if name.startswith("oauth") and name != "oauth_method"}


def token(config: str) -> tuple[str, float]:
    return config, 0.0


@pytest.mark.parametrize(
    "java",
    [
        # KIP-768
        {
            "sasl.login.callback.handler.class": HANDLER.replace("oauthbearer.O", "oauthbearer.secured.O"),
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.jaas.config": JAAS,
        },
        # KIP-1139
        {
            "sasl.login.callback.handler.class": HANDLER,
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.jaas.config": f"{MODULE} required {EXTENSIONS};",
            "sasl.oauthbearer.client.credentials.client.id": "orders",
            "sasl.oauthbearer.client.credentials.client.secret": "s3cr;t",
            "sasl.oauthbearer.scope": "kafka",
        },
    ],
)
def test_java_s_names_mean_the_same(java: dict[str, str]) -> None:
    assert parsed(java) == parsed(LIBRDKAFKA)
    assert KafkaOptions.parse(PLACE | java).sasl_extensions == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}


def test_secrets_are_not_shown() -> None:
    function = functools.partial(token, "s3cr;t")
    for options in (KafkaOptions.parse(PLACE | LIBRDKAFKA), parse(oauth_cb=function)):
        assert "s3cr;t" not in repr(options)


def test_a_function_is_named_in_files() -> None:
    options = parse(oauth_cb="tests.unit.options.test_kafka_oauth:token")
    assert options.oauth_cb is not None
    assert options.oauth_cb.function("here") == ("here", 0.0)
    assert KafkaOptions.parse(options).oauth_cb == options.oauth_cb
    assert parse(oauth_cb=options.oauth_cb).oauth_cb == options.oauth_cb
