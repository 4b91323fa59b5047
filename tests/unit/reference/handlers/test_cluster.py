"""Metadata, FindCoordinator and DescribeCluster answer as Kafka 4.4.0 does; the expected values are its replies."""

from __future__ import annotations

import uuid
from typing import Any
from unittest import mock

import pytest
from kafka.protocol.admin import DescribeClusterRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource
from spark_2pc_sink.reference.handlers.cluster import AUTO_CREATED_PARTITIONS_MAX
from tests.unit.reference.cluster_node import ClusterNode, cluster_node
from tests.unit.reference.coordinator.access import denying
from tests.unit.reference.waiting import present

NO_ID = uuid.UUID(int=0)
MALFORMED = "This most likely occurs because of a request being malformed"


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


@pytest.mark.parametrize("version", range(14))
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


async def test_topics_that_do_not_exist_or_cannot() -> None:
    async with cluster_node() as node:
        names: list[str | None] = ["absent", "bad/name", "", "absent"]
        assert codes(await metadata(node, names)) == {"absent": 3, "bad/name": 17, "": 17}
        assert len(node.catalog.topics()) == 2


async def test_topics_by_id() -> None:
    """KIP-516: from version 12; where one id is given, names are not looked at."""
    async with cluster_node() as node:
        topic = await node.catalog.create_topic("orders", 1)
        await node.catalog.create_topic("other", 1)
        assert topic is not None
        found = await metadata(node, ["other"], 12, ids=(topic.id, uuid.UUID(int=5)))
        by_id = {each.topic_id: (each.error_code, each.name, len(each.partitions)) for each in found.topics}
        assert by_id == {topic.id: (0, "orders", 1), uuid.UUID(int=5): (100, None, 0)}


@pytest.mark.parametrize(("version", "code"), [(10, 42), (11, 42), (12, -1)])
async def test_no_name_where_there_must_be_one(version: int, code: int) -> None:
    async with cluster_node() as node:
        found = await metadata(node, [None], version)
        assert ([topic.error_code for topic in found.topics], found.brokers, found.cluster_id) == ([code], [], None)


async def test_an_id_before_version_12_is_refused() -> None:
    async with cluster_node() as node:
        found = await metadata(node, [], 11, ids=(uuid.UUID(int=5),))
        assert [(topic.error_code, topic.topic_id) for topic in found.topics] == [(42, uuid.UUID(int=5))]


async def test_a_missing_topic_is_created_when_asked_for_and_found_by_the_next_request() -> None:
    async with cluster_node({"num.partitions": "4"}) as node:
        await node.catalog.create_topic("p.q", 1)
        for names in (["auto"], ["p_q"], ["au/to"]):
            assert set(codes(await metadata(node, [*names], create=True)).values()) <= {3, 17}
        found = await metadata(node, ["auto", "p_q"], create=False)
        assert codes(found) == {"auto": 0, "p_q": 3}  # a name that collides with p.q is not created
        assert [len(topic.partitions) for topic in found.topics] == [4, 0]


async def test_missing_topics_are_created_in_one_change_up_to_a_bound() -> None:
    names = [f"t{number}" for number in range(AUTO_CREATED_PARTITIONS_MAX // 2 + 1)]
    async with cluster_node({"num.partitions": "2"}) as node:
        with mock.patch.object(node.catalog, "_store", wraps=node.catalog._store) as stored:
            await metadata(node, [*names], create=True)
        assert stored.await_count == 1
        assert [topic.name for topic in node.catalog.topics() if not topic.internal] == names[:-1]
        await metadata(node, [*names], create=True)
        assert node.catalog.topic(names[-1]) is not None


async def test_of_two_new_names_that_collide_the_first_is_created_and_a_large_topic_is_one_too() -> None:
    async with cluster_node({"num.partitions": "2000"}) as node:
        await metadata(node, ["p.q", "p_q"], create=True)
        assert [topic.name for topic in node.catalog.topics() if not topic.internal] == ["p.q"]


async def test_a_disk_that_refuses_new_topics_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_node() as node:
        with mock.patch.object(node.catalog, "_store", side_effect=OSError("no space left")):
            assert codes(await metadata(node, ["auto"], create=True)) == {"auto": 3}
    assert "could not create 1 topics named by Metadata: no space left" in caplog.text


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


async def test_authorized_operations_are_given_when_asked_for() -> None:
    """KIP-430. Codes of AclOperation; the cluster's in Metadata v8 to v10 and in DescribeCluster."""
    async with cluster_node() as node:
        await node.catalog.create_topic("orders", 1)
        fields: dict[str, Any] = dict.fromkeys(
            ("include_topic_authorized_operations", "include_cluster_authorized_operations"), True
        )
        found = await metadata(node, ["orders"], 9, **fields)
        assert set(found.topics[0].authorized_operations) == {3, 4, 5, 6, 7, 8, 10, 11}
        assert set(found.authorized_operations) == {5, 7, 8, 9, 10, 11, 12}
        some = await metadata(node, ["orders"], 9, access=denying(AclOperation.WRITE, AclOperation.ALTER), **fields)
        assert set(some.topics[0].authorized_operations) == {3, 5, 6, 8, 10, 11}
        assert set(some.authorized_operations) == {5, 8, 9, 10, 11, 12}
        blind = denying(AclOperation.DESCRIBE, resource=Resource.CLUSTER)
        assert set((await metadata(node, [], 9, access=blind, **fields)).authorized_operations) == set()
        plain = await metadata(node, ["orders"], 9)
        assert (plain.topics[0].authorized_operations, plain.authorized_operations) == (None, None)


async def find(node: ClusterNode, version: int, key_type: int, *keys: str, access: Access = FULL_ACCESS) -> Any:
    if version >= 4:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    else:
        request = FindCoordinatorRequest(key=keys[0], **({"key_type": key_type} if version else {}))
    return await node.ask(request, version, access=access)


@pytest.mark.parametrize("version", range(7))
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


async def test_several_keys_are_answered_one_by_one() -> None:
    async with cluster_node() as node:
        access = denying(AclOperation.DESCRIBE, resource=Resource.GROUP, name="b")
        found = await find(node, 4, 0, "a", "b", "a", access=access)
        assert [(each.key, each.error_code, each.node_id, each.error_message) for each in found.coordinators] == [
            ("a", 0, 1, ""),
            ("b", 30, -1, ""),
            ("a", 0, 1, ""),
        ]
        assert (await find(node, 4, 0)).coordinators == []


@pytest.mark.parametrize(
    ("key_type", "code", "message"),
    [(0, 30, "Group authorization failed."), (1, 53, "Transactional Id authorization failed."), (9, 42, MALFORMED)],
)
async def test_what_is_refused_before_version_4_says_why(key_type: int, code: int, message: str) -> None:
    async with cluster_node() as node:
        found = await find(node, 2, key_type, "k", access=denying(AclOperation.DESCRIBE))
        assert (found.error_code, found.node_id, found.host, found.port) == (code, -1, "", -1)
        assert found.error_message.startswith(message)


@pytest.mark.parametrize(("key_type", "message"), [(2, ""), (9, MALFORMED), (-1, MALFORMED)])
async def test_there_are_no_share_groups_and_no_other_types(key_type: int, message: str) -> None:
    async with cluster_node() as node:
        (one,) = (await find(node, 6, key_type, "k")).coordinators
        assert (one.error_code, one.error_message[: len(MALFORMED)]) == (42, message)


async def test_the_cluster_is_described() -> None:
    async with cluster_node() as node:
        for version in (0, 1, 2):
            request = DescribeClusterRequest(include_cluster_authorized_operations=True)
            found = await node.ask(request, version)
            assert (found.error_code, found.cluster_id, found.controller_id) == (0, node.catalog.cluster_id, 1)
            assert [(each.broker_id, each.host, each.port) for each in found.brokers] == [(1, "127.0.0.1", 9092)]
            assert set(found.authorized_operations) == {5, 7, 8, 9, 10, 11, 12}
        assert (await node.ask(DescribeClusterRequest(), 1)).authorized_operations is None


@pytest.mark.parametrize(
    ("endpoint_type", "code", "message"),
    [(2, 114, "an endpoint of type CONTROLLER"), (3, 115, "Unsupported endpoint type 3")],
)
async def test_only_brokers_are_described(endpoint_type: int, code: int, message: str) -> None:
    """KIP-919."""
    async with cluster_node() as node:
        found = await node.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
        assert (found.error_code, found.brokers, found.controller_id) == (code, [], -1)
        assert message in found.error_message
