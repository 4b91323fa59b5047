"""DescribeProducers: what partition leaders know of producers, so that hanging transactions are found (KIP-664)."""

from __future__ import annotations

from typing import Any, Final, Protocol

from kafka.protocol.admin import DescribeProducersResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import Operation, Resource
from spark_2pc_sink.reference.log.log_values import ProducerDescription
from spark_2pc_sink.reference.metadata.catalog_state import Topic
from spark_2pc_sink.reference.metadata.topic_names import name_fault
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.transactions.marker_writer import Logs

_TopicResponse: Final = DescribeProducersResponse.TopicResponse
_PartitionResponse: Final = _TopicResponse.PartitionResponse
_ProducerState: Final = _PartitionResponse.ProducerState


class Cluster(Logs, Protocol):
    """What DescribeProducers needs of the catalog."""

    def topic(self, name: str) -> Topic | None:
        """The topic, or None."""


class ProducerHandlers:
    """DescribeProducers v0.

    Args:
        cluster: the catalog.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def handlers(self) -> Handlers:
        """The version is that of Kafka 4.4.0."""
        return {Api.DESCRIBE_PRODUCERS: Handler(0, 0, self.describe_producers)}

    async def describe_producers(self, context: RequestContext, request: Any) -> Any:
        """Every producer id that each partition remembers, whether a transaction is open or not."""
        topics = []
        for topic in request.topics:
            code = self._topic_code(context, topic.name)
            partitions = [self._partition(topic.name, index, code) for index in topic.partition_indexes]
            topics.append(_TopicResponse(name=topic.name, partitions=partitions))
        return DescribeProducersResponse(throttle_time_ms=0, topics=topics)

    def _topic_code(self, context: RequestContext, name: str) -> Code:
        if name_fault(name) is not None:
            return Code.INVALID_TOPIC_EXCEPTION
        if not context.access.allows(Operation.READ, Resource.TOPIC, name):
            return Code.TOPIC_AUTHORIZATION_FAILED
        return Code.NONE if self._cluster.topic(name) is not None else Code.UNKNOWN_TOPIC_OR_PARTITION

    def _partition(self, topic: str, index: int, code: Code) -> Any:
        log = None if code else self._cluster.log(topic, index)
        if log is None:
            failed = code or Code.UNKNOWN_TOPIC_OR_PARTITION
            return _PartitionResponse(partition_index=index, error_code=failed, error_message=None, active_producers=[])
        return _PartitionResponse(
            partition_index=index,
            error_code=Code.NONE,
            error_message=None,
            active_producers=[_producer(found) for found in log.producers()],
        )


def _producer(found: ProducerDescription) -> Any:
    return _ProducerState(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        last_sequence=found.last_sequence,
        last_timestamp=found.last_timestamp_ms,
        coordinator_epoch=found.coordinator_epoch,
        current_txn_start_offset=found.current_txn_start_offset,
    )
