"""The facts about topics that a job and its tasks work with, and the connections by which they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import ConfigurationError, RecordRefusedError, RecordTooLargeError
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.leader_lookup import TopicLimits, topic_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_2pc_sink.errors import DataError
    from spark_2pc_sink.ids import TopicPartition
    from spark_2pc_sink.options import KafkaOptions


#: Topics that brokers write themselves: what a client sends there is refused (Kafka: ``Topic.INTERNAL_TOPICS``).
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def name_fault(topic: str) -> str | None:
    """Why no client may write to a topic of this name; None where one may."""
    if topic in _INTERNAL:
        return "this topic is one of Kafka's own"
    try:
        check_topic(topic)
    except ConfigurationError as error:
        return f"no topic can have this name: {error.rule}"
    return None


class Connections:
    """Connections to the brokers, kept from batch to batch. Those on which anything failed are never used again.

    Args:
        kafka: how to reach the brokers.
    """

    def __init__(self, kafka: KafkaOptions) -> None:
        self._kafka = kafka
        self._cluster: Cluster | None = None

    def cluster(self) -> Cluster:
        """The kept ones, or new ones."""
        if self._cluster is None:
            self._cluster = Cluster(self._kafka)
        return self._cluster

    def drop(self) -> None:
        """Close them: something failed on them, or nobody needs them any more."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()


#: Of this Python worker: Spark reuses workers.
_of_worker: dict[KafkaOptions, Connections] = {}


def worker_connections(kafka: KafkaOptions) -> Connections:
    """The connections of this process, for tasks, of which a worker runs one at a time."""
    return _of_worker.setdefault(kafka, Connections(kafka))


@dataclass
class Topics:
    """Facts about topics: fixed by the driver for the sink's topic, asked for once in a task for others.

    Args:
        kafka: how to reach the brokers.
        counts: partitions by topic, as far as known.
        limits: what topics allow, as far as known.
        ids: of topics, as far as known; '' for one that has none (KIP-516).
        ends: of logs before anything of the batch was sent, as far as known.
        own: connections of the driver, where it writes itself; None in tasks, which use those of their worker.
        dead_letters: the topic of the sink's dead letters, which no row may name; None without one.
    """

    kafka: KafkaOptions
    counts: dict[str, int] = field(default_factory=dict)
    limits: dict[str, TopicLimits] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    own: Connections | None = None
    dead_letters: str | None = None

    def fault_of(self, topic: str) -> str | None:
        """Why no row may go to a topic of this name; None where one may."""
        return "the sink's dead letters go there, and nothing else" if topic == self.dead_letters else name_fault(topic)

    @property
    def connections(self) -> Connections:
        """By which brokers are reached from here."""
        return self.own or worker_connections(self.kafka)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        if topic not in self.counts:
            cluster = self.connections.cluster()
            self.counts[topic] = cluster.partition_counts([topic])[topic]
            self.ids[topic] = cluster.topic_id(topic)
        return self.counts[topic]

    def learn(self, error: DataError, limits: Callable[[str], TopicLimits]) -> None:
        """Take a broker's refusal for a limit of its topic, whose settings may be newer, or not to be read.

        Args:
            error: why an attempt has failed.
            limits: of a topic, as far as they were read.
        """
        if isinstance(error, RecordRefusedError) and error.lacks_key:
            self.limits[error.topic] = replace(limits(error.topic), needs_keys=True)
        elif isinstance(error, RecordTooLargeError):
            read = limits(error.topic)
            if read.message_bytes_max is None or read.message_bytes_max >= error.record_bytes:
                self.limits[error.topic] = replace(
                    read, message_bytes_max=error.record_bytes - 1, bytes_limit=error.limit
                )

    def limits_of(self, topic: str) -> TopicLimits:
        """The limits of a topic.

        Raises:
            KafkaTimeoutError: no broker answered.
        """
        if topic not in self.limits:
            cluster = self.connections.cluster()
            self.limits[topic] = topic_limits(cluster, topic, cluster.deadline())
        return self.limits[topic]
