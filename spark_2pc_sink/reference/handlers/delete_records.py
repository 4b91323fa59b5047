"""DeleteRecords (KIP-107)."""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.admin import DeleteRecordsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import Operation
from spark_2pc_sink.reference.handlers.topic_lookup import find_log, topic_refusal
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext

_TopicResult = DeleteRecordsResponse.DeleteRecordsTopicResult
_PartitionResult = _TopicResult.DeleteRecordsPartitionResult

#: In place of an offset: everything that is there (``DeleteRecordsRequest.HIGH_WATERMARK``).
_EVERYTHING: Final = -1
_NO_LOW_WATERMARK: Final = -1


class DeleteRecordsHandlers:
    """DeleteRecords v0 to v2.

    Args:
        catalog: where the logs are, and where it is kept from which offset on.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def handlers(self) -> Handlers:
        """The versions are those of Kafka 4.4.0."""
        return {Api.DELETE_RECORDS: Handler(0, 2, self.delete_records)}

    async def delete_records(self, context: RequestContext, request: Any) -> Any:
        """Move the start of each log (``ReplicaManager.deleteRecordsOnLocalLog``); durable before the answer."""
        return DeleteRecordsResponse(
            throttle_time_ms=0, topics=[await self._delete(context, topic) for topic in request.topics]
        )

    async def _delete(self, context: RequestContext, topic: Any) -> Any:
        refusal = self._refusal(context, topic.name)
        codes: dict[int, Code] = {}
        starts: dict[int, int] = {}
        for asked in topic.partitions:
            found = refusal or self._start(topic.name, asked.partition_index, asked.offset)
            if isinstance(found, Code):
                codes[asked.partition_index] = found
            else:
                starts[asked.partition_index] = found
        if starts:
            await self._catalog.delete_records(topic.name, starts)
        return _TopicResult(
            name=topic.name,
            partitions=[
                self._result(topic.name, asked.partition_index, codes.get(asked.partition_index, Code.NONE))
                for asked in topic.partitions
            ],
        )

    def _refusal(self, context: RequestContext, name: str) -> Code | None:
        topic = self._catalog.topic(name)
        internal = topic is not None and topic.internal
        return topic_refusal(context, Operation.DELETE, name) or (Code.INVALID_TOPIC_EXCEPTION if internal else None)

    def _start(self, name: str, partition: int, offset: int) -> int | Code:
        """The first offset to keep, or why not."""
        log = find_log(self._catalog, name, partition)
        if isinstance(log, Code):
            return log
        if not log.settings.deletable:
            return Code.POLICY_VIOLATION
        if offset == _EVERYTHING:
            return log.high_watermark
        # What is deleted already is so again; Code and offset are told apart by their types.
        return offset if 0 <= offset <= log.high_watermark else Code.OFFSET_OUT_OF_RANGE

    def _result(self, name: str, partition: int, code: Code) -> Any:
        log = code or find_log(self._catalog, name, partition)  # it may have been deleted meanwhile
        if isinstance(log, Code):
            return _PartitionResult(partition_index=partition, low_watermark=_NO_LOW_WATERMARK, error_code=log)
        return _PartitionResult(partition_index=partition, low_watermark=log.log_start_offset, error_code=Code.NONE)
