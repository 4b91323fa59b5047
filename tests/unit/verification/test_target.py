"""The target of a comparison: what the caller says, and what the sink has noted."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.kafka_client import client_settings
from spark_2pc_sink.verification.places import Places
from spark_2pc_sink.verification.table_shape import Column, TableShape
from spark_2pc_sink.verification.target import GivenTarget, Target

SHAPE = TableShape(
    TableName("t"), (Column("id", "bigint", "int8"), Column("b", "text", "text")), (("id",), ("id", "b"))
)


def test_the_sink_has_noted_what_nobody_says() -> None:
    layout = SinkLayout(table="shop.orders", topic="orders", mode="upsert", upsert_keys=("id",))
    found = GivenTarget().completed(layout)
    assert (found.table, found.mode, found.keys, found.order_by) == ("shop.orders", "upsert", ("id",), None)
    assert GivenTarget(table="other", mode="append").completed(layout).table == "other"
    assert GivenTarget().completed(None).table is None


def test_the_order_matters_where_late_rows_are_passed_over() -> None:
    layout = SinkLayout(
        table="t", mode="upsert", upsert_keys=("id",), upsert_order_by="`at`", upsert_late_rows="keep_newer"
    )
    found = GivenTarget().completed(layout)
    assert (found.order_by, found.late_rows) == ('"at"', "keep_newer")


def test_a_key_is_the_given_one_or_a_unique_key_of_the_table() -> None:
    assert Target(keys=("b",)).key_of(SHAPE, ["id", "b"]) == ("b",)
    assert Target().key_of(SHAPE, ["id", "b"]) == ("id",)
    assert Target().key_of(SHAPE, ["b"]) == ()
    with pytest.raises(ConfigurationError, match="'x' is not among what can be compared"):
        Target(keys=("x",)).key_of(SHAPE, ["id"])


def test_upserts_need_keys_and_an_order_needs_upserts() -> None:
    with pytest.raises(ConfigurationError, match="upsert_keys"):
        Target(mode="upsert")
    with pytest.raises(ConfigurationError, match="mode='upsert' only"):
        Target(order_by="at")


def test_a_place_tells_partition_and_order() -> None:
    partitions = [TopicPartition("b", 0), TopicPartition("a", 1)]
    places = Places(partitions)
    for order in (-1, 0, 7):
        for partition in partitions:
            place = places.number(order, partition)
            assert places.partition(place) == partition
            assert place // len(places) == places.order_number(order)


def test_librdkafka_gets_the_same_brokers_and_credentials() -> None:
    options = KafkaOptions.parse(
        {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
            "ssl.certificate.location": "/c.pem",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    found = client_settings(options)
    assert found["bootstrap.servers"] == "a:1,b:2"
    assert (found["sasl.username"], found["sasl.password"]) == ("u", "p")
    assert found["ssl.key.location"] == "/c.pem"
    assert found["ssl.endpoint.identification.algorithm"] == "none"
    assert "ssl.ca.location" not in found


def test_librdkafka_gets_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where the sink has them; an older library would wait for one in vain."""
    login = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: ("token", 4_102_444_800)}
    options = KafkaOptions.parse({"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", **login})
    monkeypatch.setattr("spark_2pc_sink.verification.kafka_client.version", lambda _: "2.13.0")
    assert client_settings(options)["oauth_cb"]("") == ("token", 4_102_444_800, "", {})
    monkeypatch.setattr("spark_2pc_sink.verification.kafka_client.version", lambda _: "2.12.2")
    with pytest.raises(ConfigurationError, match=r"here 2\.12\.2, and only 2\.13 gets tokens"):
        client_settings(options)
