"""kafka-python 3: transactions, a consumer group, admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec, ConfigResource, ConfigResourceType, OffsetSpec, TransactionState
from kafka.errors import ProducerFencedError, TopicAlreadyExistsError
from kafka.protocol.api_key import ApiKey
from kafka.structs import OffsetAndMetadata

from spark_2pc_sink.testing import wait_until
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.reference.clients.reading import DEADLINE_S, balance, committed_values, take, values

PARTITIONS = 4
EXPECTED = [f"{who}-{number}" for who in ("alone", "both") for number in range(PARTITIONS)]

# A call of kafka-python's producer has no deadline of its own.
pytestmark = [pytest.mark.usefixtures("kafka_python_client"), pytest.mark.timeout(90)]

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


def test_second_producer_with_the_same_id_fences_the_first(
    client_broker: Broker, topic: MakeTopic, transactional_id: str, make: MakeClient
) -> None:
    name = topic(partitions=1, broker=client_broker)
    first = transactional(make, transactional_id)
    first.begin_transaction()
    send(first, name, "of the first")
    second = transactional(make, transactional_id)
    with pytest.raises(ProducerFencedError):
        first.commit_transaction()
    second.begin_transaction()
    send(second, name, "of the second")
    second.commit_transaction()
    assert committed_values(client_broker.bootstrap, name, 1) == ["of the second"]


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


def assigned(consumer: Any) -> set[int]:
    return {partition.partition for partition in consumer.assignment()}


def balanced(members: list[Any], shares: list[int]) -> list[str]:
    return balance(members, shares, poll=poll, assigned=assigned)


def test_members_share_partitions_and_take_over(
    client_broker: Broker, topic: MakeTopic, group_id: str, make: MakeClient
) -> None:
    """A second member joins and leaves; no record is lost or read twice."""
    name = topic(partitions=PARTITIONS, broker=client_broker)
    producer = make(KafkaProducer)
    first = join(make, group_id, name)
    balanced([first], [4])
    second = join(make, group_id, name)
    balanced([first, second], [2, 2])
    for partition in range(PARTITIONS):
        send(producer, name, f"both-{partition}", partition=partition)
    read = take(lambda: [*poll(first), *poll(second)], PARTITIONS)
    second.close()
    read += balanced([first], [4])
    for partition in range(PARTITIONS):
        send(producer, name, f"alone-{partition}", partition=partition)
    read += take(lambda: poll(first), PARTITIONS)
    assert sorted(read) == EXPECTED


def test_committed_reader_waits_for_the_end_of_a_transaction(
    client_broker: Broker, topic: MakeTopic, transactional_id: str, group_id: str, make: MakeClient
) -> None:
    name = topic(partitions=1, broker=client_broker)
    partition = TopicPartition(name, 0)
    producer = transactional(make, transactional_id)
    producer.begin_transaction()
    send(producer, name, "open")
    reader = join(make, group_id, name)
    balanced([reader], [1])
    assert reader.end_offsets([partition]) == {partition: 0}
    assert poll(reader) == []
    producer.commit_transaction()
    assert take(lambda: poll(reader), 1) == ["open"]


# --- admin -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(make: MakeClient) -> Any:
    return make(KafkaAdminClient)


def test_describes_cluster_and_features(admin: Any, client_broker: Broker) -> None:
    cluster = admin.describe_cluster()
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [client_broker.bootstrap]
    assert (cluster["controller_id"], bool(cluster["cluster_id"])) == (1, True)
    assert admin.describe_features()["transaction.version"]["finalized"][1] == 2


def test_server_offers_the_versions_that_clients_look_for(admin: Any) -> None:
    """Old versions of Produce are named, though none is taken: librdkafka finds out about compression by them."""
    offered = admin.get_broker_version_data(1).api_versions
    assert offered[ApiKey.Produce] == (0, 13)
    assert offered[ApiKey.Fetch] == (4, 18)
    # Released versions only: v6 of InitProducerId is KIP-939's.
    assert offered[ApiKey.InitProducerId] == (0, 5)
    assert offered[ApiKey.EndTxn] == (0, 5)


def test_creates_describes_and_deletes_topics(admin: Any, group_id: str) -> None:
    name = group_id.replace("group", "topic")
    created = {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "12345678"}}}
    admin.create_topics(created, wait_for_metadata=True)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics(created)
    (described,) = admin.describe_topics([name])
    assert sorted(found["partition_index"] for found in described["partitions"]) == [0, 1]
    admin.create_partitions({name: 3})
    admin.wait_for_topics([name])
    wait_until(
        lambda: len(admin.describe_topics([name])[0]["partitions"]) == 3, deadline_s=DEADLINE_S, what="three partitions"
    )
    admin.delete_topics([name])
    wait_until(lambda: name not in admin.list_topics(), deadline_s=DEADLINE_S, what="the topic to go")


def test_describes_and_changes_configs(admin: Any, client_broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=1, broker=client_broker, config={"retention.ms": "12345678"})

    def configs() -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        found = admin.describe_configs([resource])["topic"][name]
        return {setting: entry["value"] for setting, entry in found.items()}

    assert configs() == {"retention.ms": "12345678"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs={"retention.ms": "23456789"})])
    wait_until(lambda: configs() == {"retention.ms": "23456789"}, deadline_s=DEADLINE_S, what="the changed config")


def test_deletes_records(admin: Any, client_broker: Broker, topic: MakeTopic, make: MakeClient) -> None:
    name = topic(partitions=1, broker=client_broker)
    send(make(KafkaProducer), name, "a", "b", "c")
    deleted = admin.delete_records({TopicPartition(name, 0): 2})
    assert deleted[TopicPartition(name, 0)]["low_watermark"] == 2
    assert values(client_broker.bootstrap, name) == ["c"]


def test_lists_describes_and_deletes_groups(
    admin: Any, client_broker: Broker, topic: MakeTopic, group_id: str, make: MakeClient
) -> None:
    name = topic(partitions=PARTITIONS, broker=client_broker)
    member = join(make, group_id, name, enable_auto_commit=False)
    balanced([member], [4])
    member.commit({TopicPartition(name, 1): OffsetAndMetadata(0, "", -1)})
    assert group_id in {found["group_id"] for found in admin.list_groups(states_filter=["Stable"])}
    described = admin.describe_groups([group_id])[group_id]
    assert (described["group_state"], len(described["members"])) == ("Stable", 1)
    assert admin.delete_groups([group_id]) == {group_id: "NonEmptyGroupError"}
    member.close()
    assert admin.list_group_offsets(group_id)[group_id][TopicPartition(name, 1)].offset == 0
    assert admin.delete_groups([group_id]) == {group_id: "OK"}
    assert group_id not in {found["group_id"] for found in admin.list_groups()}


def test_lists_offsets(
    admin: Any, client_broker: Broker, topic: MakeTopic, transactional_id: str, make: MakeClient
) -> None:
    name = topic(partitions=1, broker=client_broker)
    partition = TopicPartition(name, 0)
    plain = make(KafkaProducer)
    for moment in (1_000, 3_000, 2_000):
        plain.send(name, b"value", partition=0, timestamp_ms=moment).get(DEADLINE_S)
    open_one = transactional(make, transactional_id)
    open_one.begin_transaction()
    send(open_one, name, "open")

    def offset(spec: int, isolation: str = "read_uncommitted") -> int:
        return int(admin.list_partition_offsets({partition: spec}, isolation)[partition].offset)

    assert (offset(OffsetSpec.EARLIEST), offset(OffsetSpec.LATEST)) == (0, 4)
    assert offset(OffsetSpec.LATEST, "read_committed") == 3
    assert [offset(moment) for moment in (1_000, 1_001, 3_000)] == [0, 1, 1]
    open_one.abort_transaction()


def test_lists_and_describes_transactions(
    admin: Any, client_broker: Broker, topic: MakeTopic, transactional_id: str, make: MakeClient
) -> None:
    """KIP-664: the open transaction is listed, described, found by its producer, and aborted past its coordinator."""
    name = topic(partitions=1, broker=client_broker)
    partition = TopicPartition(name, 0)
    producer = transactional(make, transactional_id)
    producer.begin_transaction()
    send(producer, name, "open")
    listed = admin.list_transactions(state_filters=[TransactionState.ONGOING.value])
    assert transactional_id in {found.transactional_id for found in listed[1]}
    described = admin.describe_transactions([transactional_id])[transactional_id]
    assert (described.state, described.topic_partitions) == (TransactionState.ONGOING, {partition})
    (found,) = admin.describe_producers([partition])[partition].active_producers
    assert (found.producer_id, found.producer_epoch) == (described.producer_id, described.producer_epoch)
    assert found.current_transaction_start_offset == 0
    admin.abort_transaction(AbortTransactionSpec(partition, found.producer_id, found.producer_epoch, 0))
    (found,) = admin.describe_producers([partition])[partition].active_producers
    assert found.current_transaction_start_offset == -1
    assert values(client_broker.bootstrap, name) == []
