"""Produce: client records, one batch per partition (semantics of ``KafkaApis.handleProduceRequest``).

The steps are Kafka's: read the batches, authorise, find the partitions, ask the coordinator about transactions new to a
partition, append to every partition, wait once until everything is durable, answer. A batch that is refused because of
some records names them, with Kafka's messages (KIP-467).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from kafka.protocol.producer import ProduceResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import INT64_MAX
from spark_2pc_sink.reference.coordinator.add_partitions import PRODUCE_ADD_VERSION
from spark_2pc_sink.reference.coordinator.events import CLUSTER_NAME, FULL_ACCESS, AclOperation, Resource
from spark_2pc_sink.reference.coordinator.states import Pair
from spark_2pc_sink.reference.handlers.topics import find_topic
from spark_2pc_sink.reference.log.partition_log import NO_OFFSET, LogSettings, PartitionLog, decoded
from spark_2pc_sink.reference.log.producer_state import VerificationGuard
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.protocol import RequestContext, serves
from spark_2pc_sink.reference.storage.batches import BatchError, decode_records, inspect
from spark_2pc_sink.reference.transactions.service import Verification, synced
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, MAGIC, BatchHeader, Buffer, read_header

#: Records of a refused batch that are reported; Kafka reports all, and its clients show three.
RECORD_ERRORS_MAX: Final = 1000


class RefusedRecords(NamedTuple):
    """Why a batch is refused: a code, and the records by their positions in it, with a message for each."""

    code: Code
    message: str | None = None
    records: Sequence[tuple[int, str]] = ()


def find_refused(
    records: Buffer, header: BatchHeader, *, settings: LogSettings, place: str, now_ms: int
) -> RefusedRecords | None:
    """The records for which a batch is refused, and the code, in Kafka's words (``LogValidator``); None if it is valid.

    Timestamps are not checked for a record without a key, so an out-of-range code is about another one. At most
    `RECORD_ERRORS_MAX` are named. A compacted topic refuses unreadable records too.
    """
    # message.timestamp.before.max.ms accepts every record by default.
    earliest_ms, latest_ms = now_ms - INT64_MAX, settings.latest_ms(now_ms)
    named: list[tuple[int, str]] = []
    count, out_of_range = 0, False
    try:
        for position, record in enumerate(decode_records(bytes(records), header)):
            if settings.compacted and record.key is None:
                text = f"Compacted topic cannot accept message without key in topic partition {place}"
            elif record.timestamp_ms > latest_ms:
                out_of_range = True
                text = (
                    f"Timestamp {record.timestamp_ms} of message with offset {position} is out of range. The timestamp "
                    f"should be within [{earliest_ms}, {latest_ms}]"
                )
            else:
                continue
            count += 1
            if count <= RECORD_ERRORS_MAX:
                named.append((position, text))
    except BatchError:
        return RefusedRecords(Code.INVALID_RECORD) if settings.compacted else None
    if out_of_range:
        message = "One or more records have been rejected due to invalid timestamp"
        return RefusedRecords(Code.INVALID_TIMESTAMP, message, named)
    if not named:
        return None
    shown = ", ".join(f"RecordError(batchIndex={at}, message='{text}')" for at, text in named[:3])
    message = (
        f"One or more records have been rejected due to {count} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )
    return RefusedRecords(Code.INVALID_RECORD, message, named)


_TOPIC_ID_VERSION: Final = 13  # the first version that identifies topics by id
_ZSTD_VERSION: Final = 7  # the first version whose client may compress with zstd (KIP-110)
_ZSTD: Final = 4
#: Valid acks values; any but 0 waits for the disk, whether 1 or -1.
_ACKS: Final = {-1, 0, 1}
#: The client id of Kafka's admin client (``AdminUtils.ADMIN_CLIENT_ID``). Any client can use it.
_ADMIN_CLIENT_ID: Final = "__admin_client"
#: Failed appends whose answer omits the log's start offset (``ReplicaManager.appendRecordsToLeader``).
_WITHOUT_LOG_START: Final = {
    Code.CORRUPT_MESSAGE,
    Code.MESSAGE_TOO_LARGE,
    Code.RECORD_LIST_TOO_LARGE,
    Code.KAFKA_STORAGE_ERROR,
}

_Topic: Final = ProduceResponse.TopicProduceResponse
_Answer: Final = _Topic.PartitionProduceResponse


@dataclass(slots=True)
class _Write:
    """One partition of a request, and its answer; ``late_code`` is a batch error that Kafka finds when it appends."""

    records: Any
    answer: Any
    header: BatchHeader | None = None
    late_code: int = 0
    topic: str = ""
    log: PartitionLog | None = None
    guard: VerificationGuard | None = None
    refused: RefusedRecords | None = None

    @classmethod
    def read(cls, partition: Any, version: int) -> _Write:
        records = partition.records
        write = cls(records, _Answer(index=partition.index, base_offset=NO_OFFSET))
        if not records:
            write.code = Code.INVALID_RECORD
            return write
        try:
            write.header = inspect(records)
        except BatchError as error:
            header = read_header(records) if len(records) >= HEADER_BYTES else None
            # Kafka accepts the batch's form (``ProduceRequest.validateRecords``), whatever its content.
            if header is not None and header.magic == MAGIC and header.size_bytes == len(records):
                write.header, write.late_code = header, error.code
            else:
                write.code = error.code
        else:
            if version < _ZSTD_VERSION and write.header.compression == _ZSTD:
                write.code = Code.UNSUPPORTED_COMPRESSION_TYPE
        return write

    @property
    def code(self) -> int:
        return int(self.answer.error_code)

    @code.setter
    def code(self, code: int) -> None:
        self.answer.error_code = code

    @property
    def found(self) -> tuple[PartitionLog, BatchHeader] | None:
        return None if self.code or self.log is None or self.header is None else (self.log, self.header)


class ProduceHandlers:
    def __init__(self, catalog: Catalog, verification: Verification, *, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._verification = verification
        self._now_ms = now_ms

    @serves(Api.PRODUCE, 3, 13)
    async def produce(self, context: RequestContext, request: Any) -> Any:
        version = context.version
        topics = [
            (topic, [_Write.read(each, version) for each in topic.partition_data]) for topic in request.topic_data
        ]
        writes = [write for _, found in topics for write in found]
        transactional = any(write.header is not None and write.header.transactional for write in writes)
        tid, kind = request.transactional_id, Resource.TRANSACTIONAL_ID
        if transactional and (tid is None or not context.access.allows(AclOperation.WRITE, kind, tid)):
            _refuse(writes, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        else:
            for topic, found in topics:
                self._locate(context, topic, found)
            # Before the coordinator is asked: its answer must not become stale while a batch is inspected; other
            # connections continue in the meantime.
            for write in writes:
                if write.found and not write.late_code:
                    write.refused = await self._inspected(write, *write.found)
            if transactional:
                await self._verify(version, tid, writes)
            appended = self._append(context, request.acks, writes)
            context.appended()
            for (_, write), code in zip(appended, await synced(log for log, _ in appended), strict=True):
                if code:
                    # The appended records may be lost in a crash.
                    write.answer = _Answer(index=write.answer.index, error_code=code, base_offset=NO_OFFSET)
        if request.acks != 0:
            responses = [
                _Topic(name=topic.name, topic_id=topic.topic_id, partition_responses=[write.answer for write in found])
                for topic, found in topics
            ]
            return ProduceResponse(responses=responses)
        for failed in (write for write in writes if write.code):
            detail = f"a Produce without acks failed for {failed.topic}-{failed.answer.index}: {failed.code}"
            raise RemoteProtocolError(peer="the client", detail=detail)
        return None

    def _locate(self, context: RequestContext, named: Any, writes: list[_Write]) -> None:
        """Find the logs; a topic's code takes precedence over a batch's error."""
        by_id = context.version >= _TOPIC_ID_VERSION
        name, refusal = find_topic(self._catalog, context, AclOperation.WRITE, named.name, named.topic_id, by_id=by_id)
        if refusal:
            _refuse(writes, refusal)
            return
        for write in writes:
            write.topic = name
            write.log = self._catalog.log(name, write.answer.index)
            if write.log is None:
                write.code = Code.UNKNOWN_TOPIC_OR_PARTITION

    async def _verify(self, version: int, transactional_id: str | None, writes: list[_Write]) -> None:
        """Ask the coordinator, once, about all partitions that are new to the transaction."""
        found = [(write, *each) for write in writes if (each := write.found) is not None and each[1].transactional]
        pairs = {Pair(header.producer_id, header.producer_epoch) for _, _, header in found}
        if len(pairs) > 1:
            _refuse(writes, Code.INVALID_PRODUCER_ID_MAPPING)
            for write in writes:
                write.answer.error_message = "Transactional records contained more than one producer ID"
            return
        if not pairs:
            return
        (pair,) = pairs
        asked: dict[TopicPartition, _Write] = {}
        bumps, now_ms = version >= PRODUCE_ADD_VERSION, self._now_ms()
        for write, log, header in found:
            started = log.start_verification(pair, header.base_sequence, supports_epoch_bump=bumps, now_ms=now_ms)
            if isinstance(started, VerificationGuard):
                write.guard = started
                asked[TopicPartition(write.topic, write.answer.index)] = write
            else:
                write.code = started
        if not asked or transactional_id is None or not self._verification.verifies(version):
            return
        answers = await self._verification.for_produce(version, transactional_id, pair, tuple(asked))
        for partition, write in asked.items():
            # The topic may have been deleted in the meantime.
            write.log = self._catalog.log(partition.topic, partition.partition)
            write.code, write.answer.error_message = answers[partition]
            if write.code == Code.NONE and write.log is None:
                write.code = Code.UNKNOWN_TOPIC_OR_PARTITION

    async def _inspected(self, write: _Write, log: PartitionLog, header: BatchHeader) -> RefusedRecords | None:
        """Check the records if topic or header give a reason to; a batch that is too large is not read."""
        settings, now_ms = log.settings, self._now_ms()
        suspect = settings.compacted or header.max_timestamp_ms > settings.latest_ms(now_ms)
        if not suspect or header.size_bytes > min(settings.message_max_bytes, settings.segment_bytes):
            return None
        place = f"{write.topic}-{write.answer.index}"
        work = partial(find_refused, write.records, header, settings=settings, place=place, now_ms=now_ms)
        return await decoded(header, work)

    def _append(self, context: RequestContext, acks: int, writes: list[_Write]) -> list[tuple[PartitionLog, _Write]]:
        if acks not in _ACKS:
            _refuse((write for write in writes if not write.code), Code.INVALID_REQUIRED_ACKS)
            return []
        now_ms = self._now_ms()
        # Into the coordinators' own logs. Kafka checks only the client id, and WRITE on the topic. Any client can use
        # any client id, and one bad record keeps the coordinator from starting. So the principal is checked too: an
        # authorizer must be configured, and grant it what it grants other brokers.
        internal_allowed = (
            context.client_id == _ADMIN_CLIENT_ID
            and context.access is not FULL_ACCESS
            and context.access.allows(AclOperation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
        )
        appended: list[tuple[PartitionLog, _Write]] = []
        for write in writes:
            if write.found is None:
                continue
            log, header = write.found
            topic = self._catalog.topic(write.topic)
            if topic is not None and topic.internal and not internal_allowed:
                write.code = Code.INVALID_TOPIC_EXCEPTION
                continue
            if header.transactional and self._verification.is_sealed(Pair(header.producer_id, header.producer_epoch)):
                write.code = Code.INVALID_PRODUCER_EPOCH
            elif write.late_code:
                write.code = write.late_code
            elif write.refused is not None:
                write.code, write.answer.error_message = write.refused.code, write.refused.message
                write.answer.record_errors = [
                    _Answer.BatchIndexAndErrorMessage(batch_index=position, batch_index_error_message=text)
                    for position, text in write.refused.records
                ]
            else:
                done = log.append(write.records, header, guard=write.guard, now_ms=now_ms)
                write.code = done.code
                write.answer.base_offset, write.answer.log_append_time_ms = done.base_offset, done.log_append_time_ms
            if write.code not in _WITHOUT_LOG_START:
                write.answer.log_start_offset = log.log_start_offset
            if not write.code:
                appended.append((log, write))
        return appended


def _refuse(writes: Iterable[_Write], code: Code) -> None:
    for write in writes:
        write.code = code
