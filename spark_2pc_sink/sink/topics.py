"""What a task knows of topics, and its connections to ask for the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_2pc_sink.producer.connection import Cluster
from spark_2pc_sink.producer.partition_lookup import TopicLimits, topic_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_2pc_sink.options import KafkaOptions

#: Connections of this Python worker, kept from batch to batch (Spark reuses workers). A cluster on which anything
#: failed is closed and dropped, never handed to the next task.
_clusters: dict[KafkaOptions, Cluster] = {}


class TopicFacts:
    """What the driver asks about topics.

    Args:
        cluster: whom to ask.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each topic has, asked anew for each batch: they may have become more.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        return self._cluster.partition_counts(topics)

    def limits(self, topic: str) -> TopicLimits:
        """What a topic allows.

        Raises:
            KafkaTimeoutError: no broker answered.
        """
        return topic_limits(self._cluster, topic, self._cluster.deadline())


@dataclass
class Topics:
    """Facts about topics: fixed by the driver for the sink's topic, asked for once in a task for others.

    Args:
        kafka: how to reach the brokers.
        counts: partitions by topic, as far as known.
        limits: what topics allow, as far as known.
    """

    kafka: KafkaOptions
    counts: dict[str, int] = field(default_factory=dict)
    limits: dict[str, TopicLimits] = field(default_factory=dict)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        if topic not in self.counts:
            self.counts[topic] = worker_cluster(self.kafka).partition_counts([topic])[topic]
        return self.counts[topic]

    def limits_of(self, topic: str) -> TopicLimits:
        """What a topic allows.

        Raises:
            KafkaTimeoutError: no broker answered.
        """
        if topic not in self.limits:
            cluster = worker_cluster(self.kafka)
            self.limits[topic] = topic_limits(cluster, topic, cluster.deadline())
        return self.limits[topic]


def worker_cluster(kafka: KafkaOptions) -> Cluster:
    """The connections of this process to the brokers of ``kafka``, made on first use."""
    cluster = _clusters.get(kafka)
    if cluster is None:
        cluster = _clusters[kafka] = Cluster(kafka)
    return cluster


def drop_worker_cluster(kafka: KafkaOptions) -> None:
    """Close the connections of this process: something failed on them."""
    cluster = _clusters.pop(kafka, None)
    if cluster is not None:
        cluster.close()
