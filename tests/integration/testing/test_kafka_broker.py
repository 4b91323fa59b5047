"""The broker under test: it has the features that were asked for, and breaks as told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from spark_2pc_sink.testing import CapabilityError, KafkaBroker, ServerError, kafka_request, read_topic
from tests.conftest import MakeTopic, StartKafka
from tests.harness.providers import Broker

PRODUCE_API = 0


def produce(bootstrap: str, topic: str, value: str, *, timeout_ms: int = 20_000) -> str | None:
    """Produce one record and return the error's text, None if it was acknowledged."""
    errors: list[str | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": timeout_ms, "log_level": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(str(error) if error else None))
    producer.flush(timeout_ms / 1000 + 5)
    return errors[0]


def values(bootstrap: str, topic: str, **how: Any) -> list[bytes | None]:
    return sorted((record.value for record in read_topic(bootstrap, topic, **how)), key=str)


def broker_config(broker: Broker) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.BROKER, "1")
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(10).items()}


@pytest.mark.slow
def test_survives_kill_and_pause_on_the_same_address(start_kafka: StartKafka, topic: MakeTopic) -> None:
    broker = start_kafka()
    name = topic(broker=broker)
    assert produce(broker.bootstrap, name, "before") is None
    broker.pause()
    assert produce(broker.bootstrap, name, "perhaps", timeout_ms=1_000) is not None
    broker.resume()
    broker.kill()
    broker.start()
    assert produce(broker.bootstrap, name, "after") is None
    broker.restart()
    assert {b"before", b"after"} <= set(values(broker.bootstrap, name))


def test_grants_two_phase_commit_only_where_asked_for(kafka: Broker, kafka_without_2pc: Broker) -> None:
    name = "transaction.two.phase.commit.enable"
    assert (broker_config(kafka)[name], broker_config(kafka_without_2pc)[name]) == ("true", "false")


def test_proxy_stands_between_client_and_broker(kafka: Broker, topic: MakeTopic) -> None:
    """librdkafka without idempotence sends again when the answer is lost, and so shows that the request arrived."""
    name = topic(partitions=1)
    with kafka.proxy() as proxy:
        assert produce(proxy.address, name, "through the proxy") is None
        proxy.lose_answer(kafka_request(PRODUCE_API))
        assert produce(proxy.address, name, "twice") is None
        assert proxy.answers_lost == 1
    assert values(kafka.bootstrap, name) == [b"through the proxy", b"twice", b"twice"]


def test_reading_back_stops_at_open_transactions_and_skips_aborted_ones(
    kafka: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    name = topic(partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(20)
    for value, commit in (("committed", True), ("aborted", False), ("open", None)):
        producer.begin_transaction()
        producer.produce(name, value, key="k", headers=[("h", b"1"), ("h", None)])
        producer.flush(20)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(20)
    (record,) = read_topic(kafka.bootstrap, name)
    assert (record.key, record.value, record.headers) == (b"k", b"committed", (("h", b"1"), ("h", None)))
    assert values(kafka.bootstrap, name, isolation="read_uncommitted") == [b"aborted", b"committed", b"open"]
    producer.abort_transaction(20)


def test_says_what_is_wrong_when_it_does_not_start() -> None:
    broker = KafkaBroker(properties={"num.io.threads": "many"})
    try:
        with pytest.raises(ServerError, match=r"num\.io\.threads"):
            broker.start()
    finally:
        broker.close()


def test_says_what_to_do_without_jars(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="make setup"):
        KafkaBroker(libs=tmp_path)
