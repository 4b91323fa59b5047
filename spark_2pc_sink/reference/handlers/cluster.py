"""What the cluster is: Metadata, FindCoordinator, DescribeCluster, ApiVersions, and UpdateFeatures (KIP-584, KIP-890).

There is one node, and it leads everything.

Java clients decide by the finalized level of ``transaction.version`` whether they use transactions of version 2, so
the epoch of the features grows with every start of the node and every change of the level: a client believes only a
newer one. Only that level can be changed here, as ``kafka-features.sh`` requests it. The messages are those of
``FeatureControlManager``, whose single answer covers all features of a request.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kafka.protocol.admin import DescribeClusterResponse, UpdateFeaturesResponse
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Access, AclOperation, Resource
from spark_2pc_sink.reference.internal_topics import INTERNAL_TOPICS
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import Topic, name_fault, random_id, unified
from spark_2pc_sink.reference.protocol import ApiVersionsResponse, Handler, RequestContext, handlers_of, serves
from spark_2pc_sink.wire.api_versions import Api

_log = logging.getLogger(__name__)

_Topic: Final = MetadataResponse.MetadataResponseTopic
_Partition: Final = _Topic.MetadataResponsePartition
_Coordinator: Final = FindCoordinatorResponse.Coordinator

# First versions of an API in which ...
_METADATA_IDS_VERSION: Final = 12  # Metadata may identify topics by id
_COORDINATORS_VERSION: Final = 4  # FindCoordinator has several keys and share groups
_UPGRADE_TYPE_VERSION: Final = 1  # UpdateFeatures has an upgrade type; Kafka ignores version 0's field in its place
_ONE_RESULT_VERSION: Final = 2  # UpdateFeatures is answered without a result for each feature
_SOFTWARE_NAME_VERSION: Final = 3  # ApiVersions has the client's name, whose form is checked, and features
_LEVEL_ZERO_VERSION: Final = 4  # clients of ApiVersions accept a feature that begins at level 0 (KIP-1022)
_EXPECTED_NODE_VERSION: Final = 5  # ApiVersions has the client's expected cluster and node (KIP-1242)
#: Most partitions that one Metadata request creates: each is a directory, and the request waits for all of them.
AUTO_CREATED_PARTITIONS_MAX: Final = 1000
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_ENDPOINT_BROKER, _ENDPOINT_CONTROLLER = 1, 2

#: Operations on each resource type (Kafka: ``AclEntry.supportedOperations``).
_SUPPORTED: Final = {
    Resource.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    Resource.GROUP: "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    Resource.CLUSTER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE",
}
#: For a topic refused with one of these, Metadata also returns the principal's allowed operations.
_SHOWN_CODES: Final = {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION}

#: Default message for INVALID_REQUEST (Kafka: ``Errors.message``).
MALFORMED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)

TRANSACTION_VERSION: Final = "transaction.version"
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_NEEDS_TYPE: Final = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)
_NO_NODE: Final = -1
#: ``ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN``.
_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
#: Lower versions are listed but refused: older librdkafkas take their absence for a broker without
#: record batches of version 2 (KAFKA-18659).
_SHOWN_FROM: Final = {Api.PRODUCE: 0}


class ClusterHandlers:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @serves(Api.METADATA, 0, 13)
    async def metadata(self, context: RequestContext, request: Any) -> Any:
        """Topics by name, by id, or all; missing topics may be created (KafkaApis.handleTopicMetadata)."""
        asked, version, access = request.topics, context.version, context.access
        if refusal := _metadata_refusal(asked or (), version):
            # Kafka's ``MetadataRequest.getErrorResponse``: no brokers, and the code for each topic.
            topics = [_no_topic(refusal, topic.name or "", topic.topic_id) for topic in asked]
            return MetadataResponse(topics=topics, error_code=refusal)
        ids = {topic.topic_id for topic in asked or () if topic.topic_id}
        if asked is None or (version == 0 and not asked):
            visible = (each for each in self._catalog.topics() if _may_describe(access, each.name))
            topics = [self._described(topic) for topic in visible]
        elif ids:
            topics = [self._topic_by_id(each, access) for each in ids]
        else:
            topics = await self._topics_by_name(request, access)
        if request.include_topic_authorized_operations:
            for topic in topics:
                if topic.error_code in _SHOWN_CODES:
                    topic.authorized_operations = allowed(access, Resource.TOPIC, topic.name)
        host, port = context.advertised
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=self._catalog.node_id, host=host, port=port)],
            cluster_id=self._catalog.cluster_id,
            controller_id=self._catalog.node_id,
            topics=topics,
            authorized_operations=_cluster_operations(access, request),
        )

    def _topic_by_id(self, topic_id: uuid.UUID, access: Access) -> Any:
        topic = self._catalog.topic_by_id(topic_id)
        if topic is not None and _may_describe(access, topic.name):
            return self._described(topic)
        return _no_topic(Code.UNKNOWN_TOPIC_ID if topic is None else Code.TOPIC_AUTHORIZATION_FAILED, None, topic_id)

    async def _topics_by_name(self, request: Any, access: Access) -> list[Any]:
        creating = request.allow_auto_topic_creation and self._catalog.properties.auto_create_topics_enable
        topics, missing = [], []
        for name in dict.fromkeys(topic.name for topic in request.topics):
            topic = self._catalog.topic(name)
            if not _may_describe(access, name) or (creating and topic is None and not may_create(access, name)):
                topics.append(_no_topic(Code.TOPIC_AUTHORIZATION_FAILED, name))
            elif topic is not None:
                topics.append(self._described(topic))
            elif name_fault(name):
                topics.append(_no_topic(Code.INVALID_TOPIC_EXCEPTION, name))
            else:
                topics.append(_no_topic(Code.UNKNOWN_TOPIC_OR_PARTITION, name))
                missing.append(name)
        if creating and missing:
            await self._create(missing)
        return topics

    async def _create(self, missing: list[str]) -> None:
        """Create topics in one change, up to the limit; the client's next request finds them, and creates the rest."""
        partitions = self._catalog.properties.num_partitions
        names_max = max(AUTO_CREATED_PARTITIONS_MAX // partitions, 1)
        # Names that collide with others are skipped, as in Kafka.
        taken = {unified(topic.name) for topic in self._catalog.topics()}
        by_unified: dict[str, str] = {}
        for name in missing:
            by_unified.setdefault(unified(name), name)
        names = [name for key, name in by_unified.items() if key not in taken]
        if len(names) > names_max:
            _log.warning("Metadata names %d missing topics; creating %d of them", len(missing), names_max)
        try:
            await self._catalog.create_topics(Topic(name, random_id(), partitions) for name in names[:names_max])
        except OSError as error:
            _log.warning("could not create %d topics named by Metadata: %s", len(names[:names_max]), error)

    def _described(self, topic: Topic) -> Any:
        node, epoch = self._catalog.node_id, self._catalog.node_epoch
        one = {"leader_id": node, "leader_epoch": epoch, "replica_nodes": [node], "isr_nodes": [node]}
        partitions = [_Partition(partition_index=index, **one) for index in range(topic.partitions)]
        return _Topic(name=topic.name, topic_id=topic.id, is_internal=topic.internal, partitions=partitions)

    @serves(Api.FIND_COORDINATOR, 0, 6)
    async def find_coordinator(self, context: RequestContext, request: Any) -> Any:
        """Always this node, for groups and transactional ids; share groups do not exist (KafkaApis.getCoordinator)."""
        several = context.version >= _COORDINATORS_VERSION
        keys = request.coordinator_keys if several else [request.key]
        found = []
        for key in keys:
            code, message = _coordinator_refusal(context.access, request.key_type, key)
            host, port = context.advertised if code is Code.NONE else ("", -1)
            node_id = self._catalog.node_id if code is Code.NONE else -1
            if several and message != MALFORMED:
                message = ""
            found.append({"error_code": code, "error_message": message, "node_id": node_id, "host": host, "port": port})
        if not several:
            return FindCoordinatorResponse(**found[0])
        coordinators = [_Coordinator(key=key, **each) for key, each in zip(keys, found, strict=True)]
        return FindCoordinatorResponse(coordinators=coordinators)

    @serves(Api.DESCRIBE_CLUSTER, 0, 2)
    async def describe_cluster(self, context: RequestContext, request: Any) -> Any:
        """The cluster and its one broker (AuthHelper.computeDescribeClusterResponse)."""
        asked = request.endpoint_type
        if asked == _ENDPOINT_CONTROLLER:
            text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            return DescribeClusterResponse(error_code=Code.MISMATCHED_ENDPOINT_TYPE, error_message=text)
        if asked != _ENDPOINT_BROKER:
            text = f"Unsupported endpoint type {asked}"
            return DescribeClusterResponse(error_code=Code.UNSUPPORTED_ENDPOINT_TYPE, error_message=text)
        host, port = context.advertised
        node = self._catalog.node_id
        return DescribeClusterResponse(
            cluster_id=self._catalog.cluster_id,
            controller_id=node,
            brokers=[DescribeClusterResponse.DescribeClusterBroker(broker_id=node, host=host, port=port)],
            authorized_operations=_cluster_operations(context.access, request),
        )

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
            if fault := self._fault(name, each.max_version_level, each.upgrade_type if typed else _UPGRADE):
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
        controller, supported = f"Local controller {self._catalog.node_id}", _features(self._catalog)
        lowest, highest, now = supported.get(name, (0, 0, 0))
        # A setting must not lose its effect while the node runs; without effect it is refused at the start too.
        keeping_enabled = self._catalog.properties.transaction_keep_prepared_enable
        keeps = keeping_enabled and name == TRANSACTION_VERSION and level < highest
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
        if refusal := self._refusal(context.version, request):
            return ApiVersionsResponse(error_code=refusal)
        features = _features(self._catalog)
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(
                    api_key=api, min_version=_SHOWN_FROM.get(api, it.version_min), max_version=it.version_max
                )
                for api, it in sorted(self._offered.items())
            ],
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
                for name, (lowest, highest, _) in features.items()
                if lowest > 0 or context.version >= _LEVEL_ZERO_VERSION
            ],
            finalized_features_epoch=self._catalog.features_epoch,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, (_, _, level) in features.items()
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


def may_create(access: Access, name: str) -> bool:
    resources = ((Resource.CLUSTER, CLUSTER_NAME), (Resource.TOPIC, name))
    return any(access.allows(AclOperation.CREATE, *resource) for resource in resources)


def allowed(access: Access, resource: Resource, name: str) -> set[int]:
    """The principal's allowed operations on a topic, a group or the cluster, as operation codes (KIP-430)."""
    operations = (AclOperation[each] for each in _SUPPORTED[resource].split())
    return {each.value for each in operations if access.allows(each, resource, name)}


def _may_describe(access: Access, topic: str) -> bool:
    return access.allows(AclOperation.DESCRIBE, Resource.TOPIC, topic)


def _cluster_operations(access: Access, request: Any) -> set[int] | None:
    if not request.include_cluster_authorized_operations:
        return None
    describes = access.allows(AclOperation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    return allowed(access, Resource.CLUSTER, CLUSTER_NAME) if describes else set()


def _metadata_refusal(topics: Iterable[Any], version: int) -> Code:
    for topic in topics:
        if version < _METADATA_IDS_VERSION:
            if topic.name is None or topic.topic_id:
                return Code.INVALID_REQUEST
        elif topic.name is None and not topic.topic_id:
            return Code.UNKNOWN_SERVER_ERROR  # Kafka has a null pointer error here
    return Code.NONE


def _no_topic(code: Code, name: str | None, topic_id: uuid.UUID | None = None) -> Any:
    return _Topic(error_code=code, name=name, topic_id=topic_id, is_internal=name in INTERNAL_TOPICS)


def _coordinator_refusal(access: Access, key_type: int, key: str) -> tuple[Code, str]:
    """A code, and the message that accompanies it before version 4."""
    if key_type == _GROUP:
        allows = access.allows(AclOperation.DESCRIBE, Resource.GROUP, key)
        denied = Code.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."
    elif key_type == _TRANSACTION:
        allows = access.allows(AclOperation.DESCRIBE, Resource.TRANSACTIONAL_ID, key)
        denied = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
    else:
        return Code.INVALID_REQUEST, "" if key_type == _SHARE else MALFORMED
    return (Code.NONE, "NONE") if allows else denied


def _features(catalog: Catalog) -> dict[str, tuple[int, int, int]]:
    """Lowest, highest and finalized levels, as in Kafka 4.4.0 but without features of APIs that the server lacks."""
    highest, level = catalog.properties.transaction_keep_prepared_version, catalog.state.transaction_version
    return {"kraft.version": (0, 1, 0), "metadata.version": (7, 33, 33), TRANSACTION_VERSION: (0, highest, level)}
