"""confluent-kafka's AdminClient (librdkafka): cluster, topics, configs, groups, offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from spark_2pc_sink.testing import wait_until
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.reading import DEADLINE_S, balance, values

EARLIEST, LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]

pytestmark = pytest.mark.usefixtures("confluent_kafka_client")


@pytest.fixture
def admin(client_broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": client_broker.bootstrap, "log_level": 0})


@pytest.fixture
def member(client_broker: Broker, topic: MakeTopic, group_id: str) -> Iterator[Consumer]:
    """The only member of a group, with the two partitions of a topic."""
    name = topic(partitions=2, broker=client_broker)
    settings = {"bootstrap.servers": client_broker.bootstrap, "group.id": group_id, "client.id": "the member"}
    consumer = Consumer({**settings, "log_level": 0})
    consumer.subscribe([name])
    balance(
        [consumer],
        [2],
        poll=lambda member: member.consume(1, timeout=0.05),
        assigned=lambda member: {partition.partition for partition in member.assignment()},
    )
    yield consumer
    consumer.close()


def result(futures: Any) -> Any:
    """The one result of a request for one thing."""
    (future,) = futures.values()
    return future.result(DEADLINE_S)


def refused(futures: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        result(futures)
    code: int = caught.value.args[0].code()
    return code


def test_describes_the_cluster(admin: AdminClient, client_broker: Broker) -> None:
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [client_broker.bootstrap]
    assert (cluster.controller.id, bool(cluster.cluster_id)) == (1, True)


def test_creates_describes_and_deletes_topics(admin: AdminClient, group_id: str) -> None:
    name = group_id.replace("group", "topic")
    result(admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)]))
    assert refused(admin.create_topics([NewTopic(name)])) == KafkaError.TOPIC_ALREADY_EXISTS
    described = result(admin.describe_topics(TopicCollection([name])))
    assert [(found.id, found.leader.id) for found in described.partitions] == [(0, 1), (1, 1)]
    assert not described.is_internal
    result(admin.create_partitions([NewPartitions(name, 3)]))
    wait_until(
        lambda: len(result(admin.describe_topics(TopicCollection([name]))).partitions) == 3,
        deadline_s=DEADLINE_S,
        what="three partitions",
    )
    assert refused(admin.create_partitions([NewPartitions(name, 2)])) == KafkaError.INVALID_PARTITIONS
    result(admin.delete_topics([name]))
    wait_until(
        lambda: name not in admin.list_topics(timeout=DEADLINE_S).topics, deadline_s=DEADLINE_S, what="the topic to go"
    )
    assert refused(admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert refused(admin.describe_topics(TopicCollection([name]))) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_validates_a_topic_without_creating_it(admin: AdminClient, group_id: str) -> None:
    name = group_id.replace("group", "topic")
    result(admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)], validate_only=True))
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics


def test_describes_and_changes_configs(admin: AdminClient, client_broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=1, broker=client_broker, config={"max.message.bytes": "123456"})
    resource = ConfigResource(ResourceType.TOPIC, name)
    found = result(admin.describe_configs([resource]))
    assert (found["max.message.bytes"].value, found["max.message.bytes"].is_default) == ("123456", False)
    assert (found["cleanup.policy"].value, found["cleanup.policy"].is_default) == ("delete", True)
    entry = ConfigEntry("max.message.bytes", "654321", incremental_operation=AlterConfigOpType.SET)
    result(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])]))
    wait_until(
        lambda: result(admin.describe_configs([resource]))["max.message.bytes"].value == "654321",
        deadline_s=DEADLINE_S,
        what="the changed config",
    )
    of_broker = result(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    assert of_broker["transaction.max.timeout.ms"].value == "900000"


def test_lists_offsets(admin: AdminClient, client_broker: Broker, topic: MakeTopic, transactional_id: str) -> None:
    name = topic(partitions=1, broker=client_broker)
    settings = {"bootstrap.servers": client_broker.bootstrap, "log_level": 0}
    plain, open_one = Producer(settings), Producer({**settings, "transactional.id": transactional_id})
    for moment in (1_000, 3_000, 2_000):
        plain.produce(name, "value", timestamp=moment)
        assert plain.flush(DEADLINE_S) == 0
    open_one.init_transactions(DEADLINE_S)
    open_one.begin_transaction()
    open_one.produce(name, "open")
    assert open_one.flush(DEADLINE_S) == 0

    def offset(spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> int:
        listed = result(admin.list_offsets({TopicPartition(name, 0): spec}, isolation_level=isolation))
        return int(listed.offset)

    assert (offset(EARLIEST), offset(LATEST)) == (0, 4)
    assert offset(LATEST, IsolationLevel.READ_COMMITTED) == 3
    assert [offset(OffsetSpec.for_timestamp(moment)) for moment in (1_000, 1_001, 3_000)] == [0, 1, 1]
    open_one.abort_transaction(DEADLINE_S)


def test_deletes_records(admin: AdminClient, client_broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=1, broker=client_broker)
    producer = Producer({"bootstrap.servers": client_broker.bootstrap, "log_level": 0})
    for value in ("a", "b", "c"):
        producer.produce(name, value)
    assert producer.flush(DEADLINE_S) == 0
    assert result(admin.delete_records([TopicPartition(name, 0, 2)])).low_watermark == 2
    assert values(client_broker.bootstrap, name) == ["c"]
    assert refused(admin.delete_records([TopicPartition(name, 0, 4)])) == KafkaError.OFFSET_OUT_OF_RANGE


def test_lists_and_describes_groups(admin: AdminClient, member: Consumer, group_id: str) -> None:
    stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(DEADLINE_S)
    assert stable.errors == []
    assert [(found.state, found.type) for found in stable.valid if found.group_id == group_id] == [
        (ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC)
    ]
    empty = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(DEADLINE_S)
    assert group_id not in {found.group_id for found in empty.valid}
    described = result(admin.describe_consumer_groups([group_id]))
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    (one,) = described.members
    assert (one.member_id, one.client_id) == (member.memberid(), "the member")
    assert [found.partition for found in one.assignment.topic_partitions] == [0, 1]


def test_deletes_a_group_without_members(admin: AdminClient, member: Consumer, group_id: str) -> None:
    (partition, _) = member.assignment()
    member.commit(offsets=[TopicPartition(partition.topic, 0, 5)], asynchronous=False)
    assert refused(admin.delete_consumer_groups([group_id])) == KafkaError.NON_EMPTY_GROUP
    member.unsubscribe()
    wait_until(
        lambda: (
            member.poll(0.05) or result(admin.describe_consumer_groups([group_id])).state == ConsumerGroupState.EMPTY
        ),
        deadline_s=DEADLINE_S,
        what="the member to leave",
    )
    result(admin.delete_consumer_groups([group_id]))
    assert refused(admin.delete_consumer_groups([group_id])) == KafkaError.GROUP_ID_NOT_FOUND


def test_lists_and_changes_offsets_of_a_group(
    admin: AdminClient, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    name = topic(partitions=2, broker=client_broker)
    offsets = [TopicPartition(name, partition, 7 + partition) for partition in range(2)]
    result(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id, offsets)]))
    listed = result(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id)]))
    assert sorted((found.partition, found.offset) for found in listed.topic_partitions) == [(0, 7), (1, 8)]
    asked = [TopicPartition(name, 1)]
    listed = result(
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id, asked)], require_stable=True)
    )
    assert [(found.partition, found.offset) for found in listed.topic_partitions] == [(1, 8)]
