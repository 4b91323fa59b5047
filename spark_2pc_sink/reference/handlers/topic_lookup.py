"""Lookup of the topics and partitions in a request: `find_topic` for a topic, `find_log` for each of its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar
from uuid import UUID

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.events import AclOperation, Resource
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol.api import RequestContext

#: The client sent no leader epoch.
ANY_EPOCH: Final = -1
_Value = TypeVar("_Value")


def find_topic(
    catalog: Catalog,
    context: RequestContext,
    operation: AclOperation,
    *,
    name: str,
    topic_id: UUID | None,
    by_id: bool,
) -> tuple[str, Code]:
    """A topic's name, and the reason for refusing all its partitions, or NONE.

    An unknown name is not such a reason: its partitions are not found. Topics are identified by id if ``by_id``, else
    by name.
    """
    if by_id:
        topic = None if topic_id is None else catalog.topic_by_id(topic_id)
        if topic is None:
            return "", Code.UNKNOWN_TOPIC_ID
        name = topic.name
    return name, topic_refusal(context, operation, name)


def topic_refusal(context: RequestContext, operation: AclOperation, name: str) -> Code:
    allowed = context.access.allows(operation, Resource.TOPIC, name)
    return Code.NONE if allowed else Code.TOPIC_AUTHORIZATION_FAILED


def find_log(catalog: Catalog, topic: str, partition: int, *, leader_epoch: int = ANY_EPOCH) -> PartitionLog | Code:
    log = catalog.log(topic, partition)
    if log is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if leader_epoch in {ANY_EPOCH, log.leader_epoch}:
        return log
    return Code.FENCED_LEADER_EPOCH if leader_epoch < log.leader_epoch else Code.UNKNOWN_LEADER_EPOCH


def by_topic(rows: Iterable[tuple[TopicPartition, _Value]]) -> dict[str, list[tuple[int, _Value]]]:
    topics: dict[str, list[tuple[int, _Value]]] = {}
    for partition, value in rows:
        topics.setdefault(partition.topic, []).append((partition.partition, value))
    return topics
