"""Java clients of Kafka 4.4.0: transactions, idempotence, groups, a server that comes back, and the Admin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_2pc_sink.testing import ReferenceCoordinator, kafka_request, wait_until
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.java_client import JavaClients, JavaProcess, raises_java, take

PRODUCE_API = 0


@pytest.mark.java
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


@pytest.mark.java
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


@pytest.mark.java
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


@pytest.mark.java
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


@pytest.mark.java
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


PARTITIONS = 4
EXPECTED = [f"{who}-{number}" for who in ("alone", "both") for number in range(PARTITIONS)]
ASSIGNORS = ["RangeAssignor", "CooperativeStickyAssignor"]


def join(java: JavaClients, group_id: str, topic: str, **settings: object) -> Any:
    consumer = java.consumer(group_id=group_id, **settings)
    consumer.subscribe([topic])
    return consumer


@pytest.mark.java
@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_partitions_and_take_over(
    assignor: str, java: JavaClients, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    """A second member joins and leaves; no record is lost or read twice, because each commits what it has read."""
    name = topic(partitions=PARTITIONS, broker=client_broker)
    strategy = f"org.apache.kafka.clients.consumer.{assignor}"
    producer = java.producer()
    first = join(java, group_id, name, partition_assignment_strategy=strategy, enable_auto_commit="true")
    java.balance([first], [4])
    second = join(java, group_id, name, partition_assignment_strategy=strategy, enable_auto_commit="true")
    java.balance([first, second], [2, 2])
    for partition in range(PARTITIONS):
        java.send(producer, name, partition, f"both-{partition}")
    read = take(lambda: [*java.poll(first), *java.poll(second)], PARTITIONS)
    second.close()
    read += java.balance([first], [4])
    for partition in range(PARTITIONS):
        java.send(producer, name, partition, f"alone-{partition}")
    read += java.take(first, PARTITIONS)
    assert sorted(str(record.value) for record in read) == EXPECTED


@pytest.mark.java
def test_static_member_keeps_its_partitions_over_a_restart(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    """KIP-345: a member with group.instance.id comes back without a rebalance; the generation stays."""
    name = topic(partitions=PARTITIONS, broker=client_broker)
    member = join(java, group_id, name, group_instance_id="one")
    java.balance([member], [4])
    generation = member.groupMetadata().generationId()
    member.close()
    member = join(java, group_id, name, group_instance_id="one")
    java.balance([member], [4])
    assert member.groupMetadata().generationId() == generation


@pytest.mark.java
def test_member_that_stops_polling_loses_its_partitions(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    """Its own heartbeat thread leaves the group after max.poll.interval.ms; the other member takes over."""
    name = topic(partitions=PARTITIONS, broker=client_broker)
    stuck = join(java, group_id, name, max_poll_interval_ms=2_000)
    balance_of_one = java.balance([stuck], [PARTITIONS])
    assert balance_of_one == []
    other = join(java, group_id, name)
    java.balance([stuck, other], [2, 2])
    java.balance([other], [PARTITIONS])
    with raises_java("CommitFailedException"):
        stuck.commitSync({java.partition(name, 0): java.kafka.clients.consumer.OffsetAndMetadata(0)})


@pytest.fixture
def own_broker() -> Iterator[ReferenceCoordinator]:
    with ReferenceCoordinator(two_phase_commit=False) as running:
        yield running


@pytest.fixture
def own_java(java_process: JavaProcess, own_broker: ReferenceCoordinator) -> Iterator[JavaClients]:
    clients = JavaClients(java_process, own_broker.bootstrap)
    yield clients
    clients.close()


@pytest.mark.java
def test_java_transaction_survives_a_crash(
    own_java: JavaClients, own_broker: ReferenceCoordinator, topic: MakeTopic, transactional_id: str
) -> None:
    """Acknowledged records, the open transaction and the sequence numbers are there after SIGKILL."""
    name = topic(partitions=2, broker=own_broker)
    producer = own_java.producer(transactional_id=transactional_id)
    producer.initTransactions()
    producer.beginTransaction()
    for partition in range(2):
        own_java.send(producer, name, partition, f"before-{partition}")
    own_broker.kill()
    own_broker.start()
    for partition in range(2):
        own_java.send(producer, name, partition, f"after-{partition}")
    producer.commitTransaction()
    own_java.settle(transactional_id)
    assert own_java.values(name, 2) == ["before-0", "after-0", "before-1", "after-1"]


@pytest.mark.java
def test_java_group_survives_a_restart(
    own_java: JavaClients, own_broker: ReferenceCoordinator, topic: MakeTopic, group_id: str
) -> None:
    """The member keeps its partitions, the group its offsets."""
    name = topic(partitions=2, broker=own_broker)
    producer = own_java.producer()
    consumer = own_java.consumer(group_id=group_id)
    consumer.subscribe([name])
    own_java.send(producer, name, 0, "a", "b")
    assert len(own_java.take(consumer, 2)) == 2
    consumer.commitSync()
    own_broker.restart()
    own_java.send(producer, name, 0, "c")
    assert [record.value for record in own_java.take(consumer, 1)] == ["c"]
    partition = own_java.partition(name, 0)
    assert consumer.committed({partition})[partition].offset() == 2
    consumer.commitSync()
    assert consumer.committed({partition})[partition].offset() == 3


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


@pytest.mark.java
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
    wait_until(lambda: name not in java.result(admin.listTopics().names()), what="the topic to go")
    with raises_java("UnknownTopicOrPartitionException"):
        java.result(admin.describeTopics([name]).allTopicNames())


@pytest.mark.java
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

    wait_until(changed, what="the changed config")


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.java
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


@pytest.mark.java
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


@pytest.mark.java
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


@pytest.mark.java
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


@pytest.mark.java
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
        what="the marker",
    )
    assert java.values(name, 1) == []
