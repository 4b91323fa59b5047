"""Clients in Python: confluent-kafka's transactions and consumer groups, and kafka-python's transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient, KafkaProducer
from kafka.protocol.api_key import ApiKey

from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.java_client import DEADLINE_S, balance, committed_values, take, values

PARTITIONS = 4
EXPECTED = [f"{who}-{number}" for who in ("alone", "both") for number in range(PARTITIONS)]
#: An eager one and the cooperative one (KIP-429).
ASSIGNORS = ["range", "cooperative-sticky"]


def producer(bootstrap: str, **settings: str | int | bool) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 1, **named})


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    made = producer(bootstrap, transactional_id=transactional_id)
    made.init_transactions(DEADLINE_S)
    return made


def send(made: Producer, topic: str, *values: str, partition: int = 0) -> None:
    """Produce records and wait until all are acknowledged."""
    errors: list[KafkaError | None] = []
    for value in values:
        made.produce(topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert made.flush(DEADLINE_S) == 0
    assert errors == [None] * len(values)


# --- producer --------------------------------------------------------------------------------------------------------


def test_transactions_commit_and_abort(client_broker: Broker, topic: MakeTopic, transactional_id: str) -> None:
    bootstrap, name = client_broker.bootstrap, topic(partitions=2, broker=client_broker)
    made = transactional(bootstrap, transactional_id)
    for number, commit in enumerate([True, False, True]):
        made.begin_transaction()
        for partition in range(2):
            send(made, name, f"{number}-{partition}", partition=partition)
        made.commit_transaction(DEADLINE_S) if commit else made.abort_transaction(DEADLINE_S)
    assert committed_values(bootstrap, name, 4) == ["0-0", "2-0", "0-1", "2-1"]
    assert len(values(bootstrap, name, "read_uncommitted")) == 6


def test_consume_transform_produce(
    client_broker: Broker, topic: MakeTopic, transactional_id: str, group_id: str, consumers: Consumers
) -> None:
    bootstrap = client_broker.bootstrap
    source, target = topic(partitions=1, broker=client_broker), topic(partitions=1, broker=client_broker)
    send(producer(bootstrap), source, "a", "b", "c")
    consumer = consumers.join(source, "range")
    read = take(lambda: poll(consumer), 3)
    made = transactional(bootstrap, transactional_id)
    for commit in (False, True):
        made.begin_transaction()
        send(made, target, *(value.upper() for value in read))
        position = consumer.position(consumer.assignment())
        made.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), DEADLINE_S)
        made.commit_transaction(DEADLINE_S) if commit else made.abort_transaction(DEADLINE_S)
        # Waits while the offsets of a transaction are pending: OffsetFetch asks for stable ones (KIP-447).
        (committed,) = consumer.committed([TopicPartition(source, 0)], DEADLINE_S)
        assert committed.offset == (3 if commit else confluent_kafka.OFFSET_INVALID)
    assert committed_values(bootstrap, target, 3) == ["A", "B", "C"]


def test_compresses(client_broker: Broker, topic: MakeTopic) -> None:
    """librdkafka compresses only if the server offers Produce from version 0 on, in some versions (KAFKA-18659)."""
    name = topic(partitions=1, broker=client_broker, config={"max.message.bytes": "20000"})
    codecs = ["gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        # Without compression the leader refuses it: MSG_SIZE_TOO_LARGE.
        send(producer(client_broker.bootstrap, compression_type=codec), name, codec * 30_000)
    assert values(client_broker.bootstrap, name) == [codec * 30_000 for codec in codecs]


# --- consumer groups -------------------------------------------------------------------------------------------------


class Consumers:
    """Makes members of one group, and closes them in the end."""

    def __init__(self, bootstrap: str, group_id: str) -> None:
        self._bootstrap, self._group_id = bootstrap, group_id
        self._members = ExitStack()

    def join(self, topic: str, assignor: str) -> Consumer:
        """A member of the group, subscribed, that commits what it has read when it gives partitions up."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group_id,
                "partition.assignment.strategy": assignor,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self._members.callback(self.leave, consumer)
        consumer.subscribe([topic])
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Leave the group; twice is once."""
        with suppress(RuntimeError):  # closed already
            consumer.close()

    def close(self) -> None:
        self._members.close()


@pytest.fixture
def consumers(client_broker: Broker, group_id: str) -> Iterator[Consumers]:
    members = Consumers(client_broker.bootstrap, group_id)
    yield members
    members.close()


def poll(consumer: Consumer) -> list[str]:
    read = []
    for message in consumer.consume(100, timeout=0.05):
        if message.error() is not None:
            raise KafkaException(message.error())
        read.append((message.value() or b"").decode())
    return read


def assigned(consumer: Consumer) -> set[int]:
    return {partition.partition for partition in consumer.assignment()}


def balanced(members: list[Consumer], shares: list[int]) -> list[str]:
    return balance(members, shares, poll=poll, assigned=assigned)


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_partitions_and_take_over(
    assignor: str, client_broker: Broker, topic: MakeTopic, consumers: Consumers
) -> None:
    """A second member joins and leaves; no record is lost or read twice."""
    name = topic(partitions=PARTITIONS, broker=client_broker)
    made = producer(client_broker.bootstrap)
    first = consumers.join(name, assignor)
    balanced([first], [4])
    second = consumers.join(name, assignor)
    balanced([first, second], [2, 2])
    assert first.memberid() != second.memberid()
    for partition in range(PARTITIONS):
        send(made, name, f"both-{partition}", partition=partition)
    read = take(lambda: [*poll(first), *poll(second)], PARTITIONS)
    consumers.leave(second)
    read += balanced([first], [4])
    for partition in range(PARTITIONS):
        send(made, name, f"alone-{partition}", partition=partition)
    read += take(lambda: poll(first), PARTITIONS)
    assert sorted(read) == EXPECTED


def send_all(producer: Any, topic: str, *values: str, partition: int = 0) -> None:
    for future in [producer.send(topic, value.encode(), partition=partition) for value in values]:
        future.get(DEADLINE_S)


@pytest.mark.timeout(90)
def test_transactions_of_kafka_python(client_broker: Broker, topic: MakeTopic, transactional_id: str) -> None:
    bootstrap, name = client_broker.bootstrap, topic(partitions=2, broker=client_broker)
    with closing(KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)) as producer:
        producer.init_transactions()
        for number, commit in enumerate([True, False, True]):
            producer.begin_transaction()
            for partition in range(2):
                send_all(producer, name, f"{number}-{partition}", partition=partition)
            producer.commit_transaction() if commit else producer.abort_transaction()
    assert committed_values(bootstrap, name, 4) == ["0-0", "2-0", "0-1", "2-1"]
    assert len(values(bootstrap, name, "read_uncommitted")) == 6


@pytest.mark.timeout(90)
def test_server_offers_the_versions_that_clients_look_for(client_broker: Broker) -> None:
    """Old versions of Produce are named, though none is taken: librdkafka finds out about compression by them."""
    with closing(KafkaAdminClient(bootstrap_servers=client_broker.bootstrap)) as admin:
        offered = admin.get_broker_version_data(1).api_versions
    # Released versions only: v6 of InitProducerId is KIP-939's.
    assert (offered[ApiKey.Produce], offered[ApiKey.Fetch]) == ((0, 13), (4, 18))
    assert (offered[ApiKey.InitProducerId], offered[ApiKey.EndTxn]) == ((0, 5), (0, 5))
