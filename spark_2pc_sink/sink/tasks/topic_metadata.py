"""The metadata of topics, and the connections by which it is asked for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import ConfigurationError, UnknownTopicError
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.leader_lookup import TopicLimits, topic_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_2pc_sink.clock import Clock
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


class TopicMetadata:
    """The driver's questions about topics. One object serves one run of a query.

    Args:
        cluster: whom to ask.
        clock: says when an answer is old.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._limits: dict[str, tuple[TopicLimits, float]] = {}

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each topic has, asked anew for each batch: they may have become more.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        return self._cluster.partition_counts(topics)

    def id_of(self, topic: str) -> str:
        """The topic's id as of its last `counts`; '' where the broker has none."""
        return self._cluster.topic_id(topic)

    def counts_of_existing(self, topics: Iterable[str]) -> dict[str, int]:
        """The same, without those that do not exist.

        Raises:
            AuthorizationError: a topic may not be described.
        """
        found: dict[str, int] = {}
        for topic in topics:
            if name_fault(topic) is None:
                with suppress(UnknownTopicError):
                    found |= self.counts([topic])
        return found

    def limits(self, topic: str) -> TopicLimits:
        """The limits of a topic, asked again when the answer is older than ``metadata.max.age.ms``.

        Raises:
            KafkaTimeoutError: no broker answered.
        """
        limits, until_s = self._limits.get(topic, (None, 0.0))
        if limits is None or self._clock.now_s() >= until_s:
            limits = topic_limits(self._cluster, topic, self._cluster.deadline())
            self._limits[topic] = limits, self._clock.now_s() + self._cluster.options.metadata_max_age_ms / 1000
        return limits


@dataclass
class Topics:
    """Facts about topics: fixed by the driver for the sink's topic, asked for once in a task for others.

    Args:
        kafka: how to reach the brokers.
        counts: partitions by topic, as far as known.
        limits: what topics allow, as far as known.
        ids: of topics, as far as known; '' for one that has none (KIP-516).
        own: connections of the driver, where it writes itself; None in tasks, which use those of their worker.
    """

    kafka: KafkaOptions
    counts: dict[str, int] = field(default_factory=dict)
    limits: dict[str, TopicLimits] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    own: Connections | None = None

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

    def limits_of(self, topic: str) -> TopicLimits:
        """The limits of a topic.

        Raises:
            KafkaTimeoutError: no broker answered.
        """
        if topic not in self.limits:
            cluster = self.connections.cluster()
            self.limits[topic] = topic_limits(cluster, topic, cluster.deadline())
        return self.limits[topic]
