"""The metadata of topics, as the driver asks for it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from spark_2pc_sink.errors import UnknownTopicError
from spark_2pc_sink.producer.encoding_options import TopicLimits
from spark_2pc_sink.producer.leader_lookup import topic_limits
from spark_2pc_sink.sink.transfer.record_forwarder import name_fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.producer.cluster import Cluster


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
