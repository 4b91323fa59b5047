"""CreateTopics, DeleteTopics and CreatePartitions answer as Kafka 4.4.0 does; the expected values are its replies."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest

from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource
from tests.unit.reference.batches import message
from tests.unit.reference.cluster_node import ClusterNode, cluster_node
from tests.unit.reference.coordinator.access import AccessBy, denying
from tests.unit.reference.waiting import present

NO_ID = uuid.UUID(int=0)


def topic(
    name: str,
    partitions: int = 1,
    replication: int = 1,
    *,
    assigned: tuple[tuple[int, list[int]], ...] = (),
    configs: dict[str, str | None] | None = None,
) -> Any:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication,
        "assignments": [{"partition_index": at, "broker_ids": on} for at, on in assigned],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }


async def create(
    node: ClusterNode, *topics: Any, version: int = 7, validate_only: bool = False, access: Access = FULL_ACCESS
) -> list[Any]:
    request = message(CreateTopicsRequest, topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    return list((await node.ask(request, version, access=access)).topics)


async def delete(
    node: ClusterNode, *names: str, ids: tuple[uuid.UUID, ...] = (), version: int = 6, access: Access = FULL_ACCESS
) -> list[tuple[str | None, int]]:
    states = [
        *({"name": name, "topic_id": NO_ID} for name in names),
        *({"name": None, "topic_id": each} for each in ids),
    ]
    fields: dict[str, Any] = {"topics": states} if version >= 6 else {"topic_names": list(names)}
    response = await node.ask(message(DeleteTopicsRequest, timeout_ms=1000, **fields), version, access=access)
    return [(each.name, each.error_code) for each in response.responses]


async def grow(
    node: ClusterNode, name: str, count: int, assigned: list[list[int]] | None = None, access: Access = FULL_ACCESS
) -> tuple[int, str | None]:
    on_brokers = None if assigned is None else [{"broker_ids": on} for on in assigned]
    topics = [{"name": name, "count": count, "assignments": on_brokers}]
    request = message(CreatePartitionsRequest, topics=topics, timeout_ms=1000, validate_only=False)
    (one,) = (await node.ask(request, 3, access=access)).results
    return one.error_code, one.error_message


@pytest.mark.parametrize("version", [2, 5, 7])
async def test_a_topic_is_created(version: int) -> None:
    async with cluster_node() as node:
        (made,) = await create(node, topic("orders", 2, configs={"max.message.bytes": "9"}), version=version)
        known = present(node.catalog.topic("orders"))
        assert (made.name, made.error_code, made.error_message) == ("orders", 0, None)
        assert (known.partitions, known.configs) == (2, {"max.message.bytes": "9"})
        if version >= 5:
            assert (made.num_partitions, made.replication_factor, made.topic_config_error_code) == (2, 1, 0)
            shown = {each.name: (each.value, each.config_source) for each in made.configs}
            assert shown["max.message.bytes"] == ("9", 1)
            assert shown["segment.bytes"] == ("1073741824", 5)
            assert list(shown) == sorted(shown)
        if version >= 7:
            assert made.topic_id == known.id


REFUSED: list[tuple[Any, int, str]] = [
    (topic(""), 17, "the empty string is not allowed"),
    (topic(".."), 17, "'..' is not allowed"),
    (topic("a/b"), 17, "'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    (topic("x" * 250), 17, "is longer than the max allowed length 249"),
    (topic("p_q"), 17, "Topic 'p_q' collides with existing topic: p.q"),
    (topic("there"), 36, "Topic 'there' already exists."),
    (topic("__cluster_metadata"), 42, "Creation of internal topic __cluster_metadata is prohibited."),
    (topic("e", 0), 37, "Number of partitions was set to an invalid non-positive value."),
    (topic("e", 10_001), 44, "Excessively large number of partitions per request."),
    (topic("e", 1, 2), 38, "The target replication factor of 2 cannot be reached because only 1 broker(s)"),
    (topic("e", 1, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (topic("e", configs={"nonsense": "1"}), 40, "Unknown topic config name: nonsense"),
    (topic("e", configs={"retention.ms": "x"}), 40, "Invalid value x for configuration retention.ms: Not a number of "),
    (topic("e", 2, 1, assigned=((0, [1]),)), 42, "but replication factor was not set to -1."),
    (topic("e", -1, -1, assigned=((0, [7]),)), 39, "includes broker 7, but no such broker is registered."),
    (topic("e", -1, -1, assigned=((1, [1]),)), 39, "partitions should be a consecutive 0-based integer sequence"),
]


@pytest.mark.parametrize(("asked", "code", "message"), REFUSED, ids=range(len(REFUSED)))
async def test_what_kafka_does_not_create(asked: Any, code: int, message: str) -> None:
    async with cluster_node() as node:
        await node.catalog.create_topic("there", 1)
        await node.catalog.create_topic("p.q", 1)
        before = node.catalog.topics()
        for validate_only in (True, False):
            answers = await create(node, asked, topic("good"), validate_only=validate_only)
            good, bad = sorted(answers, key=lambda each: each.error_code)
            assert (bad.error_code, bad.num_partitions, bad.configs, bad.topic_id) == (code, -1, [], None)
            assert message in bad.error_message
            assert good.error_code == 0
            assert node.catalog.topics()[: len(before)] == before
            assert (node.catalog.topic("good") is None) == validate_only


async def test_who_may_create_and_who_may_see_the_configs() -> None:
    async with cluster_node() as node:
        (made,) = await create(node, topic("a"), access=denying(AclOperation.CREATE))
        assert (made.error_code, made.error_message) == (29, "Authorization failed.")
        by_topic = denying(AclOperation.CREATE, resource=Resource.CLUSTER)
        (made,) = await create(node, topic("a"), access=by_topic)
        assert made.error_code == 0
        (made,) = await create(node, topic("b"), access=denying(AclOperation.DESCRIBE_CONFIGS))
        assert (made.error_code, made.topic_config_error_code, made.num_partitions, made.configs) == (0, 29, -1, [])


async def test_topics_are_deleted_by_name_and_by_id() -> None:
    async with cluster_node() as node:
        for version in (1, 5):
            await node.catalog.create_topic("a", 1)
            assert await delete(node, "a", "absent", version=version) == [("a", 0), ("absent", 3)]
        a = await node.catalog.create_topic("a", 1)
        await node.catalog.create_topic("b", 1)
        assert a is not None
        gone = await delete(node, "b", ids=(a.id, uuid.UUID(int=5)))
        assert gone == [("a", 0), (None, 100), ("b", 0)]
        assert all(topic.internal for topic in node.catalog.topics())


async def test_what_cannot_be_deleted_stays() -> None:
    async with cluster_node() as node:
        a = present(await node.catalog.create_topic("a", 1))
        assert await delete(node, "a", "a") == [("a", 42)]
        assert await delete(node, ids=(a.id, a.id)) == [(None, 42)]
        assert await delete(node, "a", ids=(a.id,)) == [("a", 42)]
        assert await delete(node, ids=(NO_ID,)) == [(None, 42)]
        request = message(DeleteTopicsRequest, topics=[{"name": "a", "topic_id": a.id}], timeout_ms=1)
        assert (await node.ask(request, 6)).responses[0].error_message == (
            "You may not specify both topic name and topic id."
        )
        assert await delete(node, "__transaction_state", "__consumer_offsets") == [
            ("__transaction_state", 44),
            ("__consumer_offsets", 44),
        ]
        assert node.catalog.topic("a") is not None
        assert len(node.catalog.topics()) == 3


async def test_who_may_not_see_a_topic_does_not_learn_of_it_by_deleting() -> None:
    async with cluster_node() as node:
        a = present(await node.catalog.create_topic("a", 1))
        blind = denying(AclOperation.DELETE, AclOperation.DESCRIBE)
        assert await delete(node, "a", "absent", access=blind) == [("a", 29), ("absent", 29)]
        assert await delete(node, ids=(a.id,), access=blind) == [(None, 29)]
        seeing = denying(AclOperation.DELETE)
        assert await delete(node, "a", "absent", access=seeing) == [("a", 29), ("absent", 3)]
        assert await delete(node, ids=(a.id,), access=seeing) == [("a", 29)]
        deleting = AccessBy(lambda operation, kind, _name: (operation, kind) == (AclOperation.DELETE, Resource.TOPIC))
        assert await delete(node, "a", access=deleting) == [("a", 29)]
        by_cluster = denying(AclOperation.DELETE, AclOperation.DESCRIBE, resource=Resource.TOPIC)
        assert await delete(node, "a", access=by_cluster) == [("a", 0)]


@pytest.mark.parametrize(
    ("name", "count", "assigned", "code", "message"),
    [
        ("a", 4, None, 37, "Topic already has 4 partition(s)."),
        ("a", 1, None, 37, "The topic a currently has 4 partition(s); 1 would not be an increase."),
        ("absent", 4, None, 3, None),
        ("a", 5, [[9]], 39, "The manual partition assignment includes broker 9, but no such broker is registered."),
        ("a", 20_000, None, 44, "Excessively large number of additional partitions per request."),
        (
            "__consumer_offsets",
            51,
            None,
            44,
            "The topic __consumer_offsets belongs to the coordinators of this server.",
        ),
    ],
)
async def test_what_gets_no_more_partitions(
    name: str, count: int, assigned: list[list[int]] | None, code: int, message: str | None
) -> None:
    async with cluster_node() as node:
        await node.catalog.create_topic("a", 4)
        before = node.catalog.topics()
        assert await grow(node, name, count, assigned) == (code, message)
        assert node.catalog.topics() == before


async def test_growing_without_alter_is_refused() -> None:
    async with cluster_node() as node:
        await node.catalog.create_topic("a", 1)
        assert await grow(node, "a", 2, access=denying(AclOperation.ALTER)) == (29, None)
        known = present(node.catalog.topic("a"))
        assert known.partitions == 1
