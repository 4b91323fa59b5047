"""Where the server listens, and who may log in there."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.listeners import (
    DEFAULT_PROTOCOL_MAP,
    Endpoint,
    Listener,
    SecurityProtocol,
    Users,
    parse_endpoints,
    parse_listeners,
)

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Endpoint("PLAINTEXT", "127.0.0.1", 9092)),
        ("ssl://:0", Endpoint("SSL", "", 0)),
        ("A_1://[::1]:65535", Endpoint("A_1", "::1", 65535)),
        ("X://host-1.example.org:1", Endpoint("X", "host-1.example.org", 1)),
    ],
)
def test_an_endpoint_is_read_and_written(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoints(text, option="listeners") == (endpoint,)
    assert str(endpoint) == text.replace("ssl", "SSL")


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1:9092", "A://h", "A://h:65536", "A://h:x", "A://h:1,a://h:2", "A://h:1,", "A://::1:5"]
)
def test_what_is_no_list_of_endpoints_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="NAME://HOST:PORT"):
        parse_endpoints(text, option="listeners")


def test_listeners_have_a_protocol_by_name_and_an_address_to_tell() -> None:
    found = parse_listeners(
        f"INSIDE://10.0.0.1:1,SASL_SSL://{EVERYWHERE}:2",
        advertised="SASL_SSL://broker.example:443",
        protocol_map=f"{DEFAULT_PROTOCOL_MAP}, inside : sasl_plaintext",
    )
    assert found == (
        Listener(Endpoint("INSIDE", "10.0.0.1", 1), SecurityProtocol.SASL_PLAINTEXT),
        Listener(Endpoint("SASL_SSL", EVERYWHERE, 2), SecurityProtocol.SASL_SSL, ("broker.example", 443)),
    )
    assert [(each.protocol.has_tls, each.protocol.has_sasl) for each in found] == [(False, True), (True, True)]


@pytest.mark.parametrize(
    ("listeners", "advertised", "protocols", "text"),
    [
        ("A://h:1", None, DEFAULT_PROTOCOL_MAP, "must have a protocol for each listener"),
        ("A://h:1", None, "A:TSL", "a protocol is one of"),
        ("A://h:1", None, "A", "must be a list of NAME:PROTOCOL"),
        ("SSL://h:1", "PLAINTEXT://h:1", DEFAULT_PROTOCOL_MAP, "PLAINTEXT is not the name of a listener"),
        ("SSL://0.0.0.0:1", None, DEFAULT_PROTOCOL_MAP, "every interface"),
        ("SSL://:1", None, DEFAULT_PROTOCOL_MAP, "every interface"),
        ("SSL://[::]:1", None, DEFAULT_PROTOCOL_MAP, "every interface"),
        ("SSL://h:1", "SSL://0.0.0.0:1", DEFAULT_PROTOCOL_MAP, "every interface"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    listeners: str, advertised: str | None, protocols: str, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        parse_listeners(listeners, advertised=advertised, protocol_map=protocols)


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (f'{LOGIN} user_alice="secret";', {"alice": "secret"}),
        (f'{LOGIN}\n  username="x" password="y"\n  user_a=b\n  user_c="d e;f" ;', {"a": "b", "c": "d e;f"}),
        (LOGIN + r' user_a="q\"\\";', {"a": 'q"\\'}),
    ],
)
def test_users_are_read_from_the_jaas_text(text: str, users: dict[str, str]) -> None:
    found = Users.parse(text, option="o")
    assert found.passwords == users
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        LOGIN,
        f"{LOGIN};",
        f'{LOGIN} user_alice="secret"',
        f'{LOGIN} username="alice" password="secret";',
        f'{LOGIN} usr_alice="secret";',
        f"{LOGIN} user_alice;",
        f'{LOGIN} user_alice="secret;',
        'org.apache.kafka.common.security.scram.ScramLoginModule required user_alice="secret";',
        LOGIN.replace("required", "optional") + ' user_alice="secret";',
    ],
)
def test_another_form_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Users.parse(text, option="o")
    assert caught.value.value == "***"
