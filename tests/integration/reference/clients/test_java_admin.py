"""The Java Admin of Kafka 4.4.0: cluster, topics, features, groups, offsets, and the transactions of KIP-664."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.testing import wait_until
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.java_client import JavaClients, raises_java
from tests.integration.reference.clients.reading import DEADLINE_S

pytestmark = pytest.mark.java


@pytest.fixture
def admin(java: JavaClients) -> Any:
    return java.admin()


def begin(java: JavaClients, transactional_id: str, topic: str, *values: str) -> Any:
    """A producer in a transaction with these records in partition 0."""
    producer = java.producer(transactional_id=transactional_id)
    producer.initTransactions()
    producer.beginTransaction()
    java.send(producer, topic, 0, *values)
    return producer


# --- cluster and topics --------------------------------------------------------------------------------------------


def test_creates_describes_and_deletes_topics(java: JavaClients, admin: Any, group_id: str) -> None:
    name = group_id.replace("group", "topic")
    new_topic = java.kafka.clients.admin.NewTopic(name, 3, 1).configs({"retention.ms": "12345678"})
    created = admin.createTopics([new_topic])
    assert java.result(created.numPartitions(name)) == 3
    assert java.result(created.config(name)).get("retention.ms").value() == "12345678"
    described = java.result(admin.describeTopics([name]).allTopicNames())[name]
    assert [partition.partition() for partition in described.partitions()] == [0, 1, 2]
    assert [partition.leader().id() for partition in described.partitions()] == [1, 1, 1]
    assert described.topicId().toString() == java.result(created.topicId(name)).toString()
    assert name in java.result(admin.listTopics().names())
    with raises_java("TopicExistsException"):
        java.result(admin.createTopics([new_topic]).all())
    java.result(admin.deleteTopics([name]).all())
    wait_until(
        lambda: name not in java.result(admin.listTopics().names()), deadline_s=DEADLINE_S, what="the topic to go"
    )
    with raises_java("UnknownTopicOrPartitionException"):
        java.result(admin.describeTopics([name]).allTopicNames())


def test_describes_and_changes_configs(java: JavaClients, admin: Any, client_broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=1, broker=client_broker, config={"retention.ms": "12345678"})
    config = java.kafka.common.config
    kinds = config.ConfigResource.Type
    of_topic, of_broker = config.ConfigResource(kinds.TOPIC, name), config.ConfigResource(kinds.BROKER, "1")
    found = java.result(admin.describeConfigs([of_topic, of_broker]).all())
    assert found[of_topic].get("retention.ms").value() == "12345678"
    assert not found[of_topic].get("retention.ms").isDefault()
    assert found[of_topic].get("cleanup.policy").value() == "delete"
    assert found[of_broker].get("transaction.max.timeout.ms").value() == "900000"
    assert found[of_broker].get("transaction.two.phase.commit.enable").value() == "false"
    entry = java.kafka.clients.admin.ConfigEntry("retention.ms", "23456789")
    change = java.kafka.clients.admin.AlterConfigOp(entry, java.kafka.clients.admin.AlterConfigOp.OpType.SET)
    java.result(admin.incrementalAlterConfigs({of_topic: [change]}).all())

    def changed() -> bool:
        found = java.result(admin.describeConfigs([of_topic]).all())
        return bool(found[of_topic].get("retention.ms").value() == "23456789")

    wait_until(changed, deadline_s=DEADLINE_S, what="the changed config")


# --- groups ----------------------------------------------------------------------------------------------------------


def test_lists_describes_and_deletes_groups(
    java: JavaClients, admin: Any, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    name = topic(partitions=2, broker=client_broker)
    member = java.consumer(group_id=group_id, client_id="the member")
    member.subscribe([name])
    java.balance([member], [2])
    listed = {group.groupId(): group for group in java.result(admin.listConsumerGroups().all())}
    assert (str(listed[group_id].type().get()), str(listed[group_id].state().get())) == ("Classic", "Stable")
    described = java.result(admin.describeConsumerGroups([group_id]).all())[group_id]
    assert (str(described.groupState()), described.partitionAssignor()) == ("Stable", "range")
    (one,) = described.members()
    assert (one.clientId(), len(one.assignment().topicPartitions())) == ("the member", 2)
    with raises_java("GroupNotEmptyException"):
        java.result(admin.deleteConsumerGroups([group_id]).all())
    member.commitSync({java.partition(name, 1): java.kafka.clients.consumer.OffsetAndMetadata(0)})
    member.close()
    assert str(java.result(admin.describeConsumerGroups([group_id]).all())[group_id].groupState()) == "Empty"
    java.result(admin.deleteConsumerGroups([group_id]).all())
    assert group_id not in {group.groupId() for group in java.result(admin.listGroups().all())}
    with raises_java("GroupIdNotFoundException"):
        java.result(admin.describeConsumerGroups([group_id]).all())


def test_changes_and_deletes_offsets_of_a_group(
    java: JavaClients, admin: Any, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    name = topic(partitions=2, broker=client_broker)
    both = [java.partition(name, partition) for partition in range(2)]
    offsets = {partition: java.kafka.clients.consumer.OffsetAndMetadata(7) for partition in both}
    java.result(admin.alterConsumerGroupOffsets(group_id, offsets).all())
    java.result(admin.deleteConsumerGroupOffsets(group_id, {both[0]}).all())
    found = java.result(admin.listConsumerGroupOffsets(group_id).partitionsToOffsetAndMetadata())
    assert {(partition.partition(), found[partition].offset()) for partition in found} == {(1, 7)}


# --- transactions ----------------------------------------------------------------------------------------------------


def test_lists_and_describes_transactions(
    java: JavaClients, admin: Any, client_broker: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    name = topic(partitions=1, broker=client_broker)
    producer = begin(java, transactional_id, name, "open")
    classes = java.kafka.clients.admin
    ongoing = classes.ListTransactionsOptions().filterStates([classes.TransactionState.ONGOING])
    listed = {found.transactionalId(): found for found in java.result(admin.listTransactions(ongoing).all())}
    described = java.transaction(transactional_id)
    assert listed[transactional_id].producerId() == described.producerId()
    assert (str(described.state()), described.producerEpoch()) == ("Ongoing", 0)
    assert (described.coordinatorId(), described.transactionTimeoutMs()) == (1, 60_000)
    assert [(found.topic(), found.partition()) for found in described.topicPartitions()] == [(name, 0)]
    assert described.transactionStartTimeMs().isPresent()
    producer.commitTransaction()
    java.settle(transactional_id)
    assert (str(java.transaction(transactional_id).state()), java.transaction(transactional_id).producerEpoch()) == (
        "CompleteCommit",
        1,
    )
    with raises_java("TransactionalIdNotFoundException"):
        java.transaction(f"{transactional_id}_unknown")


def producer_state(java: JavaClients, admin: Any, topic: str, transactional_id: str) -> Any:
    """What the leader of partition 0 knows of this producer."""
    partition, producer_id = java.partition(topic, 0), java.transaction(transactional_id).producerId()
    producers = java.result(admin.describeProducers([partition]).all())[partition].activeProducers()
    (found,) = [producer for producer in producers if producer.producerId() == producer_id]
    return found


def test_aborts_a_transaction_on_one_partition(
    java: JavaClients, admin: Any, client_broker: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """As for a hanging transaction: the leader writes the marker, the coordinator is not asked (KIP-664)."""
    name = topic(partitions=1, broker=client_broker)
    begin(java, transactional_id, name, "hanging")
    java.send(java.producer(), name, 0, "behind it")
    assert java.values(name, 1) == []
    found = producer_state(java, admin, name, transactional_id)
    # describeProducers knows no coordinator epoch before the first marker; kafka-transactions.sh then sends 0.
    spec = java.kafka.clients.admin.AbortTransactionSpec(
        java.partition(name, 0), found.producerId(), found.producerEpoch(), 0
    )
    java.result(admin.abortTransaction(spec).all())
    assert java.values(name, 1) == ["behind it"]
    found = producer_state(java, admin, name, transactional_id)
    assert not found.currentTransactionStartOffset().isPresent()


def test_ends_a_transaction_of_another(
    java: JavaClients, admin: Any, client_broker: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    name = topic(partitions=1, broker=client_broker)
    producer = begin(java, transactional_id, name, "to be aborted")
    fenced = admin.fenceProducers([transactional_id])
    java.result(fenced.all())
    assert java.result(fenced.epochId(transactional_id)) == java.transaction(transactional_id).producerEpoch() == 2
    assert str(java.transaction(transactional_id).state()) == "Empty"
    with raises_java("ProducerFencedException"):
        producer.commitTransaction()
    wait_until(
        lambda: not producer_state(java, admin, name, transactional_id).currentTransactionStartOffset().isPresent(),
        deadline_s=DEADLINE_S,
        what="the marker",
    )
    assert java.values(name, 1) == []
