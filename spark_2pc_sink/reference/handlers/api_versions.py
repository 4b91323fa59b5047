"""ApiVersions: what the server speaks, and the features that the cluster has finalized (KIP-584, KIP-890).

Java clients decide by the finalized level of ``transaction.version`` whether they speak transactions of version 2, so
the epoch of the features grows with every start of the node and every change of the level: a client believes only a
newer one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.metadata.features import SUPPORTED, finalized_levels
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.protocol.newer_messages import ApiVersionsResponse

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
    def cluster_id(self) -> str:
        """The cluster's id."""

    @property
    def node_id(self) -> int:
        """The node's id."""

    @property
    def transaction_version(self) -> int:
        """The finalized level."""

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
        """The family's one API."""
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
            return ApiVersionsResponse(error_code=refusal, api_keys=[])
        return ApiVersionsResponse(
            error_code=Code.NONE,
            api_keys=[
                ApiVersionsResponse.ApiVersion(
                    api_key=api, min_version=_SHOWN_FROM.get(api, it.version_min), max_version=it.version_max
                )
                for api, it in sorted(self._offered.items())
            ],
            throttle_time_ms=0,
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
            zk_migration_ready=False,
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
