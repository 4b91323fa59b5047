"""Metadata, FindCoordinator and DescribeCluster. There is one node, and it leads everything."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import Any, Final

from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Access, Operation, Resource
from spark_2pc_sink.reference.internal_topics import INTERNAL_TOPICS
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import Topic, name_fault, unified
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext

_log = logging.getLogger(__name__)

_Broker: Final = MetadataResponse.MetadataResponseBroker
_Topic: Final = MetadataResponse.MetadataResponseTopic
_Partition: Final = _Topic.MetadataResponsePartition
_Coordinator: Final = FindCoordinatorResponse.Coordinator
_ClusterBroker: Final = DescribeClusterResponse.DescribeClusterBroker

#: The first version of Metadata that may name topics by their ids.
_METADATA_IDS_VERSION: Final = 12
#: The first version of FindCoordinator that names several keys, and may ask for share groups.
_COORDINATORS_VERSION: Final = 4
#: Partitions that one Metadata request creates at most: each is a directory, and the request waits for all of them.
AUTO_CREATED_PARTITIONS_MAX: Final = 1000
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_ENDPOINT_BROKER, _ENDPOINT_CONTROLLER = 1, 2
_NO_NODE: Final = -1

#: What there is to do with a topic, and with the cluster (Kafka: ``AclEntry.supportedOperations``).
TOPIC_OPERATIONS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)

#: What an answer says of INVALID_REQUEST where nothing better is known (Kafka: ``Errors.message``).
MALFORMED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)
_FOUND: Final = (Code.NONE, "NONE")
_GROUP_DENIED: Final = "Group authorization failed."
_TRANSACTIONAL_ID_DENIED: Final = "Transactional Id authorization failed."


class ClusterHandlers:
    """Metadata, FindCoordinator, DescribeCluster."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def handlers(self) -> Handlers:
        return {
            Api.METADATA: Handler(0, 13, self.metadata),
            Api.FIND_COORDINATOR: Handler(0, 6, self.find_coordinator),
            Api.DESCRIBE_CLUSTER: Handler(0, 2, self.describe_cluster),
        }

    # --- Metadata ----------------------------------------------------------------------------------------------------

    async def metadata(self, context: RequestContext, request: Any) -> Any:
        """Topics by name, by id, or all; topics that are not there may be created (KafkaApis.handleTopicMetadata)."""
        asked, version = request.topics, context.version
        refusal = _metadata_refusal(asked or (), version)
        if refusal is not Code.NONE:
            return _metadata_refused(asked, refusal)
        ids = {topic.topic_id for topic in asked or () if topic.topic_id}
        if asked is None or (version == 0 and not asked):
            topics = self._all_topics(context.access)
        elif ids:
            topics = [self._topic_by_id(each, context.access) for each in ids]
        else:
            creating = request.allow_auto_topic_creation and self._catalog.properties.auto_create_topics_enable
            names = dict.fromkeys(topic.name for topic in asked)
            topics = [self._topic_by_name(each, context.access, creating=creating) for each in names]
            if creating:
                missing = [each.name for each in topics if each.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION]
                await self._create(missing)
        if request.include_topic_authorized_operations:
            for topic in topics:
                if topic.error_code in {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION}:
                    topic.authorized_operations = allowed(context.access, Resource.TOPIC, topic.name)
        host, port = context.advertised
        return MetadataResponse(
            brokers=[_Broker(node_id=self._catalog.node_id, host=host, port=port)],
            cluster_id=self._catalog.cluster_id,
            controller_id=self._catalog.node_id,
            topics=topics,
            authorized_operations=_cluster_operations(
                context.access, wanted=request.include_cluster_authorized_operations
            ),
        )

    def _all_topics(self, access: Access) -> list[Any]:
        return [
            self._described(topic)
            for topic in self._catalog.topics()
            if access.allows(Operation.DESCRIBE, Resource.TOPIC, topic.name)
        ]

    def _topic_by_id(self, topic_id: uuid.UUID, access: Access) -> Any:
        topic = self._catalog.topic_by_id(topic_id)
        if topic is None:
            return _no_topic(Code.UNKNOWN_TOPIC_ID, None, topic_id)
        if not access.allows(Operation.DESCRIBE, Resource.TOPIC, topic.name):
            return _no_topic(Code.TOPIC_AUTHORIZATION_FAILED, None, topic_id)
        return self._described(topic)

    def _topic_by_name(self, name: str, access: Access, *, creating: bool) -> Any:
        if not access.allows(Operation.DESCRIBE, Resource.TOPIC, name):
            return _no_topic(Code.TOPIC_AUTHORIZATION_FAILED, name)
        topic = self._catalog.topic(name)
        if topic is not None:
            return self._described(topic)
        if creating and not may_create(access, name):
            return _no_topic(Code.TOPIC_AUTHORIZATION_FAILED, name)
        if name_fault(name) is not None:
            return _no_topic(Code.INVALID_TOPIC_EXCEPTION, name)
        return _no_topic(Code.UNKNOWN_TOPIC_OR_PARTITION, name)

    async def _create(self, missing: list[str]) -> None:
        """Create topics in one change, as many as one request may; they are found by the client's next request.

        The rest is left to that one too. Names that collide with others are left out, as in Kafka.
        """
        partitions = self._catalog.properties.num_partitions
        taken = {unified(topic.name) for topic in self._catalog.topics()} if missing else set()
        names: list[str] = []
        for name in missing:
            if (len(names) + 1) * partitions > max(AUTO_CREATED_PARTITIONS_MAX, partitions):
                _log.warning("Metadata asks for %d topics that are not there: %d are created", len(missing), len(names))
                break
            if unified(name) not in taken:
                taken.add(unified(name))
                names.append(name)
        if not names:
            return
        try:
            await self._catalog.create_topics(names, partitions)
        except OSError as error:
            _log.warning("%d topics that Metadata asked for were not created: %s", len(names), error)

    def _described(self, topic: Topic) -> Any:
        node = self._catalog.node_id
        partitions = [
            _Partition(
                partition_index=index,
                leader_id=node,
                leader_epoch=self._catalog.node_epoch,
                replica_nodes=[node],
                isr_nodes=[node],
            )
            for index in range(topic.partitions)
        ]
        return _Topic(name=topic.name, topic_id=topic.id, is_internal=topic.internal, partitions=partitions)

    # --- FindCoordinator ---------------------------------------------------------------------------------------------

    async def find_coordinator(self, context: RequestContext, request: Any) -> Any:
        """This node, for groups and transactional ids; there are no share groups (KafkaApis.getCoordinator)."""
        several = context.version >= _COORDINATORS_VERSION
        keys = request.coordinator_keys if several else [request.key]
        found = [self._coordinator(context, request.key_type, key) for key in keys]
        if several:
            for each in found:
                each.error_message = "" if each.error_message != MALFORMED else MALFORMED
            return FindCoordinatorResponse(coordinators=found)
        one = found[0]
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(self, context: RequestContext, key_type: int, key: str) -> Any:
        code, message = _coordinator_refusal(context.access, key_type, key)
        host, port = context.advertised if code is Code.NONE else ("", _NO_NODE)
        node_id = self._catalog.node_id if code is Code.NONE else _NO_NODE
        return _Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=message)

    # --- DescribeCluster ---------------------------------------------------------------------------------------------

    async def describe_cluster(self, context: RequestContext, request: Any) -> Any:
        """The cluster and its one broker (AuthHelper.computeDescribeClusterResponse)."""
        refusal = _endpoint_refusal(request.endpoint_type)
        if refusal is not None:
            return DescribeClusterResponse(
                error_code=refusal[0], error_message=refusal[1], endpoint_type=_ENDPOINT_BROKER, controller_id=_NO_NODE
            )
        host, port = context.advertised
        node = self._catalog.node_id
        return DescribeClusterResponse(
            endpoint_type=_ENDPOINT_BROKER,
            cluster_id=self._catalog.cluster_id,
            controller_id=node,
            brokers=[_ClusterBroker(broker_id=node, host=host, port=port)],
            authorized_operations=_cluster_operations(
                context.access, wanted=request.include_cluster_authorized_operations
            ),
        )


def may_create(access: Access, name: str) -> bool:
    return access.allows(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME) or access.allows(
        Operation.CREATE, Resource.TOPIC, name
    )


def allowed(access: Access, resource: Resource, name: str) -> set[int]:
    """What the principal may do to a topic or to the cluster, as the codes of the operations (KIP-430)."""
    operations = TOPIC_OPERATIONS if resource is Resource.TOPIC else CLUSTER_OPERATIONS
    return {each.value for each in operations if access.allows(each, resource, name)}


def _cluster_operations(access: Access, *, wanted: bool) -> set[int] | None:
    if not wanted:
        return None
    describes = access.allows(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    return allowed(access, Resource.CLUSTER, CLUSTER_NAME) if describes else set()


def _metadata_refusal(topics: Iterable[Any], version: int) -> Code:
    for topic in topics:
        if version < _METADATA_IDS_VERSION:
            if topic.name is None or topic.topic_id:
                return Code.INVALID_REQUEST
        elif topic.name is None and not topic.topic_id:
            return Code.UNKNOWN_SERVER_ERROR  # Kafka runs into a null pointer here
    return Code.NONE


def _metadata_refused(topics: Iterable[Any], code: Code) -> Any:
    """Kafka's ``MetadataRequest.getErrorResponse``: the code for each topic, and no brokers."""
    return MetadataResponse(
        controller_id=_NO_NODE,
        topics=[_no_topic(code, topic.name or "", topic.topic_id) for topic in topics],
        error_code=code,
    )


def _no_topic(code: Code, name: str | None, topic_id: uuid.UUID | None = None) -> Any:
    return _Topic(error_code=code, name=name, topic_id=topic_id, is_internal=name in INTERNAL_TOPICS)


def _coordinator_refusal(access: Access, key_type: int, key: str) -> tuple[Code, str]:
    """A code, and the text that goes with it before version 4."""
    if key_type == _GROUP:
        allows = access.allows(Operation.DESCRIBE, Resource.GROUP, key)
        return _FOUND if allows else (Code.GROUP_AUTHORIZATION_FAILED, _GROUP_DENIED)
    if key_type == _TRANSACTION:
        allows = access.allows(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, key)
        return _FOUND if allows else (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _TRANSACTIONAL_ID_DENIED)
    return Code.INVALID_REQUEST, "" if key_type == _SHARE else MALFORMED


def _endpoint_refusal(endpoint_type: int) -> tuple[Code, str] | None:
    if endpoint_type == _ENDPOINT_BROKER:
        return None
    if endpoint_type == _ENDPOINT_CONTROLLER:
        return (
            Code.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    return Code.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {endpoint_type}"
