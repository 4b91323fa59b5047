"""Metadata, FindCoordinator and DescribeCluster answer as Kafka 4.4.0 does; the expected values are its replies."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource
from tests.unit.reference.cluster_node import ClusterNode, cluster_node
from tests.unit.reference.coordinator.access import denying
from tests.unit.reference.waiting import present

NO_ID = uuid.UUID(int=0)


async def metadata(
    node: ClusterNode,
    names: list[str | None] | None,
    version: int = 13,
    *,
    ids: tuple[uuid.UUID, ...] = (),
    create: bool = False,
    access: Access = FULL_ACCESS,
    **fields: bool,
) -> Any:
    topics = None
    if names is not None:
        asked = [*((name, NO_ID) for name in names), *((None, topic_id) for topic_id in ids)]
        topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id) for name, topic_id in asked]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create, **fields)
    return await node.ask(request, version, access=access)


def codes(response: Any) -> dict[str, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("version", [0, 2, 7, 13])
async def test_a_topic_is_described_in_every_version(version: int) -> None:
    async with cluster_node() as node:
        topic = present(await node.catalog.create_topic("orders", 2))
        found = await metadata(node, ["orders"], version, create=True)
        (broker,) = found.brokers
        assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", 9092)
        if version >= 2:
            assert (found.controller_id, found.cluster_id) == (1, node.catalog.cluster_id)
        (described,) = found.topics
        assert (described.error_code, described.name, described.is_internal) == (0, "orders", False)
        assert described.topic_id == (topic.id if version >= 10 else None)
        assert [
            (each.error_code, each.partition_index, each.leader_id, each.replica_nodes, each.isr_nodes)
            for each in described.partitions
        ] == [(0, 0, 1, [1], [1]), (0, 1, 1, [1], [1])]
        if version >= 7:
            assert [each.leader_epoch for each in described.partitions] == [0, 0]


async def test_all_topics_are_asked_for_by_null_and_in_version_0_by_nothing() -> None:
    async with cluster_node() as node:
        await node.catalog.create_topic("orders", 1)
        everything = {"orders": 0, "__transaction_state": 0, "__consumer_offsets": 0}
        assert codes(await metadata(node, None)) == everything
        assert codes(await metadata(node, [], 0, create=True)) == everything
        assert codes(await metadata(node, [], 1, create=True)) == {}
        internal = {topic.name for topic in (await metadata(node, None)).topics if topic.is_internal}
        assert internal == {"__transaction_state", "__consumer_offsets"}


async def test_topics_by_id() -> None:
    """KIP-516: from version 12; where one id is given, names are not looked at."""
    async with cluster_node() as node:
        topic = await node.catalog.create_topic("orders", 1)
        await node.catalog.create_topic("other", 1)
        assert topic is not None
        found = await metadata(node, ["other"], 12, ids=(topic.id, uuid.UUID(int=5)))
        by_id = {each.topic_id: (each.error_code, each.name, len(each.partitions)) for each in found.topics}
        assert by_id == {topic.id: (0, "orders", 1), uuid.UUID(int=5): (100, None, 0)}


async def test_a_missing_topic_is_created_when_asked_for_and_found_by_the_next_request() -> None:
    async with cluster_node({"num.partitions": "4"}) as node:
        await node.catalog.create_topic("p.q", 1)
        for names in (["auto"], ["p_q"], ["au/to"]):
            assert set(codes(await metadata(node, [*names], create=True)).values()) <= {3, 17}
        found = await metadata(node, ["auto", "p_q"], create=False)
        assert codes(found) == {"auto": 0, "p_q": 3}  # a name that collides with p.q is not created
        assert [len(topic.partitions) for topic in found.topics] == [4, 0]


async def test_nothing_is_created_where_the_broker_or_the_acls_forbid_it() -> None:
    async with cluster_node({"auto.create.topics.enable": "false"}) as node:
        assert codes(await metadata(node, ["auto"], create=True)) == {"auto": 3}
        assert len(node.catalog.topics()) == 2
    async with cluster_node() as node:
        nobody = denying(AclOperation.CREATE)
        assert codes(await metadata(node, ["auto"], create=True, access=nobody)) == {"auto": 29}
        assert codes(await metadata(node, ["auto"], access=nobody)) == {"auto": 3}
        only_topics = denying(AclOperation.CREATE, resource=Resource.CLUSTER)
        assert codes(await metadata(node, ["auto"], create=True, access=only_topics)) == {"auto": 3}
        assert node.catalog.topic("auto") is not None


async def test_who_may_not_describe_a_topic_learns_nothing_of_it() -> None:
    async with cluster_node() as node:
        secret = await node.catalog.create_topic("secret", 1)
        await node.catalog.create_topic("orders", 1)
        assert secret is not None
        access = denying(AclOperation.DESCRIBE, resource=Resource.TOPIC, name="secret")
        asked = (await metadata(node, ["secret", "orders"], access=access)).topics
        assert {topic.name: (topic.error_code, topic.topic_id is None) for topic in asked} == {
            "secret": (29, True),
            "orders": (0, False),
        }
        assert "secret" not in codes(await metadata(node, None, access=access))
        by_id = await metadata(node, [], 12, ids=(secret.id,), access=access)
        assert [(topic.error_code, topic.name) for topic in by_id.topics] == [(29, None)]


async def find(node: ClusterNode, version: int, key_type: int, *keys: str, access: Access = FULL_ACCESS) -> Any:
    if version >= 4:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    else:
        request = FindCoordinatorRequest(key=keys[0], **({"key_type": key_type} if version else {}))
    return await node.ask(request, version, access=access)


@pytest.mark.parametrize("version", [0, 1, 4, 6])
@pytest.mark.parametrize("key_type", [0, 1])
async def test_this_node_coordinates_everything(version: int, key_type: int) -> None:
    async with cluster_node() as node:
        found = await find(node, version, key_type, "k")
        if version >= 4:
            (one,) = found.coordinators
            assert (one.key, one.error_message) == ("k", "")
        else:
            one = found
            assert one.error_message == ("NONE" if version else "")
        assert (one.error_code, one.node_id, one.host, one.port) == (0, 1, "127.0.0.1", 9092)
