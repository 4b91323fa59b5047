"""Kafka client properties: both spellings, conversions, security, tokens, and what the sink decides by itself."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from kafka.net import KafkaConnection

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.kafka import FIXED, KNOWN_ELSEWHERE, REFUSED

SASL: dict[str, object] = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "shop",
    "sasl.password": "pass-word",
}


def parse(properties: dict[str, object]) -> KafkaOptions:
    return KafkaOptions.parse({"bootstrap.servers": "h:9092", **properties})


def refusal(properties: dict[str, object]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        parse(properties)
    assert "pass-word" not in str(raised.value)
    return str(raised.value)


def test_java_and_librdkafka_spellings_mean_the_same() -> None:
    java = {
        "request.timeout.ms": "7000",
        "delivery.timeout.ms": 8_000,
        "max.request.size": 2_000_000,
        "max.in.flight.requests.per.connection": "3",
        "compression.type": "lz4",
        "sasl.mechanism": "PLAIN",
    }
    librdkafka = {
        "socket.timeout.ms": 7_000,
        "message.timeout.ms": "8000",
        "message.max.bytes": "2000000",
        "max.in.flight": 3,
        "compression.codec": "lz4",
        "sasl.mechanisms": "PLAIN",
    }
    credentials = {name: SASL[name] for name in ("security.protocol", "sasl.username", "sasl.password")}
    options = parse({**java, **credentials})
    assert options == parse({**librdkafka, **credentials}) == parse({**java, **librdkafka, **credentials})
    assert (options.request_timeout_ms, options.delivery_timeout_ms, options.max_in_flight) == (7_000, 8_000, 3)


@pytest.mark.parametrize(
    ("given", "servers"),
    [
        ("h:1, g:2,", ("h:1", "g:2")),
        (["h:1", "g"], ("h:1", "g:9092")),
        ("[::1]:7,[fe80::1%eth0]", ("[::1]:7", "[fe80::1%eth0]:9092")),
    ],
)
def test_bootstrap_servers(given: object, servers: tuple[str, ...]) -> None:
    assert KafkaOptions.parse({"bootstrap.servers": given}).bootstrap_servers == servers
    assert KafkaOptions.parse({"metadata.broker.list": given}).bootstrap_servers == servers


@pytest.mark.parametrize("given", ["", "h:0", "h:65536", "PLAINTEXT://h:9092", "::1", "a b:1", [1]])
def test_bad_bootstrap_servers(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        KafkaOptions.parse({"bootstrap.servers": given})


def test_without_a_name_near_it_all_properties_are_named() -> None:
    assert "='***': no such property in kafka={...}; valid are bootstrap.servers" in refusal(
        {"frobnicate": "pass-word"}
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_belongs_elsewhere_is_refused_with_a_remedy(name: str) -> None:
    """Every producer property that a user may bring along, and that would mean nothing here."""
    said = refusal({name: "pass-word"})
    assert said.startswith(f"{name}='***'")
    assert said.endswith(REFUSED[name])


def test_the_names_of_other_clients_lead_to_names_that_exist() -> None:
    for name, ours in KNOWN_ELSEWHERE.items():
        assert f"the name here is {ours!r}" in refusal({name: 1})
        assert "no such property" not in str(refusal_or_none({ours: object()}))


def refusal_or_none(properties: dict[str, object]) -> str | None:
    try:
        parse(properties)
    except ConfigurationError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", FIXED)
def test_what_is_fixed_may_be_said_but_not_changed(name: str) -> None:
    """B23: a transaction without acks=all or idempotence is none (KIP-98)."""
    for allowed in FIXED[name][0]:
        assert parse({name: allowed}) == parse({})
    assert parse({"acks": -1, "enable.idempotence": True}) == parse({})
    for other in ("1", 0, False, "none"):
        assert "leave it out" in refusal({name: other})


def test_defaults_make_room_for_what_was_given() -> None:
    assert parse({"delivery.timeout.ms": 5_000}).request_timeout_ms == 5_000
    assert parse({"request.timeout.ms": 200_000}).delivery_timeout_ms == 200_000
    assert parse({"retry.backoff.ms": 3_000}).retry_backoff_max_ms == 3_000
    assert parse({"reconnect.backoff.max.ms": 10}).reconnect_backoff_ms == 10
    assert parse({"max.request.size": 50_000}).batch_bytes_max == 50_000
    assert parse({"batch.size": 5_000_000}).max_request_bytes == 5_000_000
    defaults = parse({})
    assert defaults.batch_bytes_max < 1_048_588 - 61  # message.max.bytes of a stock broker, less a batch's header
    assert (parse({"batch.size": 16_384}).batch_bytes_max, defaults.max_request_bytes) == (16_384, 1_048_576)


PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="shop" password="a\\"b;c" ;'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required\n username=shop password='pass-word' x=1;"


@pytest.mark.parametrize(
    ("mechanism", "jaas", "password"), [("plain", PLAIN, 'a"b;c'), ("SCRAM-SHA-256", SCRAM, "pass-word")]
)
def test_javas_login_text_is_read(mechanism: str, jaas: str, password: str) -> None:
    options = parse({"security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas})
    assert (options.sasl_mechanism, options.sasl_username) == (mechanism.upper(), "shop")
    assert options.sasl_password == password
    assert password not in repr(options)


def test_the_same_tls_files_in_javas_words() -> None:
    librdkafka = {"ssl.ca.location": "/ca.pem", "ssl.certificate.location": "/me.pem"}
    java = {
        "ssl.truststore.location": "/ca.pem",
        "ssl.truststore.type": "pem",
        "ssl.keystore.location": "/me.pem",
        "ssl.keystore.type": "PEM",
        "ssl.endpoint.identification.algorithm": "https",
    }
    options = parse({**SASL, **librdkafka})
    assert options == parse({**SASL, **java})
    assert not parse({**SASL, "ssl.endpoint.identification.algorithm": ""}).ssl_check_hostname


def test_kafka_python_knows_every_name_that_it_gets() -> None:
    """It ignores what it does not know, so a misspelt name would be a default in disguise."""
    config = parse(SASL).login_config()
    assert set(config) <= set(KafkaConnection.DEFAULT_CONFIG)
    assert config["sasl_plain_password"] == "pass-word"


@pytest.mark.parametrize(("mechanism", "sent"), [("PLAIN", "a=b,c=2C"), ("SCRAM-SHA-256", "a=3Db=2Cc=3D2C")])
def test_a_name_is_escaped_as_its_mechanism_wants_it(mechanism: str, sent: str) -> None:
    """RFC 5802, ``saslname``: kafka-python would send it as it is, and Kafka would know no such user."""
    options = parse({**SASL, "sasl.mechanism": mechanism, "sasl.username": "a=b,c=2C"})
    assert options.login_config()["sasl_plain_username"] == sent


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        ({}, 1),
        ({"compression.zstd.level": "-5"}, -5),
        ({"compression.type": "gzip", "compression.zstd.level": 3}, -1),
        ({"compression.type": "lz4"}, None),
    ],
)
def test_a_level_belongs_to_its_compression(properties: dict[str, object], level: int | None) -> None:
    """KIP-390."""
    assert parse(properties).compression_level == level


OAUTH: dict[str, object] = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
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


def about_tokens(properties: dict[str, Any]) -> dict[str, object]:
    """The fields about tokens, without the method, which only one family names."""
    options = parse(OAUTH | properties)
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
    assert about_tokens(java) == about_tokens(LIBRDKAFKA)
    assert parse(OAUTH | java).sasl_extensions == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}


def test_secrets_of_tokens_are_not_shown() -> None:
    function = functools.partial(token, "s3cr;t")
    for options in (parse(OAUTH | LIBRDKAFKA), parse(OAUTH | {"oauth_cb": function})):
        assert "s3cr;t" not in repr(options)


def test_a_function_is_named_in_files() -> None:
    options = parse(OAUTH | {"oauth_cb": "tests.unit.options.test_kafka_options:token"})
    assert options.oauth_cb is not None
    assert options.oauth_cb.function("here") == ("here", 0.0)
    assert KafkaOptions.parse(options).oauth_cb == options.oauth_cb
    assert parse(OAUTH | {"oauth_cb": options.oauth_cb}).oauth_cb == options.oauth_cb
