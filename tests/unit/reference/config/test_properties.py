"""Broker properties: read, refused, shown."""

from __future__ import annotations

import re

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import setting_of
from spark_2pc_sink.reference.config.properties import (
    FIXED,
    ROWS,
    STANDARD_AUTHORIZER,
    BrokerProperties,
    check_level,
    parse_assignments,
)
from spark_2pc_sink.reference.config.topic_configs import Kind, Source, property_entries

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'


def refused(values: dict[str, str]) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        BrokerProperties.from_mapping(values)
    return caught.value


def test_every_row_is_reached_by_its_name_and_says_what_it_does() -> None:
    """By the rule of the users' options: DescribeConfigs shows the texts to clients as documentation."""
    for name, item in ROWS.items():
        about = setting_of(item)
        assert item.name == re.sub(r"\W", "_", name)
        assert len(about.why) > 20, name
        if str(item.type) == "int":
            assert about.at_least is not None, name
            assert about.at_most is not None, name


def test_defaults_are_kafka_s() -> None:
    """DescribeConfigs of a fresh Apache Kafka 4.4.0 gave these."""
    properties = BrokerProperties.from_mapping({})
    assert properties == BrokerProperties()
    assert properties.transaction_version == 2
    assert properties.transaction_max_timeout_ms == 900_000
    assert properties.transactional_id_expiration_ms == 604_800_000
    assert properties.transaction_abort_timed_out_transaction_cleanup_interval_ms == 10_000
    assert properties.transaction_remove_expired_transaction_cleanup_interval_ms == 3_600_000
    assert properties.producer_id_expiration_ms == 86_400_000
    assert properties.socket_request_max_bytes == 104_857_600
    assert properties.message_max_bytes == 1_048_588
    assert properties.connections_max_idle_ms == 600_000
    assert properties.auto_create_topics_enable
    assert not properties.transaction_two_phase_commit_enable
    assert not properties.transaction_keep_prepared_enable


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


def test_a_finalized_level_that_the_node_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"finalized level of transaction.version, which is 3"):
        check_level(BrokerProperties(), 3)


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
        ("transaction.keep.prepared.form", "unchanged", "no prepared transaction is kept"),
        ("transaction.two.phase.comit.enable", "true", "'transaction.two.phase.commit.enable'"),
        ("log.dirs", "/data", "the name here is '--data-dir'"),
        ("broker.id", "1", "the name here is 'node.id'"),
        ("num.partitions", "three", "it must be a whole number"),
        ("num.partitions", "0", "at least 1"),
        ("num.partitions", str(2**31), "at most 2147483647"),
        ("auto.create.topics.enable", "yes", "'true' or 'false'"),
        ("transaction.version", "4", "at most 3"),
        ("default.replication.factor", "3", "there is one node"),
        ("transaction.state.log.min.isr", "2", "there is one node"),
        ("log.retention.ms", "1000", "the server deletes no records"),
        ("sasl.enabled.mechanisms", "GSSAPI", "one of PLAIN"),
        ("sasl.enabled.mechanisms", "PLAIN,scram-sha-256", "'SCRAM-SHA-256'"),
        ("sasl.enabled.mechanisms", "", "a non-empty text"),
        ("ssl.keystore.type", "JKS", "must be 'PEM'"),
        ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer", "must be 'org.apache.kafka.metadata"),
        ("group.min.session.timeout.ms", "1800001", "at most group.max.session.timeout.ms (1800000)"),
        ("super.users", "User:a", "without an authorizer everything is allowed"),
        ("allow.everyone.if.no.acl.found", "true", "without an authorizer everything is allowed"),
        ("ssl.keystore.location", "a.pem", "no listener uses TLS"),
        ("ssl.client.auth", "required", "ssl.truststore.location"),
        ("listeners", "SSL://h:1", "ssl.keystore.location"),
        ("listeners", "SASL_PLAINTEXT://h:1", "this listener requires a login"),
        ("listener.name.plaintext.plain.sasl.jaas.config", JAAS, "no listener of this name requires a login"),
        ("listener.name.plaintext.scram-sha-256.sasl.jaas.config", JAAS, "of all mechanisms are those of PLAIN"),
    ],
)
def test_a_property_that_would_not_be_honoured_is_refused_with_its_rule(name: str, value: str, text: str) -> None:
    error = refused({name: value})
    assert text in str(error)
    assert "secret" not in str(error)


def test_super_users_have_a_type() -> None:
    error = refused({"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "alice"})
    assert "User:name" in str(error)


@pytest.mark.parametrize("name", sorted(FIXED))
def test_what_has_one_value_is_accepted_with_it(name: str) -> None:
    assert BrokerProperties.from_mapping({name: FIXED[name].value}).given == {name}


@pytest.mark.parametrize("name", ["ssl.key.pasword", "listener.name.x.y.jaas"])
def test_a_misspelt_secret_is_not_shown(name: str) -> None:
    assert "hunter2" not in str(refused({name: "hunter2"}))


def test_passwords_are_not_part_of_the_repr() -> None:
    name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    properties = BrokerProperties.from_mapping({"listeners": "SASL_PLAINTEXT://h:1", name: JAAS})
    assert properties.users_of(properties.listening[0]).passwords == {"alice": "secret"}
    assert "secret" not in repr(properties)


def test_assignments_are_read_and_the_later_counts() -> None:
    assert parse_assignments(["a=1", "b=x=y", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("text", ["a", "=1", " =1", ""])
def test_an_assignment_without_a_name_or_a_sign_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="NAME=VALUE"):
        parse_assignments([text])


def test_entries_say_where_a_value_comes_from() -> None:
    given = {"num.partitions": "1", "min.insync.replicas": "1", "listeners": "SSL://h:1"}
    secret = {"ssl.keystore.location": "a.pem", "ssl.key.password": "hunter2"}
    entries = {each.name: each for each in property_entries(BrokerProperties.from_mapping({**given, **secret}))}
    assert list(entries) == sorted(entries)
    assert entries.keys() == ROWS.keys() | FIXED.keys()
    static = {name for name, entry in entries.items() if entry.source is Source.STATIC_BROKER_CONFIG}
    assert static == given.keys() | secret.keys()
    password = entries["ssl.key.password"]
    assert (password.value, password.kind, password.sensitive) == (None, Kind.PASSWORD, True)
    default = Source.DEFAULT_CONFIG
    shown = {
        name: (entries[name].value, entries[name].kind, entries[name].synonyms[-1:])
        for name in ("listeners", "node.id", "connections.max.idle.ms", "auto.create.topics.enable", "super.users")
    }
    assert shown == {
        "listeners": ("SSL://h:1", Kind.LIST, (("listeners", "PLAINTEXT://127.0.0.1:9092", default),)),
        "node.id": ("1", Kind.INT, (("node.id", "1", default),)),
        "connections.max.idle.ms": ("600000", Kind.LONG, (("connections.max.idle.ms", "600000", default),)),
        "auto.create.topics.enable": ("true", Kind.BOOLEAN, (("auto.create.topics.enable", "true", default),)),
        "super.users": (None, Kind.STRING, ()),
    }
    assert not any(entry.sensitive for name, entry in entries.items() if name != "ssl.key.password")
