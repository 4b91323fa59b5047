"""Features of the cluster: which levels the server has, and which change of a level is refused (KIP-584, KIP-1022).

Only ``transaction.version`` (KIP-890) can be changed here. The texts are those of Kafka's ``FeatureControlManager``,
whose one answer stands for all features of a request.

UpdateFeatures: another level of ``transaction.version`` while the node runs, as ``kafka-features.sh`` asks for it.

Kafka's broker passes the request to the controller (KIP-590); here both are one node.

ApiVersions: what the server speaks, and the features that the cluster has finalized (KIP-584, KIP-890).

Java clients decide by the finalized level of ``transaction.version`` whether they speak transactions of version 2, so
the epoch of the features grows with every start of the node and every change of the level: a client believes only a
newer one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from kafka.protocol.admin import UpdateFeaturesResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Operation, Resource
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.protocol.codec import ApiVersionsResponse

TRANSACTION_VERSION: Final = "transaction.version"
METADATA_VERSION: Final = "metadata.version"
#: ``metadata.version`` of Kafka 4.4.0.
_METADATA_LEVEL: Final = 33


class Feature(NamedTuple):
    name: str
    level_min: int
    level_max: int


#: As Kafka 4.4.0 answers, without the features of APIs that the server does not have.
SUPPORTED: Final = (
    Feature("kraft.version", 0, 1),
    Feature(METADATA_VERSION, 7, _METADATA_LEVEL),
    Feature(TRANSACTION_VERSION, 0, 2),
)


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class Update(NamedTuple):
    """One feature of a request. An upgrade type that is none of `UpgradeType` is refused."""

    name: str
    level: int
    upgrade_type: int


def finalized_levels(transaction_version: int) -> dict[str, int]:
    return {"kraft.version": 0, METADATA_VERSION: _METADATA_LEVEL, TRANSACTION_VERSION: transaction_version}


def updates_fault(
    updates: Iterable[Update], finalized: Mapping[str, int], *, node_id: int, keeps_prepared: bool
) -> str | None:
    """What is wrong with a request, which is carried out as a whole or not at all; None when nothing is.

    Args:
        finalized: the levels as they are.
        node_id: of the node, which is its own controller.
        keeps_prepared: whether ``transaction.keep.prepared.enable`` is set.
    """
    for update in updates:
        fault = _support_fault(update, f"Local controller {node_id}") or _direction_fault(
            update, finalized[update.name]
        )
        if fault is None and keeps_prepared:
            fault = _keeping_fault(update)
        if fault is not None:
            return (
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.level} for feature {update.name}. {fault}"
            )
    return None


def _support_fault(update: Update, controller: str) -> str | None:
    if update.upgrade_type not in UpgradeType.__members__.values():
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    known = next((feature for feature in SUPPORTED if feature.name == update.name), None)
    if known is None:
        missing = f"{controller} does not support this feature."
        return missing if update.level else f"Feature {update.name} not found."
    if known.level_min <= update.level <= known.level_max:
        return None
    return f"{controller} only supports versions {known.level_min}-{known.level_max}"


def _direction_fault(update: Update, now: int) -> str | None:
    """Whether the level may go from where it is to where it shall be."""
    if update.level < now and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > now and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    if update.level != now and update.name != TRANSACTION_VERSION:
        return f"The reference coordinator has it at {now} only."
    return None


def _keeping_fault(update: Update) -> str | None:
    """A setting must not lose its effect while the node runs, as it is refused where it has none at a start."""
    if update.name != TRANSACTION_VERSION or update.level >= EPOCH_BUMP_VERSION:
        return None
    return (
        f"transaction.keep.prepared.enable needs level {EPOCH_BUMP_VERSION}: "
        "restart the node without that setting first."
    )


#: First version with an upgrade type. Kafka does not look at what version 0 had in its place.
_UPGRADE_TYPE_VERSION: Final = 1
#: First version without a result for each feature.
_ONE_RESULT_VERSION: Final = 2
_Result: Final = UpdateFeaturesResponse.UpdatableFeatureResult


class FeatureHandlers:
    """The handler of UpdateFeatures."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def handlers(self) -> Handlers:
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
        error_code=code,
        error_message=message,
        results=[_Result(feature=name, error_message=Code.NONE.name) for name in features or []],
    )


_VERSION_MAX: Final = 5
#: First version that says whom the client believes to be talking to (KIP-1242).
_WHOM_VERSION: Final = 5
_NO_NODE: Final = -1
#: First version with the client's name, whose form is checked, and with features.
_SOFTWARE_NAME_VERSION: Final = 3
#: First version whose clients take a feature that begins at level 0 (KIP-1022).
_LEVEL_ZERO_VERSION: Final = 4
#: ``ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN``.
_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
#: Versions below are refused, and named all the same: older librdkafkas take their absence for a broker without
#: record batches of version 2 (KAFKA-18659).
_SHOWN_FROM: Final = {Api.PRODUCE: 0}


class Cluster(Protocol):
    """Who the node is, and where the level of ``transaction.version`` is found; the catalog."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> int: ...

    @property
    def transaction_version(self) -> int: ...

    @property
    def features_epoch(self) -> int:
        """Counts up with every start of the node, and every change of the level."""


class ApiVersionsHandlers:
    """The handler of ApiVersions v0 to v5.

    Args:
        others: the handlers of everything else.
        cluster: has the finalized level, which changes while the node runs.
    """

    def __init__(self, others: Mapping[Api, Handler], cluster: Cluster) -> None:
        self._offered = {**others, **self.handlers()}
        self._cluster = cluster

    def handlers(self) -> Handlers:
        return {Api.API_VERSIONS: Handler(0, _VERSION_MAX, self.api_versions)}

    async def api_versions(self, context: RequestContext, request: Any) -> Any:
        """Every API with the versions that are offered.

        INVALID_REQUEST for a client without a proper name; REBOOTSTRAP_REQUIRED for one that takes this node for
        another, so that it forgets the addresses that it has.
        """
        refusal = Code.NONE
        if context.version >= _SOFTWARE_NAME_VERSION and not _named(request):
            refusal = Code.INVALID_REQUEST
        elif context.version >= _WHOM_VERSION:
            refusal = self._whom_refusal(request.cluster_id, request.node_id)
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
                for name, lowest, highest in SUPPORTED
                if lowest > 0 or context.version >= _LEVEL_ZERO_VERSION
            ],
            finalized_features_epoch=self._cluster.features_epoch,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in finalized_levels(self._cluster.transaction_version).items()
                if level > 0
            ],
        )

    def _whom_refusal(self, cluster_id: str | None, node_id: int) -> Code:
        if (cluster_id is None) != (node_id == _NO_NODE):
            return Code.INVALID_REQUEST
        if cluster_id is None or (cluster_id, node_id) == (self._cluster.cluster_id, self._cluster.node_id):
            return Code.NONE
        return Code.REBOOTSTRAP_REQUIRED


def _named(request: Any) -> bool:
    texts = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE_NAME.fullmatch(text) for text in texts)
