"""UpdateFeatures: another level of ``transaction.version`` while the node runs, as ``kafka-features.sh`` asks for it.

Kafka's broker passes the request to the controller (KIP-590); here both are one node.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.admin import UpdateFeaturesResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Operation, Resource
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.features import (
    TRANSACTION_VERSION,
    Update,
    UpgradeType,
    finalized_levels,
    updates_fault,
)
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext

#: First version with an upgrade type. Kafka does not look at what version 0 had in its place.
_UPGRADE_TYPE_VERSION: Final = 1
#: First version without a result for each feature.
_ONE_RESULT_VERSION: Final = 2
_Result: Final = UpdateFeaturesResponse.UpdatableFeatureResult


class FeatureHandlers:
    """The handler of UpdateFeatures.

    Args:
        catalog: has the levels.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def handlers(self) -> Handlers:
        """The versions are those of Kafka 4.4.0."""
        return {Api.UPDATE_FEATURES: Handler(0, 2, self.update_features)}

    async def update_features(self, context: RequestContext, request: Any) -> Any:
        """Change levels, all or none; a level that is changed is durable when this returns."""
        if not context.access.allows(Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME):
            return _answer(Code.CLUSTER_AUTHORIZATION_FAILED, "Request needs ALTER permission.")
        updates = _updates(request, context.version)
        fault = updates_fault(
            updates.values(),
            finalized_levels(self._catalog.transaction_version),
            node_id=self._catalog.node_id,
            keeps_prepared=self._catalog.properties.transaction_keep_prepared_enable,
        )
        if fault is not None:
            return _answer(Code.INVALID_UPDATE_VERSION, fault)
        wanted = updates.get(TRANSACTION_VERSION)
        if wanted is not None and not (context.version >= _UPGRADE_TYPE_VERSION and request.validate_only):
            await self._catalog.set_transaction_version(wanted.level)
        named = [each.feature for each in request.feature_updates] if context.version < _ONE_RESULT_VERSION else []
        return _answer(Code.NONE, None, named)


def _updates(request: Any, version: int) -> dict[str, Update]:
    """By feature; of two for one feature the later counts, as in Kafka."""
    typed = version >= _UPGRADE_TYPE_VERSION
    return {
        each.feature: Update(
            each.feature, each.max_version_level, each.upgrade_type if typed else int(UpgradeType.UPGRADE)
        )
        for each in request.feature_updates
    }


def _answer(code: Code, message: str | None, features: list[str] | None = None) -> Any:
    return UpdateFeaturesResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=message,
        results=[_Result(feature=name, error_code=Code.NONE, error_message=Code.NONE.name) for name in features or []],
    )
