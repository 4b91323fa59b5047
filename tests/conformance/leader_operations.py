"""What partition leaders and group coordinators are asked, and what a transaction coordinator keeps."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import DeleteRecordsRequest, DescribeProducersRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.producer import ProduceRequest, WriteTxnMarkersRequest

from spark_2pc_sink.ids import NO_PRODUCER_ID
from spark_2pc_sink.reference.coordinator.states import StateId
from spark_2pc_sink.reference.internal_topics import TransactionLogValue, decode_value
from tests.conformance.operations import NO_PAIR, CoordinatorEpoch, Offset, Pair, Partition, ProducerId, by_topic
from tests.unit.reference.batches import client_batch, message, read_back, seen

_FETCH_VERSION: Final = 12
_FETCH_WAIT_MS: Final = 0
_FETCH_BYTES_MAX: Final = 1 << 20
_PRODUCE_TIMEOUT_MS: Final = 10_000
#: Times differ between servers that behave alike.
_TIMES: Final = re.compile(r"-?\d{10,}")


@dataclass(frozen=True, kw_only=True)
class Write:
    partition: Partition
    pair: Pair = NO_PAIR
    sequence: int = -1
    count: int = 1
    transactional: bool = True
    control: bool = False
    value: bytes = b"x"
    #: The checksum does not fit the bytes.
    broken: bool = False
    #: How often the batch comes.
    batches: int = 1
    #: Other bytes than those that the fields above would give.
    records: bytes | None = None

    def batch(self, now_ms: int) -> bytes:
        if self.records is not None:
            return self.records
        made = client_batch(
            [self.value] * self.count,
            timestamps_ms=now_ms,
            producer=self.pair,
            sequence=self.sequence,
            transactional=self.transactional,
            control=self.control,
        )
        return made[:-1] + bytes([made[-1] ^ 1]) if self.broken else made * self.batches


@dataclass(frozen=True, kw_only=True)
class Produce:
    """Produce with acks=all: code, offset, whether the answer says when it was appended, and where the log starts.

    And the text beside the code, and of a batch that is refused for its records, which they are and why.
    """

    tid: str | None
    writes: tuple[Write, ...]
    now_ms: int
    version: int = 12

    def request(self) -> Any:
        topics: dict[str, list[Any]] = {}
        for write in self.writes:
            topic, index = write.partition
            topics.setdefault(topic, []).append({"index": index, "records": write.batch(self.now_ms)})
        return message(
            ProduceRequest,
            transactional_id=self.tid,
            acks=-1,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=[{"name": name, "partition_data": data} for name, data in topics.items()],
        )

    def result(self, response: Any) -> Any:
        return {
            (topic.name, each.index): (
                each.error_code,
                Offset(each.base_offset, (topic.name, each.index)),
                each.log_append_time_ms >= 0,
                each.log_start_offset >= 0,
                tuple(
                    (error.batch_index, _TIMES.sub("…", error.batch_index_error_message or ""))
                    for error in each.record_errors or ()
                ),
                each.error_message,
            )
            for topic in response.responses
            for each in topic.partition_responses
        }


@dataclass(frozen=True, kw_only=True)
class FetchOffsets:
    """OffsetFetch of one group; ``stable`` refuses what a transaction still decides."""

    group: str
    partitions: tuple[Partition, ...]
    stable: bool = False
    version: int = 8

    def request(self) -> Any:
        topics = [{"name": name, "partition_indexes": found} for name, found in by_topic(self.partitions)]
        groups = [{"group_id": self.group, "topics": topics}]
        return message(OffsetFetchRequest, groups=groups, require_stable=self.stable)

    def result(self, response: Any) -> Any:
        return {
            (topic.name, each.partition_index): (each.error_code, each.committed_offset)
            for group in response.groups
            for topic in group.topics
            for each in topic.partitions
        }


@dataclass(frozen=True, kw_only=True)
class Marker:
    pair: Pair
    commit: bool
    partitions: tuple[Partition, ...]
    coordinator_epoch: int = 0
    transaction_version: int = 0


@dataclass(frozen=True, kw_only=True)
class Markers:
    """WriteTxnMarkers; v1 says nothing of the transaction version."""

    markers: tuple[Marker, ...]
    version: int = 2

    def request(self) -> Any:
        markers = [
            {
                "producer_id": each.pair[0],
                "producer_epoch": each.pair[1],
                "transaction_result": each.commit,
                "topics": [{"name": name, "partition_indexes": found} for name, found in by_topic(each.partitions)],
                "coordinator_epoch": each.coordinator_epoch,
                "transaction_version": each.transaction_version,
            }
            for each in self.markers
        ]
        return message(WriteTxnMarkersRequest, markers=markers)

    def result(self, response: Any) -> Any:
        return {
            (ProducerId(marker.producer_id), (topic.name, each.partition_index)): each.error_code
            for marker in response.markers
            for topic in marker.topics
            for each in topic.partitions
        }


@dataclass(frozen=True, kw_only=True)
class Producers:
    partition: Partition
    #: Leave out every other producer: those of tests that used the partition before.
    only: tuple[int, ...] | None = None
    version: int = 0

    def request(self) -> Any:
        name, index = self.partition
        return message(DescribeProducersRequest, topics=[{"name": name, "partition_indexes": [index]}])

    def result(self, response: Any) -> Any:
        found = response.topics[0].partitions[0]
        if found.error_code:
            return found.error_code
        return sorted(
            (
                ProducerId(each.producer_id),
                each.producer_epoch,
                each.last_sequence,
                CoordinatorEpoch(each.coordinator_epoch),
                Offset(each.current_txn_start_offset, self.partition),
            )
            for each in found.active_producers
            if self.only is None or each.producer_id in self.only
        )


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Fetch of one partition: code, high watermark, last stable offset, aborted transactions, batches.

    Kafka lists aborted transactions beyond what it returns, depending on its files: only those that begin in what is
    returned are kept.
    """

    partition: Partition
    offset: int
    committed: bool = False
    bytes_max: int = _FETCH_BYTES_MAX
    version: int = _FETCH_VERSION

    def request(self) -> Any:
        topic, index = self.partition
        wanted = {"partition": index, "fetch_offset": self.offset, "partition_max_bytes": self.bytes_max}
        return message(
            FetchRequest,
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=0,
            max_bytes=self.bytes_max,
            isolation_level=int(self.committed),
            session_epoch=-1,
            topics=[{"topic": topic, "partitions": [wanted]}],
            forgotten_topics_data=[],
            rack_id="",
        )

    def result(self, response: Any) -> Any:
        found = response.responses[0].partitions[0]
        if found.error_code:
            return (found.error_code,)
        batches = read_back(bytes(found.records or b""))
        last = batches[-1].last_offset if batches else -1
        aborted = found.aborted_transactions
        return (
            0,
            self._offset(found.high_watermark),
            self._offset(found.last_stable_offset),
            None
            if aborted is None
            else [
                (ProducerId(each.producer_id), self._offset(each.first_offset))
                for each in aborted
                if each.first_offset <= last
            ],
            [self._shown(each) for each in batches],
        )

    def _shown(self, batch: Any) -> tuple[Any, ...]:
        records = list(batch)
        marker, coordinator_epoch = "", -1
        if batch.is_control_batch:
            marker = "ABORT" if records[0].abort else "COMMIT"
            (_, coordinator_epoch) = struct.unpack(">hi", records[0].value)
        return (
            self._offset(batch.base_offset),
            self._offset(batch.last_offset),
            ProducerId(batch.producer_id),
            batch.producer_epoch,
            batch.base_sequence,
            batch.is_transactional,
            marker,
            CoordinatorEpoch(coordinator_epoch),
            () if marker else tuple(each.value for each in records),
        )

    def _offset(self, value: int) -> Offset:
        return Offset(value, self.partition)


@dataclass(frozen=True, kw_only=True)
class ListOffsets:
    """ListOffsets of one partition at a timestamp: -1 latest, -2 earliest."""

    partition: Partition
    timestamp_ms: int = -1
    committed: bool = False
    version: int = 7

    def request(self) -> Any:
        name, index = self.partition
        topics = [{"name": name, "partitions": [{"partition_index": index, "timestamp": self.timestamp_ms}]}]
        return message(ListOffsetsRequest, replica_id=-1, isolation_level=int(self.committed), topics=topics)

    def result(self, response: Any) -> Any:
        found = response.topics[0].partitions[0]
        return found.error_code, Offset(found.offset, self.partition)


@dataclass(frozen=True, kw_only=True)
class DeleteRecords:
    """DeleteRecords of one partition: code, and the first offset that is left."""

    partition: Partition
    offset: int
    version: int = 2

    def request(self) -> Any:
        name, index = self.partition
        topics = [{"name": name, "partitions": [{"partition_index": index, "offset": self.offset}]}]
        return message(DeleteRecordsRequest, topics=topics, timeout_ms=_PRODUCE_TIMEOUT_MS)

    def result(self, response: Any) -> Any:
        found = response.topics[0].partitions[0]
        return found.error_code, Offset(found.low_watermark, self.partition)


TRANSACTION_LOG: Final[Partition] = ("__transaction_state", 0)
_BYTES_MAX: Final = 50_000_000


@dataclass(frozen=True, kw_only=True)
class StateRecords:
    """The records of one transactional id, oldest first; times are told only as whether there is one.

    Each is: version of the value, state, producer id, epoch, timeout, whether there is a start, partitions (None where
    the field is null), tagged fields. None is a tombstone.
    """

    tid: str
    version: int = 12

    def request(self) -> Any:
        return Fetch(partition=TRANSACTION_LOG, offset=0, bytes_max=_BYTES_MAX).request()

    def result(self, response: Any) -> Any:
        found = response.responses[0].partitions[0]
        if found.error_code:
            return found.error_code
        key = struct.pack(">hh", 0, len(self.tid)) + self.tid.encode()
        return [_decoded(each.value) for each in seen(bytes(found.records or b"")) if each.key == key]


def _decoded(data: bytes | None) -> Any:
    if data is None:
        return None
    value = decode_value(TransactionLogValue, data, peer="the server")
    topics = value.transaction_partitions
    partitions = topics and sorted((each.topic, index) for each in topics for index in each.partition_ids)
    tags: dict[str, Any] = {}
    for name, number in (("previous", value.previous_producer_id), ("next", value.next_producer_id)):
        if number != NO_PRODUCER_ID:
            tags[name] = ProducerId(number)
    if value.client_transaction_version:
        tags["client"] = value.client_transaction_version
    return (
        int.from_bytes(data[:2], "big"),
        StateId(value.transaction_status).label,
        ProducerId(value.producer_id),
        value.producer_epoch,
        value.transaction_timeout_ms,
        value.transaction_start_timestamp_ms >= 0,
        partitions,
        tags,
    )
