"""The Java consumer of Kafka 4.4.0 in a group (the classic protocol): assignors, rebalances, commits, lag."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.java_client import JavaClients, raises_java
from tests.integration.reference.clients.reading import take

pytestmark = pytest.mark.java

PARTITIONS = 4
#: In 2023; py4j makes a Long only of a number that is too large for an Integer.
START_MS = 1_700_000_000_000
EXPECTED = [f"{who}-{number}" for who in ("alone", "both") for number in range(PARTITIONS)]
ASSIGNORS = ["RangeAssignor", "CooperativeStickyAssignor"]


def join(java: JavaClients, group_id: str, topic: str, **settings: object) -> Any:
    consumer = java.consumer(group_id=group_id, **settings)
    consumer.subscribe([topic])
    return consumer


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


def test_committed_offsets_outlive_the_member(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    name = topic(partitions=1, broker=client_broker)
    java.send(java.producer(), name, 0, "a", "b", "c", "d")
    first = join(java, group_id, name, max_poll_records=3)
    assert len(java.take(first, 3)) == 3
    first.commitSync()
    first.close()
    second = join(java, group_id, name)
    assert [(record.offset, record.value) for record in java.take(second, 1)] == [(3, "d")]


def test_lag_is_what_is_left_to_read(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, transactional_id: str, group_id: str
) -> None:
    """A committed reader's lag ends at the last stable offset; the end of an uncommitted one is the high watermark."""
    name = topic(partitions=1, broker=client_broker)
    partition = java.partition(name, 0)
    java.send(java.producer(), name, 0, "a", "b", "c")
    open_one = java.producer(transactional_id=transactional_id)
    open_one.initTransactions()
    open_one.beginTransaction()
    java.send(open_one, name, 0, "open", "open too")
    lags = {}
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = join(java, f"{group_id}_{isolation}", name, max_poll_records=1, isolation_level=isolation)
        java.take(consumer, 1)
        consumer.commitSync()
        committed = consumer.committed({partition})[partition].offset()
        end = consumer.endOffsets([partition])[partition]
        lags[isolation] = (end - committed, consumer.currentLag(partition).getAsLong())
    assert lags == {"read_committed": (2, 2), "read_uncommitted": (4, 4)}
    open_one.abortTransaction()


def test_commit_after_leaving_is_refused(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    """A member that the group has thrown out must not commit: its partitions may be another's."""
    name = topic(partitions=PARTITIONS, broker=client_broker)
    member = join(java, group_id, name)
    java.balance([member], [4])
    admin = java.admin()
    options = java.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions()
    java.result(admin.removeMembersFromConsumerGroup(group_id, options).all())
    offsets = {java.partition(name, 0): java.kafka.clients.consumer.OffsetAndMetadata(1)}
    with raises_java("CommitFailedException"):
        member.commitSync(offsets)
    java.balance([member], [4])


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


def test_consumer_seeks_by_time(java: JavaClients, client_broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=1, broker=client_broker)
    producer = java.producer()
    for moment in (1_000, 2_000, 3_000):
        record = java.kafka.clients.producer.ProducerRecord(name, 0, START_MS + moment, None, f"at {moment}")
        java.result(producer.send(record))
    consumer = java.consumer()
    partition = java.partition(name, 0)
    found = {
        moment: consumer.offsetsForTimes({partition: START_MS + moment})[partition] for moment in (0, 1_001, 3_001)
    }
    assert found[3_001] is None
    assert [(found[moment].offset(), found[moment].timestamp() - START_MS) for moment in (0, 1_001)] == [
        (0, 1_000),
        (1, 2_000),
    ]


def test_subscribes_to_a_pattern(java: JavaClients, client_broker: Broker, topic: MakeTopic, group_id: str) -> None:
    """The consumer asks for all topics and picks; the server's own topics are not among them unless asked for."""
    name = topic(partitions=PARTITIONS, broker=client_broker)
    consumer = java.consumer(group_id=group_id)
    consumer.subscribe(java.pattern(f"{name[:-1]}.|__consumer.*"))
    java.balance([consumer], [PARTITIONS])
    assert {partition.topic() for partition in consumer.assignment()} == {name}


def test_two_groups_read_independently(
    java: JavaClients, client_broker: Broker, topic: MakeTopic, group_id: str
) -> None:
    name = topic(partitions=1, broker=client_broker)
    java.send(java.producer(), name, 0, "a", "b")
    members = [join(java, f"{group_id}_{number}", name) for number in range(2)]
    assert [len(java.take(member, 2)) for member in members] == [2, 2]
    members[0].commitSync()
    partition = java.partition(name, 0)
    assert [member.committed({partition})[partition] is None for member in members] == [False, True]


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
