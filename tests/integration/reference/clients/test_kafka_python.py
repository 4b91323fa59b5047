"""kafka-python 3: transactions, a consumer group, the versions that it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.protocol.api_key import ApiKey
from kafka.structs import OffsetAndMetadata

from spark_2pc_sink.testing import wait_until
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.reading import DEADLINE_S, committed_values, take, values

# A call of kafka-python's producer has no deadline of its own.
pytestmark = pytest.mark.timeout(90)

MakeClient = Callable[..., Any]


@pytest.fixture
def make(client_broker: Broker) -> Iterator[MakeClient]:
    """Makes clients of the broker, which are closed with the test: ``make(KafkaProducer, acks="all")``."""
    clients = ExitStack()

    def made(kind: Callable[..., Any], **settings: object) -> Any:
        found = kind(bootstrap_servers=client_broker.bootstrap, **settings)
        clients.callback(found.close)
        return found

    yield made
    clients.close()


def transactional(make: MakeClient, transactional_id: str) -> Any:
    producer = make(KafkaProducer, transactional_id=transactional_id)
    producer.init_transactions()
    return producer


def send(producer: Any, topic: str, *values: str, partition: int = 0) -> None:
    for future in [producer.send(topic, value.encode(), partition=partition) for value in values]:
        future.get(DEADLINE_S)


# --- producer and consumer -------------------------------------------------------------------------------------------


def test_transactions_commit_and_abort(
    client_broker: Broker, topic: MakeTopic, transactional_id: str, make: MakeClient
) -> None:
    name = topic(partitions=2, broker=client_broker)
    producer = transactional(make, transactional_id)
    for number, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        for partition in range(2):
            send(producer, name, f"{number}-{partition}", partition=partition)
        producer.commit_transaction() if commit else producer.abort_transaction()
    assert committed_values(client_broker.bootstrap, name, 4) == ["0-0", "2-0", "0-1", "2-1"]
    assert len(values(client_broker.bootstrap, name, "read_uncommitted")) == 6


def test_consume_transform_produce(
    client_broker: Broker, topic: MakeTopic, transactional_id: str, group_id: str, make: MakeClient
) -> None:
    source, target = topic(partitions=1, broker=client_broker), topic(partitions=1, broker=client_broker)
    send(make(KafkaProducer), source, "a", "b", "c")
    consumer = join(make, group_id, source, enable_auto_commit=False)
    read = take(lambda: poll(consumer), 3)
    producer = transactional(make, transactional_id)
    partition = TopicPartition(source, 0)
    offsets = {partition: OffsetAndMetadata(3, "by a transaction", -1)}
    admin = make(KafkaAdminClient)
    for commit in (False, True):
        producer.begin_transaction()
        send(producer, target, *(value.upper() for value in read))
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        assert admin.list_group_offsets(group_id)[group_id] == {}
        producer.commit_transaction() if commit else producer.abort_transaction()
    found = wait_until(
        lambda: admin.list_group_offsets(group_id)[group_id], deadline_s=DEADLINE_S, what="the committed offset"
    )
    assert (found[partition].offset, found[partition].metadata) == (3, "by a transaction")
    assert committed_values(client_broker.bootstrap, target, 3) == ["A", "B", "C"]


def join(make: MakeClient, group_id: str, topic: str, **settings: object) -> Any:
    """A member of the group, subscribed, that reads what is committed."""
    consumer = make(
        KafkaConsumer,
        group_id=group_id,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        **{"enable_auto_commit": True, **settings},
    )
    # Known before it joins: kafka-python may otherwise assign by metadata that it does not have yet, and stay without.
    assert consumer.partitions_for_topic(topic)
    consumer.subscribe([topic])
    return consumer


def poll(consumer: Any) -> list[str]:
    # Half a second: a call that is cut short while the group rebalances may begin again with its next call, for ever.
    return [record.value.decode() for records in consumer.poll(timeout_ms=500).values() for record in records]


# --- admin -----------------------------------------------------------------------------------------------------------


def test_server_offers_the_versions_that_clients_look_for(make: MakeClient) -> None:
    """Old versions of Produce are named, though none is taken: librdkafka finds out about compression by them."""
    offered = make(KafkaAdminClient).get_broker_version_data(1).api_versions
    assert offered[ApiKey.Produce] == (0, 13)
    assert offered[ApiKey.Fetch] == (4, 18)
    # Released versions only: v6 of InitProducerId is KIP-939's.
    assert offered[ApiKey.InitProducerId] == (0, 5)
    assert offered[ApiKey.EndTxn] == (0, 5)
