"""The sender of a few record batches: all of one transaction at once, and each acknowledged when it returns.

A `ProduceSession` asks first where each log ends, so as to find another writer with its pair. Who sends by this one
has its pair for itself, from InitProducerId or EndTxn, and hands it to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.batch_sender import REQUEST_BYTES, BatchSender, Lane, OpenTransaction, produce_version_max
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.connection_failures import NodeUnavailableError
from spark_2pc_sink.producer.encoding_options import TopicLimits
from spark_2pc_sink.producer.error_policy import PRODUCE_RETRIED, produce_error
from spark_2pc_sink.producer.leader_lookup import LeaderFinder
from spark_2pc_sink.producer.partition_queue import Batch, PartitionQueue
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, LOG_OVERHEAD, LOG_OVERHEAD_BYTES, next_sequence, read_header
from spark_2pc_sink.wire.framed_request import RecordBytes, produce_request
from spark_2pc_sink.wire.record_batch import assign_producer
from spark_2pc_sink.wire.replies import ProducedPartition

_log = sink_log(__name__)

#: What is not asked of the topic: the broker refuses a batch that is too large for it.
_NOT_ASKED: Final = TopicLimits(message_bytes_max=None, create_time=None)


@dataclass(frozen=True)
class PlacedBatch:
    """A record batch, and where it goes.

    Attributes:
        partition: where to.
        payload: the batch; producer and sequence are filled in when it is sent.
        record_count: how many records it has.
    """

    partition: TopicPartition
    payload: RecordBytes
    record_count: int


@dataclass(frozen=True)
class AcknowledgedBatches:
    """Where the records of some batches are.

    Attributes:
        offsets: the first and the last offset in each partition.
        topic_ids: topic to Kafka's id of it; without those of a broker that has none.
    """

    offsets: Mapping[TopicPartition, tuple[int, int]]
    topic_ids: Mapping[str, str]


class SendBatches(Protocol):
    """Sends the batches of one transaction; `BatchListSender.send` is the real one."""

    def __call__(
        self, producer: ProducerIdAndEpoch, transaction_version: int, batches: Sequence[PlacedBatch]
    ) -> AcknowledgedBatches:
        """See `BatchListSender.send`."""


class BatchListSender:
    """Sends for one transactional id, whose pair nobody else has.

    Args:
        cluster: connections; not closed by this object.
        transactional_id: whose transactions.
        options: time-outs and back-off.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, options: KafkaOptions) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._options = options

    def send(
        self, producer: ProducerIdAndEpoch, transaction_version: int, batches: Sequence[PlacedBatch]
    ) -> AcknowledgedBatches:
        """Send, and wait for every acknowledgement.

        Args:
            producer: the pair of the transaction, which nobody has sent with before.
            transaction_version: of the cluster; below 2 the partitions must have been added to the transaction.
            batches: those of one partition in their order.

        Raises:
            FencedError, AbortableError, UnknownTopicError, AuthorizationError, KafkaError: a broker refused.
            ConfigurationError: a batch is larger than its topic takes.
            KafkaTimeoutError: a batch was not acknowledged within ``delivery_timeout_ms``, beside the first try.
        """
        version_max = produce_version_max(transaction_version)
        return self._send_at_once(producer, version_max, batches) or self._send_queued(
            producer, transaction_version, batches
        )

    def _send_at_once(
        self, producer: ProducerIdAndEpoch, version_max: int, batches: Sequence[PlacedBatch]
    ) -> AcknowledgedBatches | None:
        """One request to one broker, as most transactions need; None where they need more.

        What has to be sent again is left to the queue, in the same order with the same sequence numbers: what the
        broker has appended already it appends no second time.
        """
        payloads = {
            each.partition: assign_producer(each.payload, producer=producer, base_sequence=0) for each in batches
        }
        leaders = {self._cluster.leader(partition) for partition in payloads}
        leader = leaders.pop() if len(leaders) == 1 else None
        fits = sum(len(each) for each in payloads.values()) + REQUEST_BYTES <= self._options.max_request_bytes
        if leader is None or len(payloads) < len(batches) or not fits:
            return None
        deadline = self._cluster.deadline(self._options.request_timeout_ms)
        try:
            request = produce_request(
                self._transactional_id,
                payloads,
                version=self._cluster.version(leader, Api.PRODUCE, deadline, at_most=version_max),
                timeout_ms=self._options.request_timeout_ms,
            )
            answer_later = self._cluster.begin(leader, request, deadline)
            if answer_later is None:
                return None
            answers = answer_later()
        except NodeUnavailableError as error:
            _log.info("Produce: %s; sending again", error)
            return None
        offsets: dict[TopicPartition, tuple[int, int]] = {}
        for batch in batches:
            answer = answers.get(batch.partition)
            if answer is None or answer.error_code in PRODUCE_RETRIED or _is_placeless(answer):
                return None
            if answer.error_code != Code.NONE:
                unsent = Batch(0, batch.payload, batch.record_count, None, deadline_s=0.0)
                raise produce_error(batch.partition, unsent, answer, producer)
            offsets[batch.partition] = (answer.base_offset, answer.base_offset + batch.record_count - 1)
        return self._acknowledged(offsets)

    def _send_queued(
        self, producer: ProducerIdAndEpoch, transaction_version: int, batches: Sequence[PlacedBatch]
    ) -> AcknowledgedBatches:
        transaction = OpenTransaction(self._transactional_id, producer, transaction_version)
        sender = BatchSender(self._cluster, transaction, self._options)
        lanes: dict[TopicPartition, Lane] = {}
        with sender.running():
            for batch in batches:
                lane = lanes.get(batch.partition)
                if lane is None:
                    finder = LeaderFinder(self._cluster, batch.partition)
                    lane = lanes[batch.partition] = Lane(PartitionQueue(batch.partition, 0), finder, _NOT_ASKED)
                payload = assign_producer(batch.payload, producer=producer, base_sequence=lane.sequence)
                lane.sequence = next_sequence(lane.sequence, batch.record_count)
                sender.push(lane, payload, record_count=batch.record_count, row_key=None)
            while not sender.idle:  # bounded: every batch has a deadline
                sender.pump(self._options.retry_backoff_ms / 1000)
        return self._acknowledged({partition: _range_of(lane) for partition, lane in lanes.items()})

    def _acknowledged(self, offsets: Mapping[TopicPartition, tuple[int, int]]) -> AcknowledgedBatches:
        topic_ids = {each.topic: found for each in offsets if (found := self._cluster.topic_id(each.topic))}
        return AcknowledgedBatches(offsets, topic_ids)


def _is_placeless(answer: ProducedPartition) -> bool:
    """A success without an offset: for a batch of ours there is one."""
    return answer.error_code == Code.NONE and answer.base_offset < 0


def _range_of(lane: Lane) -> tuple[int, int]:
    receipt = lane.queue.receipt
    if receipt is None:
        message = "a sender at rest has the receipt of every partition"
        raise AssertionError(message)
    return receipt.first_offset, receipt.last_offset


def joined(batches: Sequence[PlacedBatch]) -> tuple[tuple[str, ...], bytes]:
    """Batches as a database keeps them: their partitions, and their bytes one behind the other."""
    return tuple(str(each.partition) for each in batches), b"".join(each.payload for each in batches)


def parted(partitions: Sequence[str], data: bytes) -> Iterator[PlacedBatch]:
    """The batches that `joined` has put together.

    Raises:
        LocalProtocolError: it has not.
    """
    position = 0
    for name in partitions:
        stop = position + _whole_batch_bytes(data, position)
        if stop > len(data):
            break
        yield PlacedBatch(TopicPartition.parse(name), data[position:stop], read_header(data, position).record_count)
        position = stop
    else:
        if position == len(data):
            return
    raise LocalProtocolError(
        operation="read kept records",
        state=f"{len(data)} bytes for {len(partitions)} partitions",
        rule="there is one record batch for each partition, and nothing else",
    )


def _whole_batch_bytes(data: bytes, position: int) -> int:
    """What the batch at ``position`` takes, by its own word; a header where there is not even that."""
    if position + HEADER_BYTES > len(data):
        return HEADER_BYTES
    length: int = LOG_OVERHEAD.unpack_from(data, position)[1]
    return max(HEADER_BYTES, length + LOG_OVERHEAD_BYTES)
