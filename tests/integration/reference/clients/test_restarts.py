"""The Java clients of Kafka 4.4.0 and confluent-kafka go on when the server is killed, or restarted, and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator
from tests.conftest import MakeTopic, or_skip
from tests.harness.providers import Broker
from tests.integration.reference.clients.conftest import state_client
from tests.integration.reference.clients.java_client import JavaClients, JavaProcess, raises_java
from tests.integration.reference.clients.reading import DEADLINE_S, committed_values

# Timed-out transactions are looked for every 200 ms instead of every ten seconds.
PROPERTIES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@pytest.fixture(
    params=[
        # That the test is right, which no change here changes; the other, that the reference coordinator is.
        pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough]),
        pytest.param("reference", marks=pytest.mark.kafka),
    ]
)
def own_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    def start() -> Broker:
        if request.param == "kafka":
            return KafkaBroker(properties=PROPERTIES).__enter__()
        return ReferenceCoordinator(two_phase_commit=False, properties=PROPERTIES).__enter__()

    broker = or_skip(request.config, start)
    yield broker
    broker.close()


@pytest.fixture(params=["kafka-clients-4.4.0"])
def own_java(request: pytest.FixtureRequest, java_process: JavaProcess, own_broker: Broker) -> Iterator[JavaClients]:
    state_client(request, request.param)
    assert f"kafka-clients-{java_process.kafka_version}" == request.param
    clients = JavaClients(java_process, own_broker.bootstrap)
    yield clients
    clients.close()


@pytest.mark.java
def test_java_transaction_survives_a_crash(
    own_java: JavaClients, own_broker: Broker, topic: MakeTopic, transactional_id: str
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
    own_java: JavaClients, own_broker: Broker, topic: MakeTopic, group_id: str
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


@pytest.mark.java
def test_java_transaction_times_out(
    own_java: JavaClients, own_broker: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    """The coordinator aborts it; its producer learns so at its commit, and can begin anew after initTransactions()."""
    name = topic(partitions=1, broker=own_broker)
    producer = own_java.producer(transactional_id=transactional_id, transaction_timeout_ms=300)
    producer.initTransactions()
    producer.beginTransaction()
    own_java.send(producer, name, 0, "too slow")
    own_java.settle(transactional_id)
    assert str(own_java.transaction(transactional_id).state()) == "CompleteAbort"
    with raises_java("InvalidTxnStateException"):
        producer.commitTransaction()
    again = own_java.producer(transactional_id=transactional_id)
    again.initTransactions()
    again.beginTransaction()
    own_java.send(again, name, 0, "in time")
    again.commitTransaction()
    own_java.settle(transactional_id)
    assert own_java.values(name, 1) == ["in time"]


@pytest.mark.usefixtures("confluent_kafka_client")
def test_confluent_transaction_survives_a_crash(own_broker: Broker, topic: MakeTopic, transactional_id: str) -> None:
    name = topic(partitions=1, broker=own_broker)
    producer = Producer(
        {"bootstrap.servers": own_broker.bootstrap, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(name, "before")
    assert producer.flush(DEADLINE_S) == 0
    own_broker.kill()
    own_broker.start()
    producer.produce(name, "after")
    assert producer.flush(DEADLINE_S) == 0
    producer.commit_transaction(DEADLINE_S)
    assert committed_values(own_broker.bootstrap, name, 2) == ["before", "after"]
