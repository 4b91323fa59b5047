"""Broker properties and topic configs: read, refused, shown; where the server listens, and who may log in there."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import (
    DEFAULT_PROTOCOL_MAP,
    STANDARD_AUTHORIZER,
    BrokerProperties,
    Users,
    check_level,
    parse_endpoints,
    parse_listeners,
)
from spark_2pc_sink.reference.config.topic_configs import check_topic_config, check_topic_configs, log_settings
from spark_2pc_sink.reference.log.partition_log import LogSettings

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
        ("log.index.interval.bytes", "1024", "the bytes between two entries of an index are fixed"),
        ("ssl.client.auth", "required", "clients log in by SASL"),
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


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Value must be at least 0"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("cleanup.policy", "foo", "String must be one of: compact, delete"),
        ("compression.type", "foo", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("nonsense", "1", "unknown topic config"),
        # Kafka takes these, and would do something else than this server does.
        ("compression.type", "gzip", "stored as the producer sent them"),
        ("min.insync.replicas", "2", "there is one node"),
        ("message.timestamp.before.max.ms", "5", "records may have any age"),
        ("index.interval.bytes", "1024", "the bytes between two entries of an index are fixed"),
    ],
)
def test_values_that_are_refused(name: str, value: str, rule: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_topic_config(name, value)
    assert refused.value.option == name
    assert rule in refused.value.rule


def test_two_configs_that_contradict_each_other_are_refused() -> None:
    check_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigurationError, match=r"no more than max.compaction.lag.ms \(5\)"):
        check_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_what_a_partition_goes_by() -> None:
    broker = BrokerProperties.from_mapping({"message.max.bytes": "500", "log.segment.bytes": "2000000"})
    assert log_settings({}, BrokerProperties()) == LogSettings()
    assert log_settings({}, broker) == LogSettings(message_max_bytes=500, segment_bytes=2_000_000)
    own = {
        "max.message.bytes": "600",
        "segment.bytes": "3000000",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.after.max.ms": "7",
    }
    assert log_settings(own, broker) == LogSettings(
        message_max_bytes=600, segment_bytes=3_000_000, log_append_time=True, timestamp_after_max_ms=7
    )
    unverified = BrokerProperties(transaction_partition_verification_enable=False, producer_id_expiration_ms=9)
    assert log_settings({}, unverified) == LogSettings(verification=False, producer_id_expiration_ms=9)


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
