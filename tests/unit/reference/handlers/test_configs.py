"""DescribeConfigs and IncrementalAlterConfigs answer as Kafka 4.4.0 does; the expected values are its replies."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource
from tests.unit.reference.batches import message
from tests.unit.reference.cluster_node import ClusterNode, cluster_node
from tests.unit.reference.coordinator.access import denying
from tests.unit.reference.waiting import present

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def describe(
    node: ClusterNode,
    *resources: tuple[int, str, list[str] | None],
    version: int = 4,
) -> list[Any]:
    asked = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
    ]
    request = message(DescribeConfigsRequest, resources=asked, include_synonyms=True)
    return list((await node.ask(request, version)).results)


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
        (found,) = await describe(node, (TOPIC, "orders", None), version=version)
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
