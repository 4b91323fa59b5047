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
