"""CreateAcls, DescribeAcls, DeleteAcls; codes and texts are those that Apache Kafka 4.4.0 answers."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.config.properties import STANDARD_AUTHORIZER, BrokerProperties
from spark_2pc_sink.reference.coordinator.events import AclOperation, Resource
from spark_2pc_sink.reference.handlers.acls import AclHandlers
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol import RequestContext, handlers_of
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.batches import message
from tests.unit.reference.coordinator.access import AccessBy
from tests.unit.reference.node import exchange

NO_COLON = (
    "Could not parse principal from `a` (no colon is present separating the principal type from the principal name)"
)


async def secured() -> Catalog:
    return await Catalog.open(None, BrokerProperties.from_mapping({"authorizer.class.name": STANDARD_AUTHORIZER}))


async def ask(catalog: Catalog, request: Any, *, version: int = 3, may: AclOperation | None = None) -> Any:
    """Through the encoding of the request and of the answer."""
    handler = handlers_of(AclHandlers(catalog))[Api(request.API_KEY)]
    assert (handler.version_min, handler.version_max) == (1, 3)
    needed = AclOperation.DESCRIBE if isinstance(request, DescribeAclsRequest) else AclOperation.ALTER
    allowed = (may or needed, Resource.CLUSTER, "kafka-cluster")
    context = RequestContext(version=version, access=AccessBy(lambda *asked_for: asked_for == allowed))
    return await exchange(handler.function, request, version, context=context)


def creation(**fields: Any) -> Any:
    given = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
    return {**given, "operation": 3, "permission_type": 3, **fields}


async def create(catalog: Catalog, *creations: Any, **options: Any) -> list[tuple[int, str | None]]:
    answer = await ask(catalog, message(CreateAclsRequest, creations=list(creations)), **options)
    return [(result.error_code, result.error_message) for result in answer.results]


def filter_fields(**fields: Any) -> dict[str, Any]:
    everything: dict[str, Any] = dict.fromkeys(
        ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1
    )
    everything |= dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    return everything | fields


async def describe(catalog: Catalog, *, options: dict[str, Any] | None = None, **fields: Any) -> Any:
    return await ask(catalog, DescribeAclsRequest(**filter_fields(**fields)), **(options or {}))


async def delete(catalog: Catalog, *filters: dict[str, Any], **options: Any) -> Any:
    request = message(DeleteAclsRequest, filters=[filter_fields(**each) for each in filters])
    answer = await ask(catalog, request, **options)
    return answer.filter_results


async def filled() -> Catalog:
    catalog = await secured()
    await create(
        catalog,
        creation(),
        creation(principal="User:b", host="h"),
        creation(resource_pattern_type=4, resource_name="p"),
        creation(resource_type=5, operation=15),
    )
    return catalog


@pytest.mark.parametrize("version", [1, 3])
async def test_acls_are_created_described_by_resource_and_deleted(version: int) -> None:
    catalog = await secured()
    assert await create(catalog, creation(), creation(host="h"), version=version) == [(0, ""), (0, "")]
    assert await create(catalog, creation(), version=version) == [(0, "")]
    answer = await describe(catalog, options={"version": version})
    assert (answer.error_code, answer.error_message, len(answer.resources)) == (0, "", 1)
    assert [(each.host, each.operation, each.permission_type) for each in answer.resources[0].acls] == [
        ("*", 3, 3),
        ("h", 3, 3),
    ]
    (result,) = await delete(catalog, {"host_filter": "h"}, version=version)
    assert (result.error_code, result.error_message) == (0, None)
    (gone,) = result.matching_acls
    assert (gone.resource_type, gone.resource_name, gone.pattern_type, gone.host) == (2, "t", 3, "h")
    (left,) = (await describe(catalog)).resources
    assert (left.resource_type, left.pattern_type, left.resource_name) == (2, 3, "t")
    assert [(each.principal, each.host) for each in left.acls] == [("User:a", "*")]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"resource_type": 4}, 42, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_name": ""}, 42, "Invalid empty resource name"),
        ({"resource_pattern_type": 2}, -1, None),
        ({"operation": 99}, 42, "Invalid operation UNKNOWN"),
        ({"permission_type": 9}, 42, "Invalid permissionType UNKNOWN"),
        ({"host": ""}, 42, "Host pattern cannot be null or empty"),
        ({"principal": "a"}, 42, NO_COLON),
    ],
)
async def test_a_rule_that_makes_no_sense_is_refused_and_the_others_are_added(
    fields: dict[str, Any], code: int, text: str | None
) -> None:
    catalog = await secured()
    assert await create(catalog, creation(**fields), creation(resource_name="good")) == [(code, text), (0, "")]
    assert [each.name for each in catalog.state.acls] == ["good"]


async def test_the_code_unknown_ends_the_connection() -> None:
    with pytest.raises(RemoteProtocolError, match="UNKNOWN"):
        await create(await secured(), creation(resource_type=0))
    with pytest.raises(RemoteProtocolError):
        await describe(await filled(), operation=0)


async def test_without_an_authorizer_there_are_no_acls() -> None:
    disabled = (54, "No Authorizer is configured.")
    open_to_all = await Catalog.open(None, BrokerProperties())
    assert await create(open_to_all, creation(), creation()) == [disabled, disabled]
    answer = await describe(open_to_all)
    assert (answer.error_code, answer.error_message, list(answer.resources)) == (*disabled, [])
    assert [(each.error_code, each.error_message) for each in await delete(open_to_all, {})] == [disabled]


async def test_the_cluster_s_acls_decide_who_may_see_and_change_them() -> None:
    catalog = await filled()
    denied = (31, "Cluster authorization failed.")
    assert await create(catalog, creation(resource_name="new"), may=AclOperation.DESCRIBE) == [denied]
    answer = await describe(catalog, options={"may": AclOperation.ALTER})
    assert (answer.error_code, answer.error_message, list(answer.resources)) == (*denied, [])
    assert [(each.error_code, each.error_message) for each in await delete(catalog, {}, may=AclOperation.DESCRIBE)] == [
        denied
    ]
    assert len(catalog.state.acls) == 4
