"""CreateTopics, DeleteTopics and CreatePartitions.

The rules and messages are those of Kafka's controller (``ControllerApis``, ``ReplicationControlManager``). Two are
our own: the coordinators' topics cannot be deleted or given more partitions (POLICY_VIOLATION), because the
coordinators of this process hold their state. Other handlers find and authorise their topics here too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from kafka.protocol.admin import CreatePartitionsResponse, CreateTopicsResponse, DeleteTopicsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.topic_configs import check_topic_configs, note_topic_configs, topic_entries
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Access, AclOperation, Resource
from spark_2pc_sink.reference.handlers.cluster import may_create
from spark_2pc_sink.reference.handlers.configs import config_fault
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import CLUSTER_METADATA, Topic, name_fault, random_id, unified
from spark_2pc_sink.reference.protocol import RefusedError, RequestContext, serves
from spark_2pc_sink.wire.api_versions import Api

_log = logging.getLogger(__name__)

_Created: Final = CreateTopicsResponse.CreatableTopicResult
_Deleted: Final = DeleteTopicsResponse.DeletableTopicResult
_Grown: Final = CreatePartitionsResponse.CreatePartitionsTopicResult

#: Most partitions that one request may create (Kafka: ``MAX_RECORDS_PER_USER_OP``).
PARTITIONS_MAX: Final = 10_000
#: The first version of DeleteTopics that identifies topics by id.
_DELETE_IDS_VERSION: Final = 6
_DEFAULT: Final = -1
_DUPLICATE: Final = RefusedError(Code.INVALID_REQUEST, "Duplicate topic name.")
_DUPLICATE_ID: Final = RefusedError(Code.INVALID_REQUEST, "Duplicate topic id.")
_NEITHER: Final = RefusedError(Code.INVALID_REQUEST, "Neither topic name nor id were specified.")
_BOTH: Final = RefusedError(Code.INVALID_REQUEST, "You may not specify both topic name and topic id.")
_UNKNOWN: Final = RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
_DENIED: Final = RefusedError(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
#: The client sent no leader epoch.
ANY_EPOCH: Final = -1
_Value = TypeVar("_Value")


def find_topic(
    catalog: Catalog, context: RequestContext, operation: AclOperation, name: str, topic_id: UUID | None, *, by_id: bool
) -> tuple[str, Code]:
    """A topic's name, and why all its partitions are refused, or NONE: those of an unknown name are only not found."""
    if by_id:
        topic = None if topic_id is None else catalog.topic_by_id(topic_id)
        if topic is None:
            return "", Code.UNKNOWN_TOPIC_ID
        name = topic.name
    return name, topic_refusal(context, operation, name)


def topic_refusal(context: RequestContext, operation: AclOperation, name: str) -> Code:
    return Code.NONE if context.access.allows(operation, Resource.TOPIC, name) else Code.TOPIC_AUTHORIZATION_FAILED


def find_log(catalog: Catalog, topic: str, partition: int, *, leader_epoch: int = ANY_EPOCH) -> PartitionLog | Code:
    if (log := catalog.log(topic, partition)) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if leader_epoch in {ANY_EPOCH, log.leader_epoch}:
        return log
    return Code.FENCED_LEADER_EPOCH if leader_epoch < log.leader_epoch else Code.UNKNOWN_LEADER_EPOCH


def by_topic(rows: Iterable[tuple[TopicPartition, _Value]]) -> dict[str, list[tuple[int, _Value]]]:
    topics: dict[str, list[tuple[int, _Value]]] = {}
    for partition, value in rows:
        topics.setdefault(partition.topic, []).append((partition.partition, value))
    return topics


class TopicHandlers:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @serves(Api.CREATE_TOPICS, 2, 7)
    async def create_topics(self, context: RequestContext, request: Any) -> Any:
        create = partial(self._create, context.access, validate_only=request.validate_only)
        done, twice = await _one_by_one(_Created, request.topics, create)
        return CreateTopicsResponse(topics=[*done, *twice])

    async def _create(self, access: Access, asked: Any, *, validate_only: bool) -> Any:
        """Raises RefusedError. A new topic's configs are returned only to principals that may see them (KIP-525)."""
        name = asked.name
        partitions, configs = self._checked(access, asked)
        topic_id = random_id()
        if not validate_only:
            try:
                topic = await self._catalog.create_topic(name, partitions, configs, topic_id=topic_id)
            except OSError as error:
                _log.warning("topic %s was not created: %s", name, error)
                raise RefusedError(Code.KAFKA_STORAGE_ERROR, "The disk refused the topic.") from error
            if topic is None:
                raise _exists(name)
            note_topic_configs(name, configs)
        created = _Created(name=name, topic_id=topic_id, error_message=None)
        if not access.allows(AclOperation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            created.topic_config_error_code = Code.TOPIC_AUTHORIZATION_FAILED
            return created
        created.num_partitions, created.replication_factor = partitions, 1
        created.configs = [
            _Created.CreatableTopicConfigs(name=entry.name, value=entry.value, config_source=entry.source.value)
            for entry in topic_entries(configs, self._catalog.properties)
        ]
        return created

    def _checked(self, access: Access, asked: Any) -> tuple[int, dict[str, str]]:
        if asked.name == CLUSTER_METADATA:
            raise RefusedError(Code.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA} is prohibited.")
        if not may_create(access, asked.name):
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
        if self._catalog.topic(asked.name) is not None:
            raise _exists(asked.name)
        own = unified(asked.name)
        other = next((topic.name for topic in self._catalog.topics() if unified(topic.name) == own), None)
        fault = name_fault(asked.name) or (other and f"Topic '{asked.name}' collides with existing topic: {other}")
        if fault:
            raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, fault)
        if nothing := [config.name for config in asked.configs if config.value is None]:
            raise RefusedError(Code.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nothing)}")
        try:
            configs = check_topic_configs({config.name: config.value for config in asked.configs})
        except ConfigurationError as error:
            raise RefusedError(Code.INVALID_CONFIG, config_fault(error)) from error
        return self._assigned(asked) if asked.assignments else self._partitions(asked), configs

    def _partitions(self, asked: Any) -> int:
        factor = asked.replication_factor
        if factor < _DEFAULT or factor == 0:
            text = "Replication factor must be larger than 0, or -1 to use the default value."
            raise RefusedError(Code.INVALID_REPLICATION_FACTOR, text)
        if asked.num_partitions < _DEFAULT or asked.num_partitions == 0:
            text = "Number of partitions was set to an invalid non-positive value."
            raise RefusedError(Code.INVALID_PARTITIONS, text)
        if factor > 1:
            text = (
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot "
                "be reached because only 1 broker(s) are registered or some brokers have all their log directories "
                "cordoned."
            )
            raise RefusedError(Code.INVALID_REPLICATION_FACTOR, text)
        if asked.num_partitions > PARTITIONS_MAX:
            raise RefusedError(Code.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        default = self._catalog.properties.num_partitions
        return default if asked.num_partitions == _DEFAULT else int(asked.num_partitions)

    def _assigned(self, asked: Any) -> int:
        for value, what in ((asked.replication_factor, "replication factor"), (asked.num_partitions, "numPartitions")):
            if value != _DEFAULT:
                text = f"A manual partition assignment was specified, but {what} was not set to -1."
                raise RefusedError(Code.INVALID_REQUEST, text)
        seen: set[int] = set()
        for assignment in asked.assignments:
            if assignment.partition_index in seen:
                text = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
                raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, text)
            self._check_replicas(assignment.broker_ids)
            seen.add(assignment.partition_index)
        if seen != set(range(len(seen))):
            text = "partitions should be a consecutive 0-based integer sequence"
            raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, text)
        return len(seen)

    def _check_replicas(self, brokers: Sequence[int]) -> None:
        if not brokers:
            fault = "an empty replica list."
        elif len(set(brokers)) < len(brokers):
            fault = f"the broker {max(brokers, key=list(brokers).count)} more than once."
        elif set(brokers) != {self._catalog.node_id}:
            stranger = min(set(brokers) - {self._catalog.node_id})
            fault = f"broker {stranger}, but no such broker is registered."
        else:
            return
        raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {fault}")

    @serves(Api.DELETE_TOPICS, 1, 6)
    async def delete_topics(self, context: RequestContext, request: Any) -> Any:
        """Delete topics by name or id. Answers do not reveal topics that the principal may not see."""
        access = context.access
        if context.version < _DELETE_IDS_VERSION:
            asked = [(name, None) for name in request.topic_names]
        else:
            asked = [(topic.name, topic.topic_id) for topic in request.topics]
        named, by_id, results = _topics_to_delete(asked)
        twice = {topic.name: topic.id for topic in map(self._catalog.topic, named) if topic and topic.id in by_id}
        refusal = RefusedError(Code.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied.")
        results += [_refused(_Deleted, refusal, name=name, topic_id=each) for name, each in twice.items()]
        results += [await self._delete_by_id(access, each) for each in by_id if each not in twice.values()]
        results += [await self._delete_by_name(access, name) for name in named if name not in twice]
        return DeleteTopicsResponse(responses=results)

    async def _delete_by_name(self, access: Access, name: str) -> Any:
        topic, seen = self._catalog.topic(name), _may(access, AclOperation.DESCRIBE, name)
        if topic is None or not seen or not _may(access, AclOperation.DELETE, name):
            return _refused(_Deleted, _UNKNOWN if seen and topic is None else _DENIED, name=name)
        return await self._delete(topic)

    async def _delete_by_id(self, access: Access, topic_id: UUID) -> Any:
        topic = self._catalog.topic_by_id(topic_id)
        if topic is None:
            refusal = RefusedError(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            return _refused(_Deleted, refusal, name=None, topic_id=topic_id)
        if not _may(access, AclOperation.DELETE, topic.name):
            name = topic.name if _may(access, AclOperation.DESCRIBE, topic.name) else None
            return _refused(_Deleted, _DENIED, name=name, topic_id=topic_id)
        return await self._delete(topic)

    async def _delete(self, topic: Topic) -> Any:
        if topic.is_coordinator_topic:
            return _refused(_Deleted, _coordinator_topic(topic.name), name=topic.name, topic_id=topic.id)
        if (gone := await self._catalog.delete_topic(topic.name)) is None:
            return _refused(_Deleted, _UNKNOWN, name=topic.name)
        return _Deleted(name=gone.name, topic_id=gone.id)

    @serves(Api.CREATE_PARTITIONS, 0, 3)
    async def create_partitions(self, context: RequestContext, request: Any) -> Any:
        grow = partial(self._grow, context.access, validate_only=request.validate_only)
        done, twice = await _one_by_one(_Grown, request.topics, grow)
        return CreatePartitionsResponse(results=[*twice, *done])

    async def _grow(self, access: Access, asked: Any, *, validate_only: bool) -> Any:
        if not access.allows(AclOperation.ALTER, Resource.TOPIC, asked.name):
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
        topic = _check_count(self._catalog.topic(asked.name), asked.count)
        if topic.is_coordinator_topic:
            raise _coordinator_topic(topic.name)
        additional = asked.count - topic.partitions
        if asked.assignments is not None and len(asked.assignments) != additional:
            text = f"Attempted to add {additional} additional partition(s), but only {len(asked.assignments)} "
            raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, f"{text}assignment(s) were specified.")
        if additional > PARTITIONS_MAX:
            text = "Excessively large number of additional partitions per request."
            raise RefusedError(Code.POLICY_VIOLATION, text)
        for each in asked.assignments or ():
            self._check_replicas(each.broker_ids)
        if not validate_only and await self._catalog.add_partitions(asked.name, asked.count) is None:
            # Another request came first: it deleted the topic, or gave it as many.
            _check_count(self._catalog.topic(asked.name), asked.count)
        return _Grown(name=asked.name)


def _exists(name: str) -> RefusedError:
    return RefusedError(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _coordinator_topic(name: str) -> RefusedError:
    return RefusedError(Code.POLICY_VIOLATION, f"The topic {name} belongs to the coordinators of this server.")


def _check_count(topic: Topic | None, count: int) -> Topic:
    if topic is None:
        raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION)
    if count == topic.partitions:
        raise RefusedError(Code.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if count < topic.partitions:
        raise RefusedError(
            Code.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.partitions} partition(s); {count} would not be an increase.",
        )
    return topic


def _may(access: Access, operation: AclOperation, name: str) -> bool:
    """True if the principal may do this to the topic, or delete every topic."""
    deletes_all = access.allows(AclOperation.DELETE, Resource.CLUSTER, CLUSTER_NAME)
    return deletes_all or access.allows(operation, Resource.TOPIC, name)


def _topics_to_delete(asked: Sequence[tuple[str | None, Any]]) -> tuple[list[str], list[UUID], list[Any]]:
    """The distinct names and ids to delete, and the answers for invalid entries (ControllerApis.deleteTopics)."""
    names = Counter(name for name, topic_id in asked if name is not None and not topic_id)
    ids = Counter(topic_id for name, topic_id in asked if name is None and topic_id)
    results = [
        _refused(_Deleted, _NEITHER if name is None else _BOTH, name=name, topic_id=topic_id)
        for name, topic_id in asked
        if (name is None) is not bool(topic_id)
    ]
    results += [_refused(_Deleted, _DUPLICATE, name=name) for name, count in names.items() if count > 1]
    results += [_refused(_Deleted, _DUPLICATE_ID, name=None, topic_id=each) for each, count in ids.items() if count > 1]
    return (
        [name for name, count in names.items() if count == 1],
        [each for each, count in ids.items() if count == 1],
        results,
    )


async def _one_by_one(
    kind: Any, topics: Sequence[Any], work: Callable[[Any], Awaitable[Any]]
) -> tuple[list[Any], list[Any]]:
    """The answers for the topics of a request, and for those that it names twice."""
    counts = Counter(topic.name for topic in topics)
    done = []
    for topic in topics:
        if counts[topic.name] == 1:
            try:
                done.append(await work(topic))
            except RefusedError as error:
                done.append(_refused(kind, error, name=topic.name))
    return done, [_refused(kind, _DUPLICATE, name=name) for name, count in counts.items() if count > 1]


def _refused(kind: Any, error: RefusedError, **names: Any) -> Any:
    return kind(**names, error_code=error.code, error_message=error.message)
