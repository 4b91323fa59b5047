"""CreateTopics, DeleteTopics and CreatePartitions.

The rules and their words are those of Kafka's controller (``ControllerApis``, ``ReplicationControlManager``). Two are
our own: the coordinators' topics can be neither deleted nor given more partitions (POLICY_VIOLATION), because the
coordinators of this process hold their state.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import CreatePartitionsResponse, CreateTopicsResponse, DeleteTopicsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.topic_configs import check_topic_configs, note_topic_configs, topic_entries
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, Access, Operation, Resource
from spark_2pc_sink.reference.handlers.cluster import may_create
from spark_2pc_sink.reference.handlers.configs import config_fault
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import CLUSTER_METADATA, Topic, colliding, name_fault, random_id
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext

_log = logging.getLogger(__name__)

_Created: Final = CreateTopicsResponse.CreatableTopicResult
_CreatedConfig: Final = _Created.CreatableTopicConfigs
_Deleted: Final = DeleteTopicsResponse.DeletableTopicResult
_Grown: Final = CreatePartitionsResponse.CreatePartitionsTopicResult

#: Partitions that one request may create (Kafka: ``MAX_RECORDS_PER_USER_OP``).
PARTITIONS_MAX: Final = 10_000
#: The first version of DeleteTopics that has topics with ids.
_DELETE_IDS_VERSION: Final = 6
_DEFAULT: Final = -1

_UNKNOWN: Final = "This server does not host this topic-partition."
_UNKNOWN_ID: Final = "This server does not host this topic ID."
_TOPIC_DENIED: Final = "Topic authorization failed."


@dataclass(frozen=True)
class _Refusal:
    code: Code
    message: str | None


@dataclass(frozen=True)
class _NewTopic:
    partitions: int
    configs: dict[str, str]


_DUPLICATE: Final = _Refusal(Code.INVALID_REQUEST, "Duplicate topic name.")


class TopicHandlers:
    """CreateTopics, DeleteTopics, CreatePartitions."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def handlers(self) -> Handlers:
        return {
            Api.CREATE_TOPICS: Handler(2, 7, self.create_topics),
            Api.DELETE_TOPICS: Handler(1, 6, self.delete_topics),
            Api.CREATE_PARTITIONS: Handler(0, 3, self.create_partitions),
        }

    # --- CreateTopics ------------------------------------------------------------------------------------------------

    async def create_topics(self, context: RequestContext, request: Any) -> Any:
        """Create each topic by itself: one that is refused keeps no other from being created."""
        counts = Counter(topic.name for topic in request.topics)
        results = [
            await self._create(context.access, topic, validate_only=request.validate_only)
            for topic in request.topics
            if counts[topic.name] == 1
        ]
        results.extend(_created_refused(name, _DUPLICATE) for name, count in counts.items() if count > 1)
        return CreateTopicsResponse(topics=results)

    async def _create(self, access: Access, asked: Any, *, validate_only: bool) -> Any:
        checked = self._checked(access, asked)
        if isinstance(checked, _Refusal):
            return _created_refused(asked.name, checked)
        topic_id = random_id()
        if not validate_only:
            try:
                topic = await self._catalog.create_topic(
                    asked.name, checked.partitions, checked.configs, topic_id=topic_id
                )
            except OSError as error:
                _log.warning("topic %s was not created: %s", asked.name, error)
                return _created_refused(asked.name, _Refusal(Code.KAFKA_STORAGE_ERROR, "The disk refused the topic."))
            if topic is None:
                return _created_refused(asked.name, _exists(asked.name))
            note_topic_configs(asked.name, checked.configs)
        return self._created(access, asked.name, topic_id, checked)

    def _checked(self, access: Access, asked: Any) -> _NewTopic | _Refusal:
        if asked.name == CLUSTER_METADATA:
            return _Refusal(Code.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA} is prohibited.")
        if not may_create(access, asked.name):
            return _Refusal(Code.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
        if self._catalog.topic(asked.name) is not None:
            return _exists(asked.name)
        fault = name_fault(asked.name) or self._collision(asked.name)
        if fault is not None:
            return _Refusal(Code.INVALID_TOPIC_EXCEPTION, fault)
        configs = _checked_configs(asked.configs)
        if isinstance(configs, _Refusal):
            return configs
        partitions = self._partitions(asked)
        return partitions if isinstance(partitions, _Refusal) else _NewTopic(partitions, configs)

    def _collision(self, name: str) -> str | None:
        other = colliding(name, (topic.name for topic in self._catalog.topics()))
        return None if other is None else f"Topic '{name}' collides with existing topic: {other}"

    def _partitions(self, asked: Any) -> int | _Refusal:
        """How many partitions a new topic gets, by number or by assignment."""
        if asked.assignments:
            return self._assigned(asked)
        if asked.replication_factor < _DEFAULT or asked.replication_factor == 0:
            return _Refusal(
                Code.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if asked.num_partitions < _DEFAULT or asked.num_partitions == 0:
            return _Refusal(Code.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
        if asked.replication_factor > 1:
            return _Refusal(
                Code.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {asked.replication_factor} time(s): The target replication factor "
                f"of {asked.replication_factor} cannot be reached because only 1 broker(s) are registered or some "
                "brokers have all their log directories cordoned.",
            )
        if asked.num_partitions > PARTITIONS_MAX:
            return _Refusal(Code.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        default = self._catalog.properties.num_partitions
        return default if asked.num_partitions == _DEFAULT else int(asked.num_partitions)

    def _assigned(self, asked: Any) -> int | _Refusal:
        for value, what in ((asked.replication_factor, "replication factor"), (asked.num_partitions, "numPartitions")):
            if value != _DEFAULT:
                return _Refusal(
                    Code.INVALID_REQUEST, f"A manual partition assignment was specified, but {what} was not set to -1."
                )
        seen: set[int] = set()
        for assignment in asked.assignments:
            if assignment.partition_index in seen:
                return _Refusal(
                    Code.INVALID_REPLICA_ASSIGNMENT,
                    f"Found multiple manual partition assignments for partition {assignment.partition_index}",
                )
            refusal = self._replica_refusal(assignment.broker_ids)
            if refusal is not None:
                return refusal
            seen.add(assignment.partition_index)
        if seen != set(range(len(seen))):
            return _Refusal(
                Code.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
            )
        return len(seen)

    def _replica_refusal(self, brokers: Sequence[int]) -> _Refusal | None:
        """What is wrong with the replicas of one partition; there is one broker that they can be on."""
        if not brokers:
            fault = "an empty replica list."
        elif len(set(brokers)) < len(brokers):
            fault = f"the broker {max(brokers, key=list(brokers).count)} more than once."
        elif set(brokers) != {self._catalog.node_id}:
            stranger = min(set(brokers) - {self._catalog.node_id})
            fault = f"broker {stranger}, but no such broker is registered."
        else:
            return None
        return _Refusal(Code.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {fault}")

    def _created(self, access: Access, name: str, topic_id: uuid.UUID | None, new: _NewTopic) -> Any:
        """The answer for a new topic; its configs are for those who may see them (KIP-525)."""
        if not access.allows(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            return _created_result(name, topic_id, topic_config_error_code=Code.TOPIC_AUTHORIZATION_FAILED)
        configs = [
            _CreatedConfig(name=entry.config.name, value=entry.value, config_source=entry.source.value)
            for entry in topic_entries(new.configs, self._catalog.properties)
        ]
        return _created_result(name, topic_id, num_partitions=new.partitions, replication_factor=1, configs=configs)

    # --- DeleteTopics ------------------------------------------------------------------------------------------------

    async def delete_topics(self, context: RequestContext, request: Any) -> Any:
        """Delete topics by name or id. An answer never tells that a topic exists to who may not see it."""
        named, by_id, results = _sorted_out(request, context.version)
        twice = {topic.name: topic.id for topic in map(self._catalog.topic, named) if topic and topic.id in by_id}
        refusal = _Refusal(Code.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied.")
        results += [_deleted(name, topic_id, refusal) for name, topic_id in twice.items()]
        for topic_id in by_id:
            if topic_id not in twice.values():
                results.append(await self._delete_by_id(context.access, topic_id))
        for name in named:
            if name not in twice:
                results.append(await self._delete_by_name(context.access, name))
        return DeleteTopicsResponse(responses=results)

    async def _delete_by_id(self, access: Access, topic_id: uuid.UUID) -> Any:
        topic = self._catalog.topic_by_id(topic_id)
        if topic is None:
            return _deleted(None, topic_id, _Refusal(Code.UNKNOWN_TOPIC_ID, _UNKNOWN_ID))
        if not _may_delete(access, topic.name):
            seen = _may_see(access, topic.name)
            refusal = _Refusal(Code.TOPIC_AUTHORIZATION_FAILED, _TOPIC_DENIED)
            return _deleted(topic.name if seen else None, topic_id, refusal)
        return await self._delete(topic)

    async def _delete_by_name(self, access: Access, name: str) -> Any:
        if not _may_see(access, name):
            return _deleted(name, None, _Refusal(Code.TOPIC_AUTHORIZATION_FAILED, _TOPIC_DENIED))
        topic = self._catalog.topic(name)
        if topic is None:
            return _deleted(name, None, _Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN))
        if not _may_delete(access, name):
            return _deleted(name, None, _Refusal(Code.TOPIC_AUTHORIZATION_FAILED, _TOPIC_DENIED))
        return await self._delete(topic)

    async def _delete(self, topic: Topic) -> Any:
        if topic.needed:
            return _deleted(topic.name, topic.id, _needed(topic.name))
        gone = await self._catalog.delete_topic(topic.name)
        if gone is None:
            return _deleted(topic.name, None, _Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN))
        return _deleted(gone.name, gone.id, _Refusal(Code.NONE, None))

    # --- CreatePartitions --------------------------------------------------------------------------------------------

    async def create_partitions(self, context: RequestContext, request: Any) -> Any:
        """Give topics more partitions; each by itself."""
        counts = Counter(topic.name for topic in request.topics)
        results = [_grown(name, _DUPLICATE) for name, count in counts.items() if count > 1]
        for topic in request.topics:
            if counts[topic.name] == 1:
                refusal = self._growth_refusal(context.access, topic)
                if refusal is None and not request.validate_only:
                    refusal = await self._grow(topic)
                results.append(_grown(topic.name, refusal or _Refusal(Code.NONE, None)))
        return CreatePartitionsResponse(results=results)

    async def _grow(self, asked: Any) -> _Refusal | None:
        if await self._catalog.add_partitions(asked.name, asked.count) is not None:
            return None
        # Another request was faster: it deleted the topic, or gave it as many.
        topic = self._catalog.topic(asked.name)
        return _count_refusal(topic, asked.count) if topic else _Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, None)

    def _growth_refusal(self, access: Access, asked: Any) -> _Refusal | None:
        if not access.allows(Operation.ALTER, Resource.TOPIC, asked.name):
            return _Refusal(Code.TOPIC_AUTHORIZATION_FAILED, None)
        topic = self._catalog.topic(asked.name)
        if topic is None:
            return _Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, None)
        refusal = _count_refusal(topic, asked.count)
        if refusal is None and topic.needed:
            refusal = _needed(topic.name)
        return refusal or self._addition_refusal(asked, asked.count - topic.partitions)

    def _addition_refusal(self, asked: Any, additional: int) -> _Refusal | None:
        if asked.assignments is not None and len(asked.assignments) != additional:
            return _Refusal(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {additional} additional partition(s), but only {len(asked.assignments)} "
                "assignment(s) were specified.",
            )
        if additional > PARTITIONS_MAX:
            return _Refusal(Code.POLICY_VIOLATION, "Excessively large number of additional partitions per request.")
        found = (self._replica_refusal(each.broker_ids) for each in asked.assignments or ())
        return next((refusal for refusal in found if refusal is not None), None)


def _checked_configs(configs: Iterable[Any]) -> dict[str, str] | _Refusal:
    nothing = [config.name for config in configs if config.value is None]
    if nothing:
        return _Refusal(Code.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nothing)}")
    try:
        return check_topic_configs({config.name: config.value for config in configs})
    except ConfigurationError as error:
        return _Refusal(Code.INVALID_CONFIG, config_fault(error))


def _exists(name: str) -> _Refusal:
    return _Refusal(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _needed(name: str) -> _Refusal:
    return _Refusal(Code.POLICY_VIOLATION, f"The topic {name} belongs to the coordinators of this server.")


def _count_refusal(topic: Topic, count: int) -> _Refusal | None:
    if count == topic.partitions:
        return _Refusal(Code.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if count < topic.partitions:
        return _Refusal(
            Code.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.partitions} partition(s); {count} would not be an increase.",
        )
    return None


def _may_see(access: Access, name: str) -> bool:
    """True for who may delete every topic, or describe this one."""
    return access.allows(Operation.DELETE, Resource.CLUSTER, CLUSTER_NAME) or access.allows(
        Operation.DESCRIBE, Resource.TOPIC, name
    )


def _may_delete(access: Access, name: str) -> bool:
    return access.allows(Operation.DELETE, Resource.CLUSTER, CLUSTER_NAME) or access.allows(
        Operation.DELETE, Resource.TOPIC, name
    )


def _sorted_out(request: Any, version: int) -> tuple[list[str], list[uuid.UUID], list[Any]]:
    """The names and ids to delete, each once, and the answers for what is neither (ControllerApis.deleteTopics)."""
    names: list[str] = []
    ids: list[uuid.UUID] = []
    results = []
    if version < _DELETE_IDS_VERSION:
        names = list(request.topic_names)
    else:
        for topic in request.topics:
            if topic.name is None and not topic.topic_id:
                refusal = _Refusal(Code.INVALID_REQUEST, "Neither topic name nor id were specified.")
                results.append(_deleted(None, None, refusal))
            elif topic.name is None:
                ids.append(topic.topic_id)
            elif not topic.topic_id:
                names.append(topic.name)
            else:
                refusal = _Refusal(Code.INVALID_REQUEST, "You may not specify both topic name and topic id.")
                results.append(_deleted(topic.name, topic.topic_id, refusal))
    name_counts, id_counts = Counter(names), Counter(ids)
    results += [_deleted(name, None, _DUPLICATE) for name, count in name_counts.items() if count > 1]
    duplicate_id = _Refusal(Code.INVALID_REQUEST, "Duplicate topic id.")
    results += [_deleted(None, each, duplicate_id) for each, count in id_counts.items() if count > 1]
    return (
        [name for name, count in name_counts.items() if count == 1],
        [each for each, count in id_counts.items() if count == 1],
        results,
    )


def _created_result(name: str, topic_id: uuid.UUID | None, **fields: Any) -> Any:
    given = {
        "error_code": Code.NONE,
        "error_message": None,
        "topic_config_error_code": Code.NONE,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
        **fields,
    }
    return _Created(name=name, topic_id=topic_id, **given)


def _created_refused(name: str, refusal: _Refusal) -> Any:
    return _created_result(name, None, error_code=refusal.code, error_message=refusal.message)


def _deleted(name: str | None, topic_id: uuid.UUID | None, outcome: _Refusal) -> Any:
    return _Deleted(name=name, topic_id=topic_id, error_code=outcome.code, error_message=outcome.message)


def _grown(name: str, outcome: _Refusal) -> Any:
    return _Grown(name=name, error_code=outcome.code, error_message=outcome.message)
