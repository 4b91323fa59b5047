"""Fetch: what consumers read, with long polling.

A request is answered at once when any of its partitions has an error or when there are ``min_bytes`` to give; else it
waits for one of its logs to show more, at most ``max_wait_ms`` in all (``DelayedFetch``). There are no fetch sessions:
every request names all its partitions and is answered with session id 0, which KIP-227 provides for and clients take
without remark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.consumer import FetchResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.events import Operation
from spark_2pc_sink.reference.handlers.topic_lookup import Cluster, find_log, find_topic
from spark_2pc_sink.reference.log.log_values import Isolation
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.protocol.api import Api, Handler, Handlers, RequestContext
from spark_2pc_sink.reference.storage.errors import OffsetOutOfRangeError

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

_TopicResponse: Final = FetchResponse.FetchableTopicResponse
_PartitionData: Final = _TopicResponse.PartitionData
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
    """Fetch v4 to v18.

    Args:
        cluster: the catalog.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def handlers(self) -> Handlers:
        """The versions are those of Kafka 4.4.0."""
        return {Api.FETCH: Handler(_VERSION_MIN, _VERSION_MAX, self.fetch, only_reads=True)}

    async def fetch(self, context: RequestContext, request: Any) -> Any:
        """Carry out a request."""
        if request.session_id != 0 and request.session_epoch >= _SESSION_EPOCH_FIRST:
            return FetchResponse(
                throttle_time_ms=0, error_code=Code.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[]
            )
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
        """Read until there is enough, or an error, or the time is over."""
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
        throttle_time_ms=0,
        error_code=Code.NONE,
        session_id=0,
        responses=[
            _TopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[_partition(read) for read in reads])
            for topic, reads in topics
        ],
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
