"""UpdateFeatures answers as Kafka 4.4.0 does; the texts are its replies, with its own node id in them."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access, AclOperation, Resource
from tests.unit.reference.cluster_node import ClusterNode, cluster_node
from tests.unit.reference.coordinator.access import denying

TV = "transaction.version"
UNKNOWN, UPGRADE, SAFE, UNSAFE = 0, 1, 2, 3
_FAILED = "The update failed for all features since the following feature had an error: Invalid update version"
_DOWN = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)
KEEPING = {"transaction.keep.prepared.enable": "true", "unstable.api.versions.enable": "true"}


async def update(
    node: ClusterNode,
    *updates: tuple[str, int, int],
    version: int = 2,
    validate_only: bool = False,
    access: Access = FULL_ACCESS,
) -> Any:
    make = UpdateFeaturesRequest.FeatureUpdateKey
    typed = version >= 1
    request = UpdateFeaturesRequest(
        timeout_ms=60_000,
        feature_updates=[
            make(feature=name, max_version_level=level, **({"upgrade_type": kind} if typed else {}))
            for name, level, kind in updates
        ],
        **({"validate_only": validate_only} if typed else {}),
    )
    return await node.ask(request, version, access=access)


@pytest.mark.parametrize(
    "updates",
    [
        [],
        [(TV, 2, UPGRADE)],
        [(TV, 2, SAFE)],
        [(TV, 2, UNSAFE)],
        [("metadata.version", 33, UPGRADE)],
        [(TV, 1, SAFE), (TV, 2, UPGRADE)],
    ],
)
async def test_what_changes_nothing_is_granted(updates: list[tuple[str, int, int]]) -> None:
    async with cluster_node() as node:
        for version in (0, 1, 2):
            answer = await update(node, *updates, version=version)
            assert (answer.error_code, answer.error_message) == (0, None)
            results = [(each.feature, each.error_code, each.error_message) for each in answer.results]
            assert results == [(name, 0, "NONE") for name, _, _ in updates if version < 2]
        assert node.catalog.features_epoch == 0


@pytest.mark.parametrize(
    ("name", "level", "kind", "text"),
    [
        (TV, 3, UPGRADE, "Local controller 1 only supports versions 0-2"),
        (TV, 3, SAFE, "Local controller 1 only supports versions 0-2"),
        (TV, -1, SAFE, "A feature version cannot be less than 0."),
        (TV, 1, UPGRADE, _DOWN),
        (TV, 2, UNKNOWN, "The controller does not support the given upgrade type."),
        (TV, 2, 4, "The controller does not support the given upgrade type."),
        ("nosuch", 1, UPGRADE, "Local controller 1 does not support this feature."),
        ("nosuch", 0, SAFE, "Feature nosuch not found."),
        ("metadata.version", 1, SAFE, "Local controller 1 only supports versions 7-33"),
        ("metadata.version", 32, UPGRADE, _DOWN),
        # Kafka would do the next two; here they are the one level that the server has.
        ("metadata.version", 32, SAFE, "The reference coordinator has it at 33 only."),
        ("kraft.version", 1, UPGRADE, "The reference coordinator has it at 0 only."),
    ],
)
async def test_what_cannot_be_is_refused(name: str, level: int, kind: int, text: str) -> None:
    async with cluster_node() as node:
        for version in (1, 2):
            answer = await update(node, (TV, 1, SAFE), (name, level, kind), version=version)
            assert answer.error_code == Code.INVALID_UPDATE_VERSION
            assert answer.error_message == f"{_FAILED} {level} for feature {name}. {text}"
            assert not answer.results
        assert node.catalog.transaction_version == 2


async def test_a_node_that_keeps_prepared_transactions_from_level_3_on_has_that_level() -> None:
    """KIP-939 as krafka, Dekaf and crabka read it."""
    async with cluster_node({"transaction.keep.prepared.version": "3"}) as node:
        assert (await update(node, (TV, 3, UPGRADE))).error_code == 0
        assert node.catalog.transaction_version == 3
        above = await update(node, (TV, 4, UPGRADE))
        assert above.error_message == f"{_FAILED} 4 for feature {TV}. Local controller 1 only supports versions 0-3"
    keeping = {"transaction.keep.prepared.enable": "true", "unstable.api.versions.enable": "true"}
    levels = {"transaction.version": "3", "transaction.keep.prepared.version": "3"}
    async with cluster_node({**keeping, **levels}) as node:
        below = await update(node, (TV, 2, SAFE))
        assert "transaction.keep.prepared.enable needs level 3" in below.error_message


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
async def test_up_and_down(kind: int) -> None:
    async with cluster_node() as node:
        for level, how in ((0, kind), (1, UPGRADE), (2, UPGRADE), (1, kind)):
            checked = await update(node, (TV, level, how), validate_only=True)
            assert (checked.error_code, node.catalog.transaction_version == level) == (0, False)
            assert (await update(node, (TV, level, how))).error_code == 0
            assert node.catalog.transaction_version == level
        assert node.catalog.features_epoch == 4
        upwards = await update(node, (TV, 2, kind))
        assert upwards.error_message == f"{_FAILED} 2 for feature {TV}. Can't downgrade to a newer version."


async def test_version_0_only_upgrades() -> None:
    """Kafka does not look at allowDowngrade, which version 0 has in place of a type."""
    async with cluster_node({"transaction.version": "1"}) as node:
        assert (await update(node, (TV, 2, UPGRADE), version=0)).error_code == 0
        assert (await update(node, (TV, 1, SAFE), version=0)).error_code == Code.INVALID_UPDATE_VERSION
        assert node.catalog.transaction_version == 2


async def test_altering_the_cluster_is_a_right() -> None:
    async with cluster_node() as node:
        denied = await update(node, (TV, 1, SAFE), access=denying(AclOperation.ALTER, resource=Resource.CLUSTER))
        assert denied.error_message == "Request needs ALTER permission."
        assert (denied.error_code, node.catalog.transaction_version) == (Code.CLUSTER_AUTHORIZATION_FAILED, 2)


@pytest.mark.parametrize("level", [0, 1])
async def test_keeping_does_not_lose_its_level(level: int) -> None:
    async with cluster_node(KEEPING) as node:
        refused = await update(node, (TV, level, SAFE))
        assert refused.error_code == Code.INVALID_UPDATE_VERSION
        assert "transaction.keep.prepared.enable needs level 2: restart" in refused.error_message
        assert (await update(node, (TV, 2, UPGRADE))).error_code == 0
        assert node.catalog.transaction_version == 2
