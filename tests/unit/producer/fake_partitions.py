"""What the brokers of a fake cluster answer about partitions: Produce, Fetch, ListOffsets and the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import DescribeConfigsResponse, DescribeProducersResponse
from kafka.protocol.consumer import FetchResponse, ListOffsetsResponse
from kafka.protocol.producer import ProduceResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.messages import OffsetSpec
from spark_2pc_sink.wire.record_batch import decode_record_batches

#: How many batches of a producer a broker remembers (ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
_REMEMBERED = 5


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    node_id: int
    api: int
    version: int
    body: Any


@dataclass
class FakePartition:
    """The log of one partition; offsets of end markers count as one record."""

    leader: int
    next_offset: int = 0
    log_append_time: bool = False
    #: (pair, base sequence, count, base offset, timestamp) of data batches, oldest first.
    batches: list[tuple[tuple[int, int], int, int, int, int]] = field(default_factory=list)
    raw: list[tuple[int, bytes]] = field(default_factory=list)
    open_producers: list[tuple[int, int]] = field(default_factory=list)
    #: The last stable offset where it is not the end.
    stable_offset: int | None = None
    start_offset: int = 0
    #: What is answered to a question for the first record of a time.
    offset_of_time: int = -1

    def append(self, records: bytes) -> tuple[int, int, int]:
        """Append one batch: (error code, base offset, log append time)."""
        (batch,) = decode_record_batches(records)
        pair = (batch.producer_id, batch.producer_epoch)
        mine = [known for known in self.batches if known[0] == pair]
        for _, sequence, count, offset, timestamp in mine[-_REMEMBERED:]:
            if (sequence, count) == (batch.base_sequence, batch.record_count):
                return Code.NONE, offset, timestamp
        expected = mine[-1][1] + mine[-1][2] if mine else 0
        if batch.base_sequence != expected:
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1
        offset = self.next_offset
        self.batches.append((pair, batch.base_sequence, batch.record_count, offset, batch.max_timestamp_ms))
        self.next_offset += batch.record_count
        return Code.NONE, offset, batch.max_timestamp_ms if self.log_append_time else -1

    @property
    def values(self) -> int:
        """How many records there are."""
        return sum(count for _, _, count, _, _ in self.batches)


class PartitionAnswers:
    """The half of a fake cluster that answers about partitions."""

    partitions: dict[TopicPartition, FakePartition]
    configs: dict[str, str] | None
    broker_configs: dict[str, str] | None

    def _serve_produce(self, received: Received, code: int) -> Any:
        topic_response = ProduceResponse.TopicProduceResponse
        part = topic_response.PartitionProduceResponse
        responses = []
        for topic in received.body.topic_data:
            parts = []
            for data in topic.partition_data:
                log = self.partitions[TopicPartition(topic.name, data.index)]
                result = (code, -1, -1)
                if not code:
                    wrong = log.leader != received.node_id
                    result = (Code.NOT_LEADER_OR_FOLLOWER, -1, -1) if wrong else log.append(bytes(data.records))
                parts.append(
                    part(
                        index=data.index,
                        error_code=result[0],
                        base_offset=result[1],
                        log_append_time_ms=result[2],
                        log_start_offset=0,
                    )
                )
            responses.append(topic_response(name=topic.name, partition_responses=parts))
        return ProduceResponse(version=received.version, responses=responses)

    def _known(self, partition: TopicPartition) -> int:
        return Code.NONE if partition in self.partitions else Code.UNKNOWN_TOPIC_OR_PARTITION

    def _offset(self, partition: TopicPartition, timestamp: int, *, committed: bool) -> int:
        log = self.partitions.get(partition, FakePartition(leader=0))
        if timestamp >= 0:
            return log.offset_of_time
        stable = log.stable_offset if committed else None
        latest = log.next_offset if stable is None else stable
        return log.start_offset if timestamp == OffsetSpec.EARLIEST else latest

    def _serve_list_offsets(self, received: Received, code: int) -> Any:
        topic_response = ListOffsetsResponse.ListOffsetsTopicResponse
        part = topic_response.ListOffsetsPartitionResponse
        topics = [
            topic_response(
                name=topic.name,
                partitions=[
                    part(
                        partition_index=asked.partition_index,
                        error_code=code or self._known(TopicPartition(topic.name, asked.partition_index)),
                        timestamp=-1,
                        offset=self._offset(
                            TopicPartition(topic.name, asked.partition_index),
                            asked.timestamp,
                            committed=received.body.isolation_level == 1,
                        ),
                        leader_epoch=0,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in received.body.topics
        ]
        return ListOffsetsResponse(version=received.version, topics=topics)

    def _serve_describe_configs(self, received: Received, code: int) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        config = result.DescribeConfigsResourceResult
        (asked,) = received.body.resources
        values = self.configs if asked.resource_type == 2 else self.broker_configs
        found = result(
            error_code=code or (Code.TOPIC_AUTHORIZATION_FAILED if values is None else 0),
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=[
                config(name=name, value=value, read_only=False, config_source=1, is_sensitive=False, synonyms=[])
                for name, value in (values or {}).items()
            ],
        )
        return DescribeConfigsResponse(version=received.version, results=[found])

    def _serve_describe_producers(self, received: Received, code: int) -> Any:
        topic_response = DescribeProducersResponse.TopicResponse
        part = topic_response.PartitionResponse
        state = part.ProducerState
        topics = [
            topic_response(
                name=topic.name,
                partitions=[
                    part(
                        partition_index=index,
                        error_code=code,
                        error_message=None,
                        active_producers=[
                            state(
                                producer_id=producer_id,
                                producer_epoch=0,
                                last_sequence=0,
                                last_timestamp=0,
                                coordinator_epoch=0,
                                current_txn_start_offset=start,
                            )
                            for producer_id, start in self.partitions[TopicPartition(topic.name, index)].open_producers
                        ],
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in received.body.topics
        ]
        return DescribeProducersResponse(version=0, topics=topics)

    def _serve_fetch(self, received: Received, code: int) -> Any:
        topic_response = FetchResponse.FetchableTopicResponse
        part = topic_response.PartitionData
        topics = []
        for topic in received.body.topics:
            parts = []
            for asked in topic.partitions:
                log = self.partitions[TopicPartition(topic.topic, asked.partition)]
                # One batch per answer, so that a reader has to come again.
                batches = [raw for offset, raw in log.raw if offset >= asked.fetch_offset][:1]
                parts.append(
                    part(
                        partition_index=asked.partition,
                        error_code=code,
                        high_watermark=log.next_offset,
                        last_stable_offset=log.next_offset,
                        log_start_offset=0,
                        aborted_transactions=None,
                        preferred_read_replica=-1,
                        records=b"".join(batches),
                    )
                )
            topics.append(topic_response(topic=topic.topic, partitions=parts))
        return FetchResponse(version=received.version, error_code=0, session_id=0, responses=topics)
