"""The Java producer and consumer of Kafka 4.4.0: transactions (transaction.version 2) and idempotence."""

from __future__ import annotations

import pytest

from spark_2pc_sink.testing import kafka_request
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.java_client import JavaClients, raises_java

pytestmark = pytest.mark.java

PRODUCE_API = 0


def test_transactions_commit_and_abort_over_several_partitions(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    name = topic(partitions=3, broker=client_broker)
    producer = java.producer(transactional_id=transactional_id)
    producer.initTransactions()
    for number, commit in enumerate([True, False, True]):
        producer.beginTransaction()
        for partition in range(3):
            java.send(producer, name, partition, f"{number}-{partition}")
        producer.commitTransaction() if commit else producer.abortTransaction()
    java.settle(transactional_id)
    assert java.values(name, 3) == ["0-0", "2-0", "0-1", "2-1", "0-2", "2-2"]
    assert len(java.values(name, 3, isolation="read_uncommitted")) == 9


def test_second_producer_with_the_same_id_fences_the_first(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    name = topic(partitions=1, broker=client_broker)
    first, second = (java.producer(transactional_id=transactional_id) for _ in range(2))
    first.initTransactions()
    first.beginTransaction()
    java.send(first, name, 0, "of the first")
    second.initTransactions()
    with raises_java("ProducerFencedException"):
        first.commitTransaction()
    second.beginTransaction()
    java.send(second, name, 0, "of the second")
    second.commitTransaction()
    java.settle(transactional_id)
    assert java.values(name, 1) == ["of the second"]


def test_idempotent_producer_sends_again_without_a_duplicate(
    java: JavaClients, client_broker: Broker, topic: MakeTopic
) -> None:
    """The answer to a Produce is lost, so the producer cannot know that the batch is in the log."""
    name = topic(partitions=1, broker=client_broker)
    values = [f"value {number}" for number in range(200)]
    with client_broker.proxy() as proxy:
        producer = java.producer(proxy.address, enable_idempotence="true", acks="all", batch_size=256, linger_ms=1)
        java.send(producer, name, 0, *values[:50])
        proxy.lose_answer(kafka_request(PRODUCE_API))
        java.send(producer, name, 0, *values[50:])
        assert proxy.answers_lost == 1
    assert java.values(name, 1) == values


def offsets_of(java: JavaClients, group_id: str) -> dict[tuple[str, int], int]:
    committed = java.result(java.admin().listConsumerGroupOffsets(group_id).partitionsToOffsetAndMetadata())
    return {(partition.topic(), partition.partition()): committed[partition].offset() for partition in committed}


def test_consume_transform_produce(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, transactional_id: str, group_id: str
) -> None:
    """Offsets of a consumer group are part of the transaction: aborted with it, committed with it."""
    source, target = topic(partitions=1, broker=client_broker), topic(partitions=1, broker=client_broker)
    java.send(java.producer(), source, 0, "a", "b", "c")
    consumer = java.consumer(group_id=group_id, isolation_level="read_committed")
    consumer.subscribe([source])
    read = [record.value for record in java.take(consumer, 3)]
    producer = java.producer(transactional_id=transactional_id)
    producer.initTransactions()
    offsets = {java.partition(source, 0): java.kafka.clients.consumer.OffsetAndMetadata(3, "by a transaction")}
    for commit in (False, True):
        producer.beginTransaction()
        java.send(producer, target, 0, *(str(value).upper() for value in read))
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata())
        assert offsets_of(java, group_id) == {}
        producer.commitTransaction() if commit else producer.abortTransaction()
    java.settle(transactional_id)
    assert offsets_of(java, group_id) == {(source, 0): 3}
    committed = consumer.committed({java.partition(source, 0)})[java.partition(source, 0)]
    assert (committed.offset(), committed.metadata()) == (3, "by a transaction")
    assert java.values(target, 1) == ["A", "B", "C"]


def test_offsets_of_a_member_that_left_are_refused(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, transactional_id: str, group_id: str
) -> None:
    """KIP-447: the group, not the transactional id, fences a consumer that is no longer a member."""
    source = topic(partitions=1, broker=client_broker)
    consumer = java.consumer(group_id=group_id)
    consumer.subscribe([source])
    java.balance([consumer], [1])
    membership = consumer.groupMetadata()
    consumer.close()
    producer = java.producer(transactional_id=transactional_id)
    producer.initTransactions()
    producer.beginTransaction()
    offsets = {java.partition(source, 0): java.kafka.clients.consumer.OffsetAndMetadata(1)}
    with raises_java("CommitFailedException"):
        producer.sendOffsetsToTransaction(offsets, membership)
        producer.commitTransaction()
    producer.abortTransaction()
    assert offsets_of(java, group_id) == {}
