"""ApiVersions: the supported APIs; UpdateFeatures: the level of ``transaction.version`` (KIP-584, KIP-890).

Java clients decide by the finalized level of ``transaction.version`` whether they use transactions of version 2, so
the epoch of the features grows with every start of the node and every change of the level: a client believes only a
newer one. Only that level can be changed here, as ``kafka-features.sh`` requests it. The messages are those of
``FeatureControlManager``, whose single answer covers all features of a request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from kafka.protocol.admin import UpdateFeaturesResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, AclOperation, Resource
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol.api import Handler, RequestContext, handlers_of, serves
from spark_2pc_sink.reference.protocol.codec import ApiVersionsResponse
from spark_2pc_sink.wire.api_versions import Api

TRANSACTION_VERSION: Final = "transaction.version"
METADATA_VERSION: Final = "metadata.version"
#: ``metadata.version`` of Kafka 4.4.0.
_METADATA_LEVEL: Final = 33
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_NEEDS_TYPE: Final = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)
# First versions of an API in which ...
_UPGRADE_TYPE_VERSION: Final = 1  # UpdateFeatures has an upgrade type; Kafka ignores version 0's field in its place
_ONE_RESULT_VERSION: Final = 2  # UpdateFeatures is answered without a result for each feature
_SOFTWARE_NAME_VERSION: Final = 3  # ApiVersions has the client's name, whose form is checked, and features
_LEVEL_ZERO_VERSION: Final = 4  # clients of ApiVersions accept a feature that begins at level 0 (KIP-1022)
_EXPECTED_NODE_VERSION: Final = 5  # ApiVersions has the client's expected cluster and node (KIP-1242)
_NO_NODE: Final = -1
#: ``ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN``.
_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
#: Lower versions are listed but refused: older librdkafkas take their absence for a broker without
#: record batches of version 2 (KAFKA-18659).
_SHOWN_FROM: Final = {Api.PRODUCE: 0}


def supported_levels(properties: BrokerProperties) -> dict[str, tuple[int, int]]:
    """The lowest and highest levels; as in Kafka 4.4.0, except for features of APIs that the server lacks."""
    highest = properties.transaction_keep_prepared_version
    return {"kraft.version": (0, 1), METADATA_VERSION: (7, _METADATA_LEVEL), TRANSACTION_VERSION: (0, highest)}


def finalized_levels(transaction_version: int) -> dict[str, int]:
    return {"kraft.version": 0, METADATA_VERSION: _METADATA_LEVEL, TRANSACTION_VERSION: transaction_version}


class FeatureHandlers:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @serves(Api.UPDATE_FEATURES, 0, 2)
    async def update_features(self, context: RequestContext, request: Any) -> Any:
        """Change levels, all or none; changes are durable when this returns."""
        if not context.access.allows(AclOperation.ALTER, Resource.CLUSTER, CLUSTER_NAME):
            code, text = Code.CLUSTER_AUTHORIZATION_FAILED, "Request needs ALTER permission."
            return UpdateFeaturesResponse(error_code=code, error_message=text)
        typed = context.version >= _UPGRADE_TYPE_VERSION
        # If a feature is updated twice, the later one wins, as in Kafka.
        updates = {each.feature: each for each in request.feature_updates}
        for name, each in updates.items():
            fault = self._fault(name, each.max_version_level, each.upgrade_type if typed else _UPGRADE)
            if fault is not None:
                text = (
                    "The update failed for all features since the following feature had an error: "
                    f"Invalid update version {each.max_version_level} for feature {name}. {fault}"
                )
                return UpdateFeaturesResponse(error_code=Code.INVALID_UPDATE_VERSION, error_message=text)
        wanted = updates.get(TRANSACTION_VERSION)
        if wanted is not None and not (typed and request.validate_only):
            await self._catalog.set_transaction_version(wanted.max_version_level)
        named = request.feature_updates if context.version < _ONE_RESULT_VERSION else ()
        result = UpdateFeaturesResponse.UpdatableFeatureResult
        results = [result(feature=each.feature, error_message=Code.NONE.name) for each in named]
        return UpdateFeaturesResponse(error_message=None, results=results)

    def _fault(self, name: str, level: int, upgrade_type: int) -> str | None:
        now = finalized_levels(self._catalog.transaction_version).get(name, 0)
        controller = f"Local controller {self._catalog.node_id}"
        properties = self._catalog.properties
        supported = supported_levels(properties)
        lowest, highest = supported.get(name, (0, 0))
        # A setting must not lose its effect while the node runs; without effect it is refused at the start too.
        keeps = properties.transaction_keep_prepared_enable and name == TRANSACTION_VERSION and level < highest
        keeping = f"transaction.keep.prepared.enable needs level {highest}"
        known_type = upgrade_type in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}
        faults = (
            (not known_type, "The controller does not support the given upgrade type."),
            (level < 0, "A feature version cannot be less than 0."),
            (name not in supported and level, f"{controller} does not support this feature."),
            (name not in supported, f"Feature {name} not found."),
            (not lowest <= level <= highest, f"{controller} only supports versions {lowest}-{highest}"),
            (level < now and upgrade_type == _UPGRADE, _NEEDS_TYPE),
            (level > now and upgrade_type != _UPGRADE, "Can't downgrade to a newer version."),
            (level != now and name != TRANSACTION_VERSION, f"The reference coordinator supports only {now}."),
            (keeps, f"{keeping}: restart the node without that setting first."),
        )
        return next((text for found, text in faults if found), None)


class ApiVersionsHandlers:
    def __init__(self, others: Mapping[Api, Handler], catalog: Catalog) -> None:
        self._offered = {**others, **handlers_of(self)}
        self._catalog = catalog

    @serves(Api.API_VERSIONS, 0, 5)
    async def api_versions(self, context: RequestContext, request: Any) -> Any:
        """Every API with its offered versions.

        INVALID_REQUEST for a client without a valid name; REBOOTSTRAP_REQUIRED for one that expects another node,
        so that it drops its known addresses.
        """
        refusal = self._refusal(context.version, request)
        if refusal is not Code.NONE:
            return ApiVersionsResponse(error_code=refusal)
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(
                    api_key=api, min_version=_SHOWN_FROM.get(api, it.version_min), max_version=it.version_max
                )
                for api, it in sorted(self._offered.items())
            ],
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
                for name, (lowest, highest) in supported_levels(self._catalog.properties).items()
                if lowest > 0 or context.version >= _LEVEL_ZERO_VERSION
            ],
            finalized_features_epoch=self._catalog.features_epoch,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in finalized_levels(self._catalog.transaction_version).items()
                if level > 0
            ],
        )

    def _refusal(self, version: int, request: Any) -> Code:
        if version >= _SOFTWARE_NAME_VERSION:
            texts = (request.client_software_name, request.client_software_version)
            if not all(_SOFTWARE_NAME.fullmatch(text) for text in texts):
                return Code.INVALID_REQUEST
        if version >= _EXPECTED_NODE_VERSION:
            cluster_id, node_id = request.cluster_id, request.node_id
            if (cluster_id is None) != (node_id == _NO_NODE):
                return Code.INVALID_REQUEST
            if cluster_id is not None and (cluster_id, node_id) != (self._catalog.cluster_id, self._catalog.node_id):
                return Code.REBOOTSTRAP_REQUIRED
        return Code.NONE
