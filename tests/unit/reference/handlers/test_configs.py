"""DescribeConfigs and IncrementalAlterConfigs answer as Kafka 4.4.0 does; the expected values are its replies."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource
from tests.unit.reference.cluster_node import ClusterNode, cluster_node
from tests.unit.reference.coordinator.access import denying
from tests.unit.reference.waiting import present

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
_Described = DescribeConfigsRequest.DescribeConfigsResource
_Altered = IncrementalAlterConfigsRequest.AlterConfigsResource


async def describe(
    node: ClusterNode,
    *resources: tuple[int, str, list[str] | None],
    version: int = 4,
    synonyms: bool = True,
    documentation: bool = False,
    access: Access = FULL_ACCESS,
) -> list[Any]:
    asked = [
        _Described(resource_type=kind, resource_name=name, configuration_keys=keys) for kind, name, keys in resources
    ]
    request = DescribeConfigsRequest(
        resources=asked, include_synonyms=synonyms, **({"include_documentation": documentation} if version >= 3 else {})
    )
    return list((await node.ask(request, version, access=access)).results)


async def alter(
    node: ClusterNode,
    name: str,
    *operations: tuple[str, int, str | None],
    kind: int = TOPIC,
    version: int = 1,
    validate_only: bool = False,
    access: Access = FULL_ACCESS,
) -> tuple[int, str | None]:
    configs = [_Altered.AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in operations]
    resource = _Altered(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (one,) = (await node.ask(request, version, access=access)).responses
    assert (one.resource_type, one.resource_name) == (kind, name)
    return one.error_code, one.error_message


@pytest.mark.parametrize("version", range(1, 5))
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


async def test_only_what_is_asked_for() -> None:
    async with cluster_node() as node:
        await node.catalog.create_topic("orders", 1)
        (found,) = await describe(
            node, (TOPIC, "orders", ["segment.bytes", "nonsense"]), synonyms=False, documentation=True
        )
        (one,) = found.configs
        assert (one.name, one.synonyms, one.documentation) == (
            "segment.bytes",
            [],
            "size of a segment file",
        )
        (everything,) = await describe(node, (TOPIC, "orders", []))
        assert len(everything.configs) == 37
        assert await describe(node) == []


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "absent", 3, ""),
        (TOPIC, "a/b", 17, "Topic name is invalid: 'a/b' contains one or more characters"),
        (TOPIC, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "7", 42, "Unexpected broker id, expected 1 or empty string, but received 7"),
        (BROKER, "x", 42, "Broker id must be an integer, but it is: x"),
        (8, "1", 42, "The server has no configs of BROKER_LOGGER."),
        (32, "group", 42, "The server has no configs of GROUP."),
        (0, "1", 42, "This most likely occurs because of a request being malformed"),
        (3, "1", 42, "This most likely occurs because of a request being malformed"),
    ],
)
async def test_what_has_no_configs(kind: int, name: str, code: int, message: str) -> None:
    async with cluster_node() as node:
        (found,) = await describe(node, (kind, name, None))
        assert (found.error_code, found.configs, found.resource_name) == (code, [], name)
        assert found.error_message.startswith(message)


async def test_who_may_see_configs() -> None:
    async with cluster_node() as node:
        await node.catalog.create_topic("orders", 1)
        asked = ((TOPIC, "orders", None), (TOPIC, "absent", None), (BROKER, "1", None))
        found = await describe(node, *asked, access=denying(AclOperation.DESCRIBE_CONFIGS))
        assert [(each.error_code, each.error_message, each.configs) for each in found] == [
            (29, "Topic authorization failed.", []),
            (29, "Topic authorization failed.", []),
            (31, "Cluster authorization failed.", []),
        ]


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


async def test_lists_are_appended_to_and_subtracted_from() -> None:
    """KIP-339; what is not set starts from the default."""
    async with cluster_node() as node:
        await node.catalog.create_topic("orders", 1)
        for how, value, expected in (
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
            (SUBTRACT, "delete,compact", ""),
        ):
            assert await alter(node, "orders", ("cleanup.policy", how, value)) == (0, None)
            topic = present(node.catalog.topic("orders"))
            assert topic.configs["cleanup.policy"] == expected


@pytest.mark.parametrize(
    ("operations", "code", "message"),
    [
        ([("retention.ms", APPEND, "1")], 40, "Can't APPEND to key retention.ms because its type is not LIST."),
        ([("retention.ms", SUBTRACT, "1")], 40, "Can't SUBTRACT to key retention.ms because its type is not LIST."),
        ([("retention.ms", 9, "1")], -1, None),
        ([("retention.ms", SET, None)], 42, "Null value not supported for : retention.ms"),
        ([("cleanup.policy", APPEND, None)], 42, "Null value not supported for : cleanup.policy"),
        ([("nonsense", SET, "1")], 40, "Unknown topic config name: nonsense"),
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
        (TOPIC, "a/b", 17, "Topic name is invalid: 'a/b' contains one or more characters other than"),
        (TOPIC, "", 42, "Default topic resources are not allowed."),
        (BROKER, "1", 42, "Cannot update these configs dynamically: [retention.ms]"),
        (BROKER, "9", 42, "Unexpected broker id, expected 1, but received 9"),
        (BROKER, "x", 42, "Node id must be an integer, but it is: x"),
        (8, "1", 42, "The server has no configs of BROKER_LOGGER."),
        (3, "x", 42, "Unknown resource type 3"),
    ],
)
async def test_what_cannot_be_altered(kind: int, name: str, code: int, message: str) -> None:
    async with cluster_node() as node:
        found_code, found = await alter(node, name, ("retention.ms", SET, "1"), kind=kind)
        assert found_code == code
        assert (found or "").startswith(message)


async def test_verification_is_altered_while_the_node_runs() -> None:
    """KIP-226: the broker's own value counts, then the default of all; checks alone change nothing."""
    name = "transaction.partition.verification.enable"
    async with cluster_node({name: "true"}) as node:
        await node.catalog.create_topic("orders", 1)
        log = present(node.catalog.log("orders", 0))
        told: list[bool] = []
        node.catalog.on_properties.append(
            lambda properties: told.append(properties.transaction_partition_verification_enable)
        )
        assert await alter(node, "", (name, SET, "false"), kind=BROKER, validate_only=True) == (0, None)
        assert told == []
        for broker, how, value, expected in (
            ("", SET, "false", False),
            ("1", SET, " TRUE ", True),
            ("1", DELETE, None, False),
            ("", DELETE, None, True),
        ):
            assert await alter(node, broker, (name, how, value), kind=BROKER) == (0, None)
            assert (told[-1], log.settings.verification) == (expected, expected)
            (found,) = await describe(node, (BROKER, "1", [name]))
            (config,) = found.configs
            assert (config.value, config.read_only) == (str(expected).lower(), False)
            assert [each.source for each in config.synonyms][-2:] == [4, 5]
        for how, value, code in ((SET, "maybe", 42), (APPEND, "true", 40), (SUBTRACT, "true", 40), (SET, None, 42)):
            assert (await alter(node, "1", (name, how, value), kind=BROKER))[0] == code
        assert (await alter(node, "1", (name, SET, "false"), ("node.id", SET, "1"), kind=BROKER))[0] == 42
        assert len(told) == 4


async def test_who_may_alter() -> None:
    async with cluster_node() as node:
        topic = await node.catalog.create_topic("orders", 1)
        access = denying(AclOperation.ALTER_CONFIGS)
        assert (await alter(node, "orders", ("retention.ms", SET, "1"), access=access))[0] == 29
        assert (await alter(node, "1", ("node.id", SET, "1"), kind=BROKER, access=access))[0] == 31
        assert node.catalog.topic("orders") == topic
        other = denying(AclOperation.ALTER_CONFIGS, resource=Resource.CLUSTER)
        assert (await alter(node, "orders", ("retention.ms", SET, "1"), access=other))[0] == 0


async def test_a_resource_given_twice_is_altered_by_neither() -> None:
    async with cluster_node() as node:
        topic = await node.catalog.create_topic("orders", 1)
        config = _Altered.AlterableConfig(name="retention.ms", config_operation=SET, value="1")
        resource = _Altered(resource_type=TOPIC, resource_name="orders", configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource, resource], validate_only=False)
        responses = (await node.ask(request, 1)).responses
        assert [each.error_code for each in responses] == [42, 42]
        assert node.catalog.topic("orders") == topic
