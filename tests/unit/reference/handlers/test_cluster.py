"""Metadata, FindCoordinator, DescribeCluster, configs and features as Kafka 4.4.0 answers; values are its replies."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest, UpdateFeaturesRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource
from tests.unit.reference.batches import message
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


@pytest.mark.parametrize("version", [0, 1, 4, 6])
@pytest.mark.parametrize("key_type", [0, 1])
async def test_this_node_coordinates_everything(version: int, key_type: int) -> None:
    async with cluster_node() as node:
        fields: dict[str, Any] = {"key_type": key_type} if version else {}
        fields |= {"coordinator_keys": ["k"]} if version >= 4 else {"key": "k"}
        found = await node.ask(FindCoordinatorRequest(**fields), version)
        if version >= 4:
            (one,) = found.coordinators
            assert (one.key, one.error_message) == ("k", "")
        else:
            one = found
            assert one.error_message == ("NONE" if version else "")
        assert (one.error_code, one.node_id, one.host, one.port) == (0, 1, "127.0.0.1", 9092)


TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def alter(
    node: ClusterNode,
    name: str,
    *operations: tuple[str, int, str | None],
    kind: int = TOPIC,
    version: int = 1,
    validate_only: bool = False,
    access: Access = FULL_ACCESS,
) -> tuple[int, str | None]:
    configs = [{"name": key, "config_operation": how, "value": value} for key, how, value in operations]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    request = message(IncrementalAlterConfigsRequest, resources=[resource], validate_only=validate_only)
    (one,) = (await node.ask(request, version, access=access)).responses
    assert (one.resource_type, one.resource_name) == (kind, name)
    return one.error_code, one.error_message


@pytest.mark.parametrize("version", [1, 4])
async def test_the_configs_of_a_topic(version: int) -> None:
    async with cluster_node() as node:
        await node.catalog.create_topic("orders", 1, {"max.message.bytes": "9"})
        asked = {"resource_type": TOPIC, "resource_name": "orders", "configuration_keys": None}
        request = message(DescribeConfigsRequest, resources=[asked], include_synonyms=True)
        (found,) = (await node.ask(request, version)).results
        assert (found.error_code, found.error_message, len(found.configs)) == (0, "", 37)
        (own,) = [each for each in found.configs if each.name == "max.message.bytes"]
        assert (own.value, own.config_source, own.read_only, own.is_sensitive) == ("9", 1, False, False)
        assert [(each.name, each.value, each.source) for each in own.synonyms] == [
            ("max.message.bytes", "9", 1),
            ("message.max.bytes", "1048588", 5),
        ]
        if version >= 3:
            assert (own.config_type, own.documentation) == (3, None)


async def test_configs_are_set_and_taken_back() -> None:
    async with cluster_node() as node:
        await node.catalog.create_topic("orders", 1, {"retention.ms": "5"})

        def configs() -> dict[str, str]:
            topic = present(node.catalog.topic("orders"))
            return dict(topic.configs)

        assert await alter(node, "orders", ("max.message.bytes", SET, "7"), ("segment.ms", SET, "9")) == (0, None)
        assert configs() == {"retention.ms": "5", "max.message.bytes": "7", "segment.ms": "9"}
        assert await alter(node, "orders", ("segment.ms", DELETE, None), version=0) == (0, None)
        assert await alter(node, "orders", ("flush.ms", DELETE, None), ("nonsense", DELETE, None)) == (0, None)
        assert configs() == {"retention.ms": "5", "max.message.bytes": "7"}
        assert await alter(node, "orders", ("max.message.bytes", SET, "8"), validate_only=True) == (0, None)
        assert await alter(node, "orders") == (0, None)
        assert configs() == {"retention.ms": "5", "max.message.bytes": "7"}


@pytest.mark.parametrize(
    ("operations", "code", "message"),
    [
        ([("retention.ms", APPEND, "1")], 40, "Can't APPEND to key retention.ms because its type is not LIST."),
        ([("retention.ms", 9, "1")], -1, None),
        ([("retention.ms", SET, None)], 42, "Null value not supported for : retention.ms"),
        ([("retention.ms", SET, "x")], 40, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ([("retention.ms", SET, "7"), ("nonsense", SET, "1")], 40, "Unknown topic config name: nonsense"),
        ([("retention.ms", SET, "7"), ("retention.ms", DELETE, None)], 42, "Error due to duplicate config keys"),
    ],
)
async def test_what_is_not_altered(
    operations: list[tuple[str, int, str | None]], code: int, message: str | None
) -> None:
    async with cluster_node() as node:
        topic = await node.catalog.create_topic("orders", 1, {"segment.ms": "5"})
        assert await alter(node, "orders", *operations) == (code, message)
        assert node.catalog.topic("orders") == topic


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "absent", 3, "The topic 'absent' does not exist."),
        (TOPIC, "", 42, "Default topic resources are not allowed."),
        (BROKER, "1", 42, "Cannot update these configs dynamically: [retention.ms]"),
        (BROKER, "9", 42, "Unexpected broker id, expected 1, but received 9"),
        (8, "1", 42, "The server has no configs of BROKER_LOGGER."),
        (3, "x", 42, "Unknown resource type 3"),
    ],
)
async def test_what_cannot_be_altered(kind: int, name: str, code: int, message: str) -> None:
    async with cluster_node() as node:
        found_code, found = await alter(node, name, ("retention.ms", SET, "1"), kind=kind)
        assert found_code == code
        assert (found or "").startswith(message)


async def test_who_may_alter() -> None:
    async with cluster_node() as node:
        topic = await node.catalog.create_topic("orders", 1)
        access = denying(AclOperation.ALTER_CONFIGS)
        assert (await alter(node, "orders", ("retention.ms", SET, "1"), access=access))[0] == 29
        assert (await alter(node, "1", ("node.id", SET, "1"), kind=BROKER, access=access))[0] == 31
        assert node.catalog.topic("orders") == topic
        other = denying(AclOperation.ALTER_CONFIGS, resource=Resource.CLUSTER)
        assert (await alter(node, "orders", ("retention.ms", SET, "1"), access=other))[0] == 0


TV = "transaction.version"
UPGRADE, SAFE = 1, 2
_FAILED = "The update failed for all features since the following feature had an error: Invalid update version"
KEEPING = {"transaction.keep.prepared.enable": "true", "unstable.api.versions.enable": "true"}


async def update(node: ClusterNode, *updates: tuple[str, int, int]) -> Any:
    wanted = [{"feature": name, "max_version_level": level, "upgrade_type": kind} for name, level, kind in updates]
    request = message(UpdateFeaturesRequest, timeout_ms=60_000, feature_updates=wanted, validate_only=False)
    return await node.ask(request, 2)


@pytest.mark.parametrize(
    ("name", "level", "kind", "text"),
    # Kafka would do both; here they are the one level that the server has.
    [
        ("metadata.version", 32, SAFE, "The reference coordinator supports only 33."),
        ("kraft.version", 1, UPGRADE, "The reference coordinator supports only 0."),
    ],
)
async def test_one_update_that_is_refused_leaves_the_others_undone(name: str, level: int, kind: int, text: str) -> None:
    async with cluster_node() as node:
        answer = await update(node, (TV, 1, SAFE), (name, level, kind))
        assert answer.error_code == Code.INVALID_UPDATE_VERSION
        assert answer.error_message == f"{_FAILED} {level} for feature {name}. {text}"
        assert (node.catalog.state.transaction_version, node.catalog.features_epoch) == (2, 0)


async def test_a_node_that_keeps_prepared_transactions_from_level_3_on_has_that_level() -> None:
    """KIP-939 as krafka, Dekaf and crabka read it."""
    async with cluster_node({"transaction.keep.prepared.version": "3"}) as node:
        assert (await update(node, (TV, 3, UPGRADE))).error_code == 0
        assert node.catalog.state.transaction_version == 3
        above = await update(node, (TV, 4, UPGRADE))
        assert above.error_message == f"{_FAILED} 4 for feature {TV}. Local controller 1 only supports versions 0-3"
    levels = {"transaction.version": "3", "transaction.keep.prepared.version": "3"}
    async with cluster_node({**KEEPING, **levels}) as node:
        below = await update(node, (TV, 2, SAFE))
        assert "transaction.keep.prepared.enable needs level 3" in below.error_message
