"""Where the server listens, and who may log in there."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.listeners import DEFAULT_PROTOCOL_MAP, Users, parse_endpoints, parse_listeners

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.mark.parametrize("text", ["", "127.0.0.1:9092", "A://h:65536", "A://h:x", "A://h:1,a://h:2", "A://::1:5"])
def test_what_is_no_list_of_endpoints_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="NAME://HOST:PORT"):
        parse_endpoints(text, option="listeners")


@pytest.mark.parametrize(
    ("listeners", "advertised", "protocols", "text"),
    [
        ("A://h:1", None, DEFAULT_PROTOCOL_MAP, "must have a protocol for each listener"),
        ("A://h:1", None, "A:TSL", "a protocol is one of"),
        ("SSL://h:1", "PLAINTEXT://h:1", DEFAULT_PROTOCOL_MAP, "PLAINTEXT is not the name of a listener"),
        ("SSL://0.0.0.0:1", None, DEFAULT_PROTOCOL_MAP, "every interface"),
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
        f'{LOGIN} user_alice="secret"',
        f'{LOGIN} username="alice" password="secret";',
        f'{LOGIN} user_alice="secret;',
        'org.apache.kafka.common.security.scram.ScramLoginModule required user_alice="secret";',
    ],
)
def test_another_form_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Users.parse(text, option="o")
    assert caught.value.value == "***"
