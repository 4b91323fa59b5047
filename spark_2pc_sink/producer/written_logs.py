"""The check that the topics and logs of a batch still have it.

A running driver asks after every batch, so everything is asked at the same time, on connections that are open. Whatever
does not answer at once is asked again in the ordinary way, by which a leader that has moved is found.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.broker_connections import Pending
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.connection_failures import NodeUnavailableError
from spark_2pc_sink.producer.leader_lookup import end_offsets
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.messages import IsolationLevel, OffsetSpec
from spark_2pc_sink.wire.replies import TopicMetadata


def view_logs(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline, *, starts: bool = False
) -> LogsView:
    """Ask for the ids of the topics and the ends of the logs.

    Args:
        cluster: whom to ask.
        partitions: those of a batch.
        deadline: when to give up.
        starts: ask for the first offsets too.

    Raises:
        AuthorizationError: a topic may not be described.
        KafkaError: a broker refused.
        KafkaTimeoutError: no leader of a partition that exists has answered.
    """
    wanted = sorted(set(partitions))
    if not starts and (found := _ask_at_once(cluster, wanted, deadline)) is not None:
        return found
    topics = cluster.existing_topics({partition.topic for partition in wanted}, deadline)
    existing = [each for each in wanted if each.topic in topics and _has(topics[each.topic], each)]
    return LogsView(
        topic_ids={name: topic.topic_id for name, topic in topics.items()},
        ends=end_offsets(cluster, existing, OffsetSpec.LATEST, deadline),
        starts=end_offsets(cluster, existing, OffsetSpec.EARLIEST, deadline) if starts else {},
    )


def _ask_at_once(cluster: Cluster, wanted: list[TopicPartition], deadline: Deadline) -> LogsView | None:
    """Metadata and ListOffsets at the same time; None where anything but a plain answer came."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in wanted:
        leader = cluster.leader(partition)
        if leader is None:
            return None
        by_leader.setdefault(leader, []).append(partition)
    if not by_leader:
        return None
    names = {partition.topic for partition in wanted}
    try:
        pending = [_send_metadata(cluster, next(iter(by_leader)), names, deadline)]
        pending += [_send_list_offsets(cluster, leader, led, deadline) for leader, led in by_leader.items()]
    except NodeUnavailableError:
        return None
    for each in pending:
        cluster.wait(each, deadline)
    if any(not each.is_done or each.exception is not None for each in pending):
        return None
    described, *listed = (each.value for each in pending)
    topics = responses.read_metadata(described).topics
    ends = {key: found for answer in listed for key, found in responses.read_list_offsets(answer).items()}
    plain = all(topic.exists for topic in topics) and len(topics) == len(names)
    if not plain or len(ends) != len(wanted) or any(found.error_code != Code.NONE for found in ends.values()):
        return None
    return LogsView(
        topic_ids={topic.name: topic.topic_id for topic in topics},
        ends={key: found.offset for key, found in ends.items()},
    )


def _send_metadata(cluster: Cluster, node_id: int, names: set[str], deadline: Deadline) -> Pending:
    version = cluster.version(node_id, Api.METADATA, deadline)
    return cluster.send(node_id, messages.metadata_request(names, version=version))


def _send_list_offsets(cluster: Cluster, node_id: int, led: list[TopicPartition], deadline: Deadline) -> Pending:
    version = cluster.version(node_id, Api.LIST_OFFSETS, deadline)
    ends = dict.fromkeys(led, OffsetSpec.LATEST)
    return cluster.send(
        node_id, messages.list_offsets_request(ends, version=version, isolation=IsolationLevel.READ_UNCOMMITTED)
    )


def _has(topic: TopicMetadata, partition: TopicPartition) -> bool:
    return any(each.partition == partition.partition for each in topic.partitions)
