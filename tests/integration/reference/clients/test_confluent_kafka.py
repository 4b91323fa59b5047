"""confluent-kafka (librdkafka): transactions, and consumer groups with eager and cooperative assignors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from spark_2pc_sink.testing import kafka_request
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.reading import DEADLINE_S, balance, committed_values, take, values

pytestmark = pytest.mark.usefixtures("confluent_kafka_client")

PARTITIONS = 4
PRODUCE_API = 0
EXPECTED = [f"{who}-{number}" for who in ("alone", "both") for number in range(PARTITIONS)]
#: Two eager ones and the cooperative one (KIP-429).
ASSIGNORS = ["range", "roundrobin", "cooperative-sticky"]


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


def test_second_producer_with_the_same_id_fences_the_first(
    client_broker: Broker, topic: MakeTopic, transactional_id: str
) -> None:
    bootstrap, name = client_broker.bootstrap, topic(partitions=1, broker=client_broker)
    first = transactional(bootstrap, transactional_id)
    first.begin_transaction()
    send(first, name, "of the first")
    second = transactional(bootstrap, transactional_id)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(DEADLINE_S)
    error = caught.value.args[0]
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)
    second.begin_transaction()
    send(second, name, "of the second")
    second.commit_transaction(DEADLINE_S)
    assert committed_values(bootstrap, name, 1) == ["of the second"]


def test_idempotent_producer_sends_again_without_a_duplicate(client_broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=1, broker=client_broker)
    with client_broker.proxy() as proxy:
        made = producer(proxy.address, enable_idempotence=True)
        send(made, name, *(f"{number:03}" for number in range(50)))
        proxy.lose_answer(kafka_request(PRODUCE_API))
        send(made, name, *(f"{number:03}" for number in range(50, 200)))
        assert proxy.answers_lost == 1
    assert values(client_broker.bootstrap, name) == [f"{number:03}" for number in range(200)]


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


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compresses(compression: str, client_broker: Broker, topic: MakeTopic) -> None:
    """librdkafka compresses only if the server offers Produce from version 0 on, in some versions (KAFKA-18659)."""
    name = topic(partitions=1, broker=client_broker, config={"max.message.bytes": "20000"})
    made = producer(client_broker.bootstrap, compression_type=compression)
    # Without compression the leader refuses it: MSG_SIZE_TOO_LARGE.
    send(made, name, "a" * 100_000)
    assert values(client_broker.bootstrap, name) == ["a" * 100_000]


def test_reads_backwards_and_by_time(client_broker: Broker, topic: MakeTopic, consumers: Consumers) -> None:
    name = topic(partitions=1, broker=client_broker)
    send(producer(client_broker.bootstrap), name, *(str(number) for number in range(5)))
    consumer = consumers.join(name, "range")
    assert take(lambda: poll(consumer), 5) == ["0", "1", "2", "3", "4"]
    partition = TopicPartition(name, 0)
    assert consumer.get_watermark_offsets(partition, DEADLINE_S) == (0, 5)
    consumer.seek(TopicPartition(name, 0, 3))
    assert take(lambda: poll(consumer), 2) == ["3", "4"]
    (found,) = consumer.offsets_for_times([TopicPartition(name, 0, 0)], DEADLINE_S)
    assert found.offset == 0


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


@pytest.mark.parametrize(("assignor", "count"), [("range", 4), ("cooperative-sticky", 2)])
def test_partitions_that_a_member_gives_up_when_another_joins(
    assignor: str, count: int, client_broker: Broker, topic: MakeTopic, consumers: Consumers
) -> None:
    """KIP-429: an eager rebalance takes everything away, a cooperative one only what moves."""
    name = topic(partitions=PARTITIONS, broker=client_broker)
    revoked: list[int] = []

    def note(_: Consumer, partitions: Iterable[TopicPartition]) -> None:
        revoked.extend(partition.partition for partition in partitions)

    first = consumers.join(name, assignor)
    first.subscribe([name], on_revoke=note)
    balanced([first], [4])
    second = consumers.join(name, assignor)
    balanced([first, second], [2, 2])
    assert len(revoked) == count


def test_committed_offsets_outlive_the_member(client_broker: Broker, topic: MakeTopic, consumers: Consumers) -> None:
    name = topic(partitions=1, broker=client_broker)
    send(producer(client_broker.bootstrap), name, "a", "b")
    first = consumers.join(name, "range")
    read = take(lambda: poll(first), 2)
    committed = first.commit(asynchronous=False)
    assert [(found.partition, found.offset, found.error) for found in committed or []] == [(0, 2, None)]
    consumers.leave(first)
    send(producer(client_broker.bootstrap), name, "c")
    second = consumers.join(name, "range")
    read += take(lambda: poll(second), 1)
    assert read == ["a", "b", "c"]
