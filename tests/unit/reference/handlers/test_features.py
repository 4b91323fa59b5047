"""UpdateFeatures where this server differs from Kafka 4.4.0; `cases_features` has the rest."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest

from spark_2pc_sink.codes import Code
from tests.unit.reference.batches import message
from tests.unit.reference.cluster_node import ClusterNode, cluster_node

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
        assert (node.catalog.transaction_version, node.catalog.features_epoch) == (2, 0)


async def test_a_node_that_keeps_prepared_transactions_from_level_3_on_has_that_level() -> None:
    """KIP-939 as krafka, Dekaf and crabka read it."""
    async with cluster_node({"transaction.keep.prepared.version": "3"}) as node:
        assert (await update(node, (TV, 3, UPGRADE))).error_code == 0
        assert node.catalog.transaction_version == 3
        above = await update(node, (TV, 4, UPGRADE))
        assert above.error_message == f"{_FAILED} 4 for feature {TV}. Local controller 1 only supports versions 0-3"
    levels = {"transaction.version": "3", "transaction.keep.prepared.version": "3"}
    async with cluster_node({**KEEPING, **levels}) as node:
        below = await update(node, (TV, 2, SAFE))
        assert "transaction.keep.prepared.enable needs level 3" in below.error_message
