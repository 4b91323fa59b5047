"""Fetch: what consumers read, with long polling.

A request is answered at once when any of its partitions has an error or when there are ``min_bytes`` to give; else it
waits for one of its logs to show more, at most ``max_wait_ms`` in all (``DelayedFetch``). There are no fetch sessions:
every request names all its partitions and is answered with session id 0, which KIP-227 provides for and clients take
without remark.

ListOffsets and OffsetForLeaderEpoch: where a partition begins, ends, and was at a time or an epoch.

DeleteRecords (KIP-107).

DescribeProducers: the producers that partition leaders know, so that hanging transactions are found (KIP-664).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from kafka.protocol.admin import DeleteRecordsResponse, DescribeProducersResponse
from kafka.protocol.consumer import FetchResponse, ListOffsetsResponse, OffsetForLeaderEpochResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import Operation
from spark_2pc_sink.reference.handlers.topic_lookup import Cluster, find_log, find_topic, topic_refusal
from spark_2pc_sink.reference.log.log_values import (
    NO_EPOCH,
    NO_OFFSET,
    NOWHERE,
    EpochEnd,
    FoundOffset,
    Isolation,
    ProducerDescription,
)
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import name_fault
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.storage.errors import BatchError, OffsetOutOfRangeError
from spark_2pc_sink.reference.transactions.marker_writer import Logs

_VERSION_MIN: Final = 4
_VERSION_MAX: Final = 18
#: From here on topics are named by id.
_TOPIC_ID_VERSION: Final = 13
#: Most bytes of records in one answer, whatever the client asks for (``fetch.max.bytes`` of the broker).
FETCH_BYTES_MAX: Final = 57_671_680
#: Longest wait, whatever the client asks for; Kafka has no bound, its clients stay far below this.
FETCH_WAIT_MS_MAX: Final = 60_000
#: A request of an earlier session goes on with this epoch or a later one; 0 asks for a session, -1 for none.
_SESSION_EPOCH_FIRST: Final = 1
_NONE: Final = -1

_FetchedTopic: Final = FetchResponse.FetchableTopicResponse
_PartitionData: Final = _FetchedTopic.PartitionData
_Aborted: Final = _PartitionData.AbortedTransaction


@dataclass(slots=True)
class _Read:
    """One partition of a request, and what it is answered."""

    topic: str
    wanted: Any
    log: PartitionLog | None = None
    code: int = Code.NONE
    records: Any = b""
    high_watermark: int = _NONE
    last_stable_offset: int = _NONE
    log_start_offset: int = _NONE
    aborted: tuple[tuple[int, int], ...] | None = None


class FetchHandlers:
    """Fetch v4 to v18."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def handlers(self) -> Handlers:
        return {Api.FETCH: Handler(_VERSION_MIN, _VERSION_MAX, self.fetch, only_reads=True)}

    async def fetch(self, context: RequestContext, request: Any) -> Any:
        if request.session_id != 0 and request.session_epoch >= _SESSION_EPOCH_FIRST:
            return FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
        topics = [(topic, self._locate(context, topic)) for topic in request.topics]
        reads = [read for _, found in topics for read in found]
        bytes_max = min(request.max_bytes, FETCH_BYTES_MAX)
        isolation = Isolation.READ_COMMITTED if request.isolation_level == 1 else Isolation.READ_UNCOMMITTED
        await self._poll(
            reads,
            isolation=isolation,
            bytes_max=bytes_max,
            bytes_min=min(request.min_bytes, bytes_max),
            wait_ms_max=min(request.max_wait_ms, FETCH_WAIT_MS_MAX),
        )
        return _response(topics)

    def _locate(self, context: RequestContext, named: Any) -> list[_Read]:
        by_id = context.version >= _TOPIC_ID_VERSION
        name, refusal = find_topic(
            self._cluster, context, Operation.READ, name=named.topic, topic_id=named.topic_id, by_id=by_id
        )
        if refusal:
            return [_refused(name, each, refusal) for each in named.partitions]
        return [
            _refused(name, each, Code.UNKNOWN_TOPIC_OR_PARTITION)
            if self._cluster.log(name, each.partition) is None
            else _Read(name, each)
            for each in named.partitions
        ]

    async def _poll(
        self, reads: list[_Read], *, isolation: Isolation, bytes_max: int, bytes_min: int, wait_ms_max: int
    ) -> None:
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + wait_ms_max / 1000
        while True:
            self._find_logs(reads)
            # Before reading: what is shown from here on must wake.
            changes = {read.log.changed() for read in reads if read.log is not None}
            found = _read_all(reads, isolation, bytes_max)
            left_s = end_s - now_s()
            if found >= bytes_min or left_s <= 0 or not changes or any(read.code for read in reads):
                return
            await asyncio.wait(changes, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def _find_logs(self, reads: Iterable[_Read]) -> None:
        """Anew each time: a topic may be deleted while a reader waits."""
        for read in reads:
            if read.code:
                continue
            wanted = read.wanted
            found = find_log(self._cluster, read.topic, wanted.partition, leader_epoch=wanted.current_leader_epoch)
            if isinstance(found, Code):
                _refuse(read, found)
            else:
                read.log = found


def _read_all(reads: Iterable[_Read], isolation: Isolation, bytes_max: int) -> int:
    """Read every partition, in the order of the request, and return how many bytes there are.

    The first partition that has anything gives at least one batch, however large: else a consumer could never get past
    it (KIP-74).
    """
    left = bytes_max
    found = 0
    for read in reads:
        if read.log is not None and not read.code:
            _read(read, read.log, isolation, max_bytes=min(read.wanted.partition_max_bytes, left), min_one=found == 0)
            found += len(read.records)
            left = max(0, bytes_max - found)
    return found


def _read(read: _Read, log: PartitionLog, isolation: Isolation, *, max_bytes: int, min_one: bool) -> None:
    try:
        data = log.read(read.wanted.fetch_offset, max_bytes=max_bytes, isolation=isolation, min_one=min_one)
    except OffsetOutOfRangeError:
        _refuse(read, Code.OFFSET_OUT_OF_RANGE)
    except OSError:
        _refuse(read, Code.KAFKA_STORAGE_ERROR)
    else:
        read.records = data.records
        read.high_watermark = data.high_watermark
        read.last_stable_offset = data.last_stable_offset
        read.log_start_offset = data.log_start_offset
        read.aborted = data.aborted


def _refused(topic: str, wanted: Any, code: Code) -> _Read:
    """A partition that is not even looked for; unlike later errors its list of aborted transactions is not null."""
    return _Read(topic, wanted, code=code, aborted=())


def _refuse(read: _Read, code: Code) -> None:
    """Answer an error; before the wait the partition may have been read without one."""
    read.code, read.log = code, None
    read.records, read.aborted = b"", None
    read.high_watermark = read.last_stable_offset = read.log_start_offset = _NONE


def _response(topics: list[tuple[Any, list[_Read]]]) -> Any:
    return FetchResponse(
        responses=[
            _FetchedTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=[_partition(read) for read in reads])
            for topic, reads in topics
        ]
    )


def _partition(read: _Read) -> Any:
    aborted = read.aborted
    return _PartitionData(
        partition_index=read.wanted.partition,
        error_code=read.code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [_Aborted(producer_id=producer_id, first_offset=first) for producer_id, first in aborted],
        preferred_read_replica=_NONE,
        records=read.records,
    )


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
    """ListOffsets v1 to v11 and OffsetForLeaderEpoch v2 to v4."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def handlers(self) -> Handlers:
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
        return ListOffsetsResponse(topics=listed)

    async def offset_for_leader_epoch(self, context: RequestContext, request: Any) -> Any:
        """OffsetForLeaderEpoch: where the records of an epoch end (KIP-320)."""
        topics = []
        for topic in request.topics:
            refusal = topic_refusal(context, Operation.DESCRIBE, topic.topic)
            rows = [self._epoch_end(topic.topic, wanted, refusal) for wanted in topic.partitions]
            topics.append(_EpochTopic(topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(topics=topics)

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
        return {Api.DELETE_RECORDS: Handler(0, 2, self.delete_records)}

    async def delete_records(self, context: RequestContext, request: Any) -> Any:
        """Move the start of each log (``ReplicaManager.deleteRecordsOnLocalLog``); durable before the answer."""
        return DeleteRecordsResponse(topics=[await self._delete(context, topic) for topic in request.topics])

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
        return _PartitionResult(partition_index=partition, low_watermark=log.log_start_offset)


_TopicResponse: Final = DescribeProducersResponse.TopicResponse
_PartitionResponse: Final = _TopicResponse.PartitionResponse
_ProducerState: Final = _PartitionResponse.ProducerState


class DescribeProducersHandlers:
    """DescribeProducers v0."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def handlers(self) -> Handlers:
        return {Api.DESCRIBE_PRODUCERS: Handler(0, 0, self.describe_producers)}

    async def describe_producers(self, context: RequestContext, request: Any) -> Any:
        """Every producer id that each partition remembers, whether a transaction is open or not."""
        topics = []
        for topic in request.topics:
            code = self._topic_code(context, topic.name)
            partitions = [self._partition(topic.name, index, code) for index in topic.partition_indexes]
            topics.append(_TopicResponse(name=topic.name, partitions=partitions))
        return DescribeProducersResponse(topics=topics)

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
