"""The Java clients of Kafka 4.4.0 go on when the server is killed, or restarted, and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_2pc_sink.testing import ReferenceCoordinator
from tests.conftest import MakeTopic
from tests.integration.reference.clients.java_client import JavaClients, JavaProcess


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
