"""Broker properties: read, refused, shown."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import STANDARD_AUTHORIZER, BrokerProperties, check_level

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'


def refused(values: dict[str, str]) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        BrokerProperties.from_mapping(values)
    return caught.value


@pytest.mark.parametrize(("wanted", "level"), [(2, 0), (2, 1), (3, 2)])
def test_keeping_that_has_no_effect_at_the_finalized_level_is_refused(wanted: int, level: int) -> None:
    """Whatever the property says: the level is the cluster's."""
    properties = BrokerProperties(
        transaction_keep_prepared_enable=True,
        transaction_keep_prepared_version=wanted,
        unstable_api_versions_enable=True,
        transaction_version=2,
    )
    check_level(properties, wanted)
    text = f"from transaction.version {wanted} on; the finalized level is {level}"
    with pytest.raises(ConfigurationError, match=text):
        check_level(properties, level)


def test_texts_are_read_by_type() -> None:
    properties = BrokerProperties.from_mapping(
        {
            " num.partitions ": " 3 ",
            "auto.create.topics.enable": "FALSE",
            "super.users": "User:a; User:CN=b,O=c ;",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "connections.max.idle.ms": str(2**40),
        }
    )
    assert properties.num_partitions == 3
    assert not properties.auto_create_topics_enable
    assert properties.super_user_principals == {"User:a", "User:CN=b,O=c"}
    assert properties.connections_max_idle_ms == 2**40
    assert properties.given >= {"num.partitions", "super.users"}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num.partition", "3", "did you mean 'num.partitions'?"),
        ("transaction.keep.prepared.enable", "true", "offered with unstable.api.versions.enable=true only"),
        ("broker.id", "1", "the name here is 'node.id'"),
        ("num.partitions", "three", "it must be a whole number"),
        ("num.partitions", str(2**31), "at most 2147483647"),
        ("auto.create.topics.enable", "yes", "'true' or 'false'"),
        ("default.replication.factor", "3", "there is one node"),
        ("log.retention.ms", "1000", "the server deletes no records"),
        ("sasl.enabled.mechanisms", "PLAIN,scram-sha-256", "'SCRAM-SHA-256'"),
        ("ssl.keystore.type", "JKS", "must be 'PEM'"),
        ("group.min.session.timeout.ms", "1800001", "at most group.max.session.timeout.ms (1800000)"),
        ("super.users", "User:a", "without an authorizer everything is allowed"),
        ("ssl.keystore.location", "a.pem", "no listener uses TLS"),
        ("listeners", "SSL://h:1", "ssl.keystore.location"),
        ("listeners", "SASL_PLAINTEXT://h:1", "this listener requires a login"),
        ("listener.name.plaintext.plain.sasl.jaas.config", JAAS, "no listener of this name requires a login"),
    ],
)
def test_a_property_that_would_not_be_honoured_is_refused_with_its_rule(name: str, value: str, text: str) -> None:
    error = refused({name: value})
    assert text in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize("name", ["ssl.key.pasword", "listener.name.x.y.jaas"])
def test_a_misspelt_secret_is_not_shown(name: str) -> None:
    assert "hunter2" not in str(refused({name: "hunter2"}))
