"""The check that the topics and logs of a batch still have it.

A running driver asks after every batch, so all brokers are asked at the same time, on connections that are open.
Whatever does not answer at once is asked again in the ordinary way, by which a leader that has moved is found.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.leader_lookup import by_leader, end_offsets, ends_request
from spark_2pc_sink.recipe.kept_records import LogsView
from spark_2pc_sink.wire import messages, responses
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.messages import OffsetSpec
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
    """Metadata of one broker, ListOffsets of all; None where anything but a plain answer came."""
    if not wanted or any(cluster.leader(partition) is None for partition in wanted):
        return None
    led_by = by_leader(cluster, wanted, deadline)
    names = {partition.topic for partition in wanted}
    if not all(cluster.knows_versions(leader) for leader in led_by):
        return None
    questions = {
        leader: ends_request(cluster, leader, led, OffsetSpec.LATEST, deadline) for leader, led in led_by.items()
    }
    first, *others = led_by
    metadata = messages.metadata_request(names, version=cluster.version(first, Api.METADATA, deadline))
    answers = cluster.request_at_once({first: metadata, **{each: questions[each] for each in others}}, deadline)
    rest = None if answers is None else cluster.request_at_once({first: questions[first]}, deadline)
    if answers is None or rest is None:
        return None
    topics = responses.read_metadata(answers.pop(first)).topics
    listed = [*rest.values(), *answers.values()]
    ends = {key: found for answer in listed for key, found in responses.read_list_offsets(answer).items()}
    plain = all(topic.exists for topic in topics) and len(topics) == len(names)
    if not plain or len(ends) != len(wanted) or any(found.error_code != Code.NONE for found in ends.values()):
        return None
    return LogsView(
        topic_ids={topic.name: topic.topic_id for topic in topics},
        ends={key: found.offset for key, found in ends.items()},
    )


def _has(topic: TopicMetadata, partition: TopicPartition) -> bool:
    return any(each.partition == partition.partition for each in topic.partitions)
