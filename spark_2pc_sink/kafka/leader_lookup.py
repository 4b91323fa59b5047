"""Leader lookup: requests to a partition's leader, and to any broker about a topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import UNKNOWN_TOPIC_REFRESHES_MAX, Cluster, unknown_topic
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.error_policy import LEADER_MOVED, kafka_error
from spark_2pc_sink.kafka.record_encoder import UNKNOWN_LIMITS, TopicLimits
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.framed_request import RequestTemplate
from spark_2pc_sink.wire.messages import ConfigResource, IsolationLevel, KafkaPart, describe_error

#: After these the leader is looked up again. The last one is returned right after a leader change: until the new
#: leader's high watermark has reached the start of its leadership it reports no end offset (KIP-207).
_ASKED_AGAIN: Final = LEADER_MOVED | {
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.OFFSET_NOT_AVAILABLE,
}


class LeaderFinder:
    """Finds a partition's leader, and decides when a partition does not exist."""

    def __init__(self, cluster: Cluster, partition: TopicPartition) -> None:
        self._cluster = cluster
        self._partition = partition
        self._refreshes_in_vain = 0

    def find(self, deadline: Deadline) -> int | None:
        """The leader, requested from the brokers if unknown; None while the partition has none.

        Raises:
            UnknownTopicError: the partition was missing from several refreshes in a row.
        """
        leader = self._cluster.leaders.get(self._partition)
        if leader is not None:
            return leader
        topic, index = self._partition.topic, self._partition.partition
        found = next((item for item in self._cluster.refresh([topic], deadline).topics if item.name == topic), None)
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error_code
        exists = found is not None and any(part.partition_index == index for part in found.partitions)
        if exists or (describe_error(code).retriable and code != Code.UNKNOWN_TOPIC_OR_PARTITION):
            self._refreshes_in_vain = 0
            return self._cluster.leaders.get(self._partition)
        if code not in {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION}:
            raise kafka_error("Metadata", code, f"topic {topic!r}")
        self._refreshes_in_vain += 1
        if self._refreshes_in_vain >= UNKNOWN_TOPIC_REFRESHES_MAX:
            raise unknown_topic(
                topic, f"partition {index} does not exist; add partitions, or create the topic if it was deleted"
            )
        return None


def ask_leader(cluster: Cluster, partition: TopicPartition, request: RequestTemplate, deadline: Deadline) -> KafkaPart:
    """Ask the current leader of ``partition`` until it answers, and return its answer for the partition.

    Raises:
        KafkaError: the leader refused.
        UnknownTopicError: the partition does not exist.
    """
    finder, api = LeaderFinder(cluster, partition), request.api.name

    def attempt() -> KafkaPart:
        node_id = finder.find(deadline)
        if node_id is None:
            raise NodeUnavailableError("the partition has no leader")
        try:
            found = messages.by_partition(cluster.request(node_id, request, deadline))[partition]
        except NodeUnavailableError:
            cluster.leaders.pop(partition, None)
            raise
        if found.error_code in _ASKED_AGAIN:
            cluster.leaders.pop(partition, None)
            raise NodeUnavailableError(f"broker {node_id} answered {describe_error(found.error_code)}")
        if found.error_code != Code.NONE:
            raise kafka_error(api.title().replace("_", ""), found.error_code, f"partition {partition}")
        return found

    unasked = "the deadline passed before its leader was asked"
    return cluster.until_answered(f"{api} for {partition}", attempt, deadline, otherwise=unasked)


def end_offset(
    cluster: Cluster,
    partition: TopicPartition,
    end: int,
    deadline: Deadline,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> int:
    """One past the last offset (LATEST), the first offset (EARLIEST), or the first record at or after a time.

    Args:
        end: an `OffsetSpec`, or milliseconds since 1970, answered with -1 if every record is older.
        isolation: transactions still open are included (the high watermark), or not (the last stable offset).
    """
    request = messages.list_offsets_request({partition: end}, isolation=isolation)
    return int(ask_leader(cluster, partition, request, deadline).offset)


def ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    request_for: Callable[[Sequence[TopicPartition]], RequestTemplate],
    deadline: Deadline,
) -> dict[TopicPartition, KafkaPart]:
    """The answers of leaders that are known and answer without an error, to one request each, sent at the same time.

    Metadata is requested once for unknown leaders.
    """
    unknown = {partition.topic for partition in partitions if partition not in cluster.leaders}
    if unknown:
        cluster.refresh(unknown, deadline)
    led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        leader = cluster.leaders.get(partition)
        if leader is not None:
            led[leader].append(partition)
    answers = cluster.request_at_once({leader: request_for(each) for leader, each in led.items()}, deadline)
    parts = (item for answer in answers.values() for item in messages.by_partition(answer).items())
    return {partition: part for partition, part in parts if part.error_code == Code.NONE}


def end_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], end: int, deadline: Deadline
) -> dict[TopicPartition, int]:
    """`end_offset` for several partitions; those that `ask_leaders` omits are requested one by one."""
    wanted = list(partitions)
    found = ask_leaders(cluster, wanted, lambda led: messages.list_offsets_request(dict.fromkeys(led, end)), deadline)
    return {
        partition: found[partition].offset if partition in found else end_offset(cluster, partition, end, deadline)
        for partition in wanted
    }


def topic_limits(cluster: Cluster, topic: str, deadline: Deadline) -> TopicLimits:
    """A topic's limits, as far as our permissions show them."""
    sizes, timestamps, cleanup = ("max.message.bytes", "segment.bytes"), "message.timestamp.type", "cleanup.policy"
    request = messages.describe_configs_request(ConfigResource.TOPIC, topic, [*sizes, timestamps, cleanup])
    found = messages.config_values(cluster.call(request, deadline), topic)
    if found is None:
        return UNKNOWN_LIMITS
    given = [(int(value), name) for name in sizes if (value := found.get(name)) is not None]
    bytes_max, name = min(given, default=(None, ""))
    kind = found.get(timestamps)
    return TopicLimits(
        message_bytes_max=bytes_max,
        create_time=None if kind is None else kind == "CreateTime",
        bytes_limit=f"{name} of the topic is {bytes_max}",
        needs_keys="compact" in (found.get(cleanup) or ""),
    )
