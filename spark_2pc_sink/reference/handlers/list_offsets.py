"""ListOffsets and OffsetForLeaderEpoch: where a partition begins, ends, and was at a time or an epoch."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Any, Final

from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import Operation
from spark_2pc_sink.reference.handlers.topic_lookup import find_log, topic_refusal
from spark_2pc_sink.reference.log.leader_epochs import NO_EPOCH, NO_OFFSET, EpochEnd
from spark_2pc_sink.reference.log.log_values import NOWHERE, FoundOffset, Isolation
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.storage.errors import BatchError
from spark_2pc_sink.reference.transactions.marker_writer import Logs

_ListedTopic: Final = ListOffsetsResponse.ListOffsetsTopicResponse
_Listed: Final = _ListedTopic.ListOffsetsPartitionResponse
_EpochTopic: Final = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EpochEnd: Final = _EpochTopic.EpochEndOffset


class Spec(IntEnum):
    """Timestamps that are none (``ListOffsetsRequest``)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


#: What is answered where the end of an epoch is not known.
UNKNOWN_END: Final = EpochEnd(NO_EPOCH, NO_OFFSET)

#: First version of the request that may ask for each; a lower one, or another number, is answered 35.
_SPEC_VERSIONS: Final[dict[int, int]] = {
    Spec.LATEST: 1,
    Spec.EARLIEST: 1,
    Spec.MAX_TIMESTAMP: 7,
    Spec.EARLIEST_LOCAL: 8,
    Spec.LATEST_TIERED: 9,
    Spec.EARLIEST_PENDING_UPLOAD: 11,
}


class ListOffsetsHandlers:
    """ListOffsets v1 to v11 and OffsetForLeaderEpoch v2 to v4.

    Args:
        logs: the catalog.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def handlers(self) -> Handlers:
        """The versions are those of Kafka 4.4.0."""
        return {
            Api.LIST_OFFSETS: Handler(1, 11, self.list_offsets),
            Api.OFFSET_FOR_LEADER_EPOCH: Handler(2, 4, self.offset_for_leader_epoch),
        }

    async def list_offsets(self, context: RequestContext, request: Any) -> Any:
        """ListOffsets; a partition that is named twice is refused, and answered once, as in Kafka."""
        isolation = Isolation.READ_COMMITTED if request.isolation_level == 1 else Isolation.READ_UNCOMMITTED
        named = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
        topics: dict[str, dict[int, Any]] = {}
        for topic in request.topics:
            rows = topics.setdefault(topic.name, {})
            refusal = topic_refusal(context, Operation.DESCRIBE, topic.name)
            for wanted in topic.partitions:
                index = wanted.partition_index
                found: FoundOffset | Code = refusal or (
                    Code.INVALID_REQUEST if named[topic.name, index] > 1 else Code.NONE
                )
                found = found or await self._list(topic.name, wanted, isolation, context.version)
                rows[index] = _listed(index, found)
        listed = [_ListedTopic(name=name, partitions=list(rows.values())) for name, rows in topics.items()]
        return ListOffsetsResponse(throttle_time_ms=0, topics=listed)

    async def offset_for_leader_epoch(self, context: RequestContext, request: Any) -> Any:
        """OffsetForLeaderEpoch: where the records of an epoch end (KIP-320)."""
        topics = []
        for topic in request.topics:
            refusal = topic_refusal(context, Operation.DESCRIBE, topic.topic)
            rows = [self._epoch_end(topic.topic, wanted, refusal) for wanted in topic.partitions]
            topics.append(_EpochTopic(topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)

    async def _list(self, topic: str, wanted: Any, isolation: Isolation, version: int) -> FoundOffset | Code:
        if wanted.timestamp < 0 and version < _SPEC_VERSIONS.get(wanted.timestamp, version + 1):
            return Code.UNSUPPORTED_VERSION
        log = find_log(self._logs, topic, wanted.partition_index, leader_epoch=wanted.current_leader_epoch)
        if isinstance(log, Code):
            return log
        try:
            return await _look(log, wanted.timestamp, isolation)
        except BatchError as error:
            return error.code
        except OSError:
            return Code.KAFKA_STORAGE_ERROR

    def _epoch_end(self, topic: str, wanted: Any, refusal: Code) -> Any:
        log = refusal or find_log(self._logs, topic, wanted.partition, leader_epoch=wanted.current_leader_epoch)
        refused = isinstance(log, Code)
        end = UNKNOWN_END if isinstance(log, Code) else log.offset_for_epoch(wanted.leader_epoch)
        return _EpochEnd(
            error_code=log if refused else Code.NONE,
            partition=wanted.partition,
            leader_epoch=end.epoch,
            end_offset=end.end_offset,
        )


async def _look(log: PartitionLog, timestamp: int, isolation: Isolation) -> FoundOffset:
    """The offset that a timestamp or one of `Spec` stands for. Nothing is tiered here: the whole log is local."""
    if timestamp == Spec.LATEST:
        return log.latest(isolation)
    if timestamp in (Spec.EARLIEST, Spec.EARLIEST_LOCAL):
        return log.earliest()
    if timestamp in (Spec.LATEST_TIERED, Spec.EARLIEST_PENDING_UPLOAD):
        return NOWHERE
    if timestamp == Spec.MAX_TIMESTAMP:
        return await log.offset_of_max_timestamp(isolation)
    return await log.offset_for_timestamp(timestamp, isolation)


def _listed(index: int, outcome: FoundOffset | Code) -> Any:
    code, found = (outcome, NOWHERE) if isinstance(outcome, Code) else (Code.NONE, outcome)
    return _Listed(
        partition_index=index,
        error_code=code,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )
