"""Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords (KIP-107) and DescribeProducers (KIP-664).

A Fetch is answered at once if any of its partitions has an error or ``min_bytes`` are available; otherwise it
waits for one of its logs to grow, at most ``max_wait_ms`` in all (``DelayedFetch``). There are no fetch sessions:
every request names all its partitions and is answered with session id 0, which KIP-227 provides for and clients
accept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import DeleteRecordsResponse, DescribeProducersResponse
from kafka.protocol.consumer import FetchResponse, ListOffsetsResponse, OffsetForLeaderEpochResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import AclOperation
from spark_2pc_sink.reference.handlers.topics import find_log, find_topic, topic_refusal
from spark_2pc_sink.reference.log.partition_log import (
    NO_OFFSET,
    NOT_FOUND,
    FoundOffset,
    Isolation,
    OffsetOutOfRangeError,
    PartitionLog,
)
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import name_fault
from spark_2pc_sink.reference.protocol import RequestContext, serves
from spark_2pc_sink.reference.storage.batches import BatchError
from spark_2pc_sink.wire.api_versions import Api

_FetchedTopic: Final = FetchResponse.FetchableTopicResponse
_PartitionData: Final = _FetchedTopic.PartitionData
_ListedTopic: Final = ListOffsetsResponse.ListOffsetsTopicResponse
_EpochTopic: Final = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_DeletedTopic: Final = DeleteRecordsResponse.DeleteRecordsTopicResult
_ProducersTopic: Final = DescribeProducersResponse.TopicResponse
_Producers: Final = _ProducersTopic.PartitionResponse

#: First version of Fetch that identifies topics by id.
_TOPIC_ID_VERSION: Final = 13
#: Most bytes of records in one answer, whatever limit the client sends (``fetch.max.bytes`` of the broker).
FETCH_BYTES_MAX: Final = 57_671_680
#: Longest wait, whatever the client requests; Kafka has no bound, its clients stay far below this.
FETCH_WAIT_MS_MAX: Final = 60_000
#: Requests that continue an earlier session have this epoch or a later one; 0 asks for a session, -1 for none.
_SESSION_EPOCH_FIRST: Final = 1
#: DeleteRecords' special offset for all records (``DeleteRecordsRequest.HIGH_WATERMARK``).
_EVERYTHING: Final = -1
#: Special timestamps of ListOffsets, and the first version that supports each; lower versions, or other numbers, are
#: answered 35. There is no tiered storage: the whole log is local.
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
_SPECIAL_VERSIONS: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}


@dataclass(slots=True)
class _Read:
    """One partition of a Fetch; its answer may be replaced until the end."""

    topic: str
    wanted: Any
    answer: Any
    log: PartitionLog | None = None

    def refuse(self, code: Code) -> None:
        """Replace the answer: before the wait, the partition may have been read without an error."""
        self.log, self.answer = None, _unread(self.wanted, code, aborted_transactions=None, records=b"")


class PartitionHandlers:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @serves(Api.FETCH, 4, 18, only_reads=True)
    async def fetch(self, context: RequestContext, request: Any) -> Any:
        if request.session_id != 0 and request.session_epoch >= _SESSION_EPOCH_FIRST:
            return FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
        topics = [(topic, self._locate(context, topic)) for topic in request.topics]
        bytes_max = min(request.max_bytes, FETCH_BYTES_MAX)
        await self._poll([read for _, found in topics for read in found], request, bytes_max)
        responses = [
            _FetchedTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=[each.answer for each in reads])
            for topic, reads in topics
        ]
        return FetchResponse(responses=responses)

    def _locate(self, context: RequestContext, named: Any) -> list[_Read]:
        by_id = context.version >= _TOPIC_ID_VERSION
        name, refusal = find_topic(self._catalog, context, AclOperation.READ, named.topic, named.topic_id, by_id=by_id)
        reads = []
        for each in named.partitions:
            known = refusal or self._catalog.log(name, each.partition) is not None
            # Unlike with later errors, the list of aborted transactions is not null.
            reads.append(_Read(name, each, _unread(each, refusal if known else Code.UNKNOWN_TOPIC_OR_PARTITION)))
        return reads

    async def _poll(self, reads: list[_Read], request: Any, bytes_max: int) -> None:
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + min(request.max_wait_ms, FETCH_WAIT_MS_MAX) / 1000
        while True:
            for read in reads:
                if not read.answer.error_code:
                    # Again each time: a topic may be deleted while a reader waits.
                    epoch = read.wanted.current_leader_epoch
                    log = find_log(self._catalog, read.topic, read.wanted.partition, leader_epoch=epoch)
                    if isinstance(log, Code):
                        read.refuse(log)
                    else:
                        read.log = log
            # Registered before reading: anything that becomes visible from here on must wake this request.
            changes = {read.log.changed() for read in reads if read.log is not None}
            found = _read_all(reads, _isolation(request), bytes_max)
            left_s, enough = end_s - now_s(), found >= min(request.min_bytes, bytes_max)
            if enough or left_s <= 0 or not changes or any(read.answer.error_code for read in reads):
                return
            await asyncio.wait(changes, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    @serves(Api.LIST_OFFSETS, 1, 11)
    async def list_offsets(self, context: RequestContext, request: Any) -> Any:
        """A partition named twice is refused, and answered once, as in Kafka."""
        isolation = _isolation(request)
        named = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
        topics: dict[str, dict[int, Any]] = {}
        for topic in request.topics:
            rows = topics.setdefault(topic.name, {})
            refusal = topic_refusal(context, AclOperation.DESCRIBE, topic.name)
            for wanted in topic.partitions:
                index = wanted.partition_index
                code = refusal or (Code.INVALID_REQUEST if named[topic.name, index] > 1 else Code.NONE)
                found = NOT_FOUND
                if not code:
                    code, found = await self._list(topic.name, wanted, isolation, context.version)
                rows[index] = _ListedTopic.ListOffsetsPartitionResponse(
                    partition_index=index,
                    error_code=code,
                    timestamp=found.timestamp_ms,
                    offset=found.offset,
                    leader_epoch=found.leader_epoch,
                )
        listed = [_ListedTopic(name=name, partitions=list(rows.values())) for name, rows in topics.items()]
        return ListOffsetsResponse(topics=listed)

    async def _list(self, topic: str, wanted: Any, isolation: Isolation, version: int) -> tuple[Code, FoundOffset]:
        if wanted.timestamp < 0 and version < _SPECIAL_VERSIONS.get(wanted.timestamp, version + 1):
            return Code.UNSUPPORTED_VERSION, NOT_FOUND
        log = find_log(self._catalog, topic, wanted.partition_index, leader_epoch=wanted.current_leader_epoch)
        if isinstance(log, Code):
            return log, NOT_FOUND
        try:
            return Code.NONE, await _find_offset(log, wanted.timestamp, isolation)
        except BatchError as error:
            return error.code, NOT_FOUND
        except OSError:
            return Code.KAFKA_STORAGE_ERROR, NOT_FOUND

    @serves(Api.OFFSET_FOR_LEADER_EPOCH, 2, 4)
    async def offset_for_leader_epoch(self, context: RequestContext, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            refusal = topic_refusal(context, AclOperation.DESCRIBE, topic.topic)
            rows = []
            for wanted in topic.partitions:
                epoch = wanted.current_leader_epoch
                log = refusal or find_log(self._catalog, topic.topic, wanted.partition, leader_epoch=epoch)
                row = _EpochTopic.EpochEndOffset(partition=wanted.partition)
                if isinstance(log, Code):
                    row.error_code = log
                else:
                    row.leader_epoch, row.end_offset = log.offset_for_epoch(wanted.leader_epoch)
                rows.append(row)
            topics.append(_EpochTopic(topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(topics=topics)

    @serves(Api.DELETE_RECORDS, 0, 2)
    async def delete_records(self, context: RequestContext, request: Any) -> Any:
        """Move the start of each log (``ReplicaManager.deleteRecordsOnLocalLog``); durable before the answer."""
        return DeleteRecordsResponse(topics=[await self._delete(context, topic) for topic in request.topics])

    async def _delete(self, context: RequestContext, topic: Any) -> Any:
        known = self._catalog.topic(topic.name)
        refusal = topic_refusal(context, AclOperation.DELETE, topic.name)
        if not refusal and known is not None and known.internal:
            refusal = Code.INVALID_TOPIC_EXCEPTION
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
        rows = []
        for index in (asked.partition_index for asked in topic.partitions):
            log = codes.get(index) or find_log(self._catalog, topic.name, index)  # it may have been deleted meanwhile
            row = _DeletedTopic.DeleteRecordsPartitionResult(partition_index=index, low_watermark=NO_OFFSET)
            if isinstance(log, Code):
                row.error_code = log
            else:
                row.low_watermark = log.log_start_offset
            rows.append(row)
        return _DeletedTopic(name=topic.name, partitions=rows)

    def _start(self, name: str, partition: int, offset: int) -> int | Code:
        log = find_log(self._catalog, name, partition)
        if isinstance(log, Code):
            return log
        if not log.settings.deletable:
            return Code.POLICY_VIOLATION
        if offset == _EVERYTHING:
            return log.high_watermark
        return offset if 0 <= offset <= log.high_watermark else Code.OFFSET_OUT_OF_RANGE

    @serves(Api.DESCRIBE_PRODUCERS, 0, 0)
    async def describe_producers(self, context: RequestContext, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            code = topic_refusal(context, AclOperation.READ, topic.name)
            if name_fault(topic.name) is not None:
                code = Code.INVALID_TOPIC_EXCEPTION
            rows = []
            for index in topic.partition_indexes:
                log, row = code or find_log(self._catalog, topic.name, index), _Producers(partition_index=index)
                if isinstance(log, Code):
                    row.error_code = log
                else:
                    row.active_producers = [
                        _Producers.ProducerState(
                            producer_id=each.producer_id,
                            producer_epoch=each.epoch,
                            last_sequence=each.last_sequence,
                            last_timestamp=each.last_timestamp_ms,
                            coordinator_epoch=each.coordinator_epoch,
                            current_txn_start_offset=NO_OFFSET
                            if each.txn_start_offset is None
                            else each.txn_start_offset,
                        )
                        for each in log.producers()
                    ]
                rows.append(row)
            topics.append(_ProducersTopic(name=topic.name, partitions=rows))
        return DescribeProducersResponse(topics=topics)


def _isolation(request: Any) -> Isolation:
    return Isolation.READ_COMMITTED if request.isolation_level == 1 else Isolation.READ_UNCOMMITTED


def _read_all(reads: Iterable[_Read], isolation: Isolation, bytes_max: int) -> int:
    """Read every partition, in request order, and return the number of bytes read.

    The first non-empty partition returns at least one batch, however large, so that consumers make progress (KIP-74).
    """
    found = 0
    for read in reads:
        log, wanted = read.log, read.wanted
        if log is None:
            continue
        bytes_left = min(wanted.partition_max_bytes, max(0, bytes_max - found))
        try:
            data, aborted = log.read(wanted.fetch_offset, max_bytes=bytes_left, isolation=isolation, min_one=found == 0)
        except OffsetOutOfRangeError:
            read.refuse(Code.OFFSET_OUT_OF_RANGE)
            continue
        except OSError:
            read.refuse(Code.KAFKA_STORAGE_ERROR)
            continue
        kind = _PartitionData.AbortedTransaction
        listed = None if aborted is None else [kind(producer_id=each, first_offset=first) for each, first in aborted]
        read.answer = _PartitionData(
            partition_index=wanted.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=listed,
            records=data,
        )
        found += len(data)
    return found


def _unread(wanted: Any, code: Code, **fields: Any) -> Any:
    return _PartitionData(partition_index=wanted.partition, error_code=code, high_watermark=NO_OFFSET, **fields)


async def _find_offset(log: PartitionLog, timestamp: int, isolation: Isolation) -> FoundOffset:
    if timestamp == _LATEST:
        return log.latest(isolation)
    if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
        return log.earliest()
    if timestamp in {_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD}:
        return NOT_FOUND
    if timestamp == _MAX_TIMESTAMP:
        return await log.offset_of_max_timestamp(isolation)
    return await log.offset_for_timestamp(timestamp, isolation)
