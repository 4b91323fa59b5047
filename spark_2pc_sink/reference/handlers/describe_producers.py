"""DescribeProducers: the producers that partition leaders know, so that hanging transactions are found (KIP-664)."""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.admin import DescribeProducersResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import Operation
from spark_2pc_sink.reference.handlers.topic_lookup import find_log, topic_refusal
from spark_2pc_sink.reference.log.log_values import ProducerDescription
from spark_2pc_sink.reference.metadata.catalog_state import name_fault
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.transactions.marker_writer import Logs

_TopicResponse: Final = DescribeProducersResponse.TopicResponse
_PartitionResponse: Final = _TopicResponse.PartitionResponse
_ProducerState: Final = _PartitionResponse.ProducerState


class DescribeProducersHandlers:
    """DescribeProducers v0.

    Args:
        logs: the catalog.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

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
        return topic_refusal(context, Operation.READ, name)

    def _partition(self, topic: str, index: int, refusal: Code) -> Any:
        log = refusal or find_log(self._logs, topic, index)
        refused = isinstance(log, Code)
        return _PartitionResponse(
            partition_index=index,
            error_code=log if refused else Code.NONE,
            error_message=None,
            active_producers=[] if isinstance(log, Code) else [_producer(found) for found in log.producers()],
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
