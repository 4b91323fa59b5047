"""Senders for one transaction's records: a session that encodes and checks, and one for a few ready batches.

A session belongs to one transaction and one pair. Several sessions may share both as long as every partition is written
by only one of them: sequence numbers start at 0 in each partition of each transaction, so a second writer's batches
would be taken for duplicates of the first one's and acknowledged without being written. `ProduceSession` therefore
first reads each log's end, checks every first answer, and fails with `BatchRetryError` if another writer must have
been active. `BatchListSender` skips this: its caller owns the pair exclusively, from InitProducerId or EndTxn.
`StickyPartitioner` chooses the partition for each row of the writer.

Everything happens on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.batch_sender import (
    REQUEST_BYTES,
    BatchSender,
    PartitionQueue,
    PartitionReceipt,
    ProducedTransaction,
)
from spark_2pc_sink.kafka.cluster import Cluster, end_offsets, topic_limits, unknown_topic
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.error_policy import PRODUCE_RETRIED, produce_error
from spark_2pc_sink.kafka.record_encoder import (
    ArrowPartitioner,
    EncodingOptions,
    PartitionRows,
    RecordColumns,
    RecordEncoder,
    TopicLimits,
)
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.arrow_layout import EncodedRows, as_one_array
from spark_2pc_sink.wire.batch_format import HEADER_BYTES, read_header
from spark_2pc_sink.wire.messages import OffsetSpec
from spark_2pc_sink.wire.record_batch import EMPTY_DIGEST, EncodedBatch, PlacedBatch, assign_producer, combine_digests

#: Unacknowledged encoded bytes per session; `ProduceSession.append` blocks above it. The same as
#: Java's buffer.memory: many times a connection's in-flight data, little compared with a Spark worker.
UNACKNOWLEDGED_BYTES_MAX: Final = 32 * 1024 * 1024


class ProduceSession:
    """Appends records to a transaction and awaits acknowledgements; requests the ``limits`` and ``ends`` not passed."""

    def __init__(
        self,
        cluster: Cluster,
        transaction: ProducedTransaction,
        options: KafkaOptions,
        *,
        timestamp_ms: int,
        limits: Mapping[str, TopicLimits] | None = None,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self._cluster = cluster
        self._producer = transaction.producer
        self._options = options
        self._encoder = RecordEncoder(EncodingOptions.of(options), timestamp_ms=timestamp_ms, limits=self._limits_of)
        self._sender = BatchSender(cluster, transaction, options)
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._limits = dict(limits or {})
        self._ends = dict(ends or {})
        #: The digest of all records encoded so far; after `flush`, of all records appended.
        self.digest: int = EMPTY_DIGEST
        #: Compressed size of all record batches so far; each is counted once, however often it was sent.
        self.record_bytes: int = 0
        #: Bytes queued since the connections were last driven.
        self._queued_bytes = 0
        self._failure: Exception | None = None
        self._cancelled = False

    def append(self, partition: TopicPartition, rows: EncodedRows) -> None:
        """Append rows to one partition, in order.

        Returns when they are queued, not when they are acknowledged. Queued batches are sent as soon as they fill a
        request of ``max_request_bytes``. Blocks while more than `UNACKNOWLEDGED_BYTES_MAX` bytes are unacknowledged.

        Raises:
            FencedError: the pair is not the newest of its transactional id.
            AbortableError: the transaction must be aborted; the next one may succeed.
            BatchRetryError: another writer wrote to the partition with this pair.
            RecordTooLargeError, RecordRefusedError: a row cannot be sent.
            AuthorizationError, UnknownTopicError, ConfigurationError, KafkaError: the topic cannot be written.
            KafkaTimeoutError: a batch was not acknowledged within ``delivery_timeout_ms``, counting only time spent
                in these calls.
            LocalProtocolError: the session is closed.

        The first error of a session is raised again by every later call.
        """
        with self._failing():
            self._look_up([partition])
            for batch in self._encoder.append(partition, rows):
                self._send(batch)

    def append_encoded(self, batch: EncodedBatch) -> None:
        """Append a batch from a `RecordEncoder`, after earlier rows and batches for its partition."""
        with self._failing():
            self._look_up([batch.partition])
            self._send(batch)

    def look_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Look up partitions before they are written, all together: one by one, each would cost a round trip."""
        with self._failing():
            self._look_up(partitions)

    def flush(self) -> dict[TopicPartition, PartitionReceipt]:
        """Wait until everything is acknowledged; returns each partition's receipt since the session began, if any."""
        with self._failing():
            for batch in self._encoder.finish():
                self._send(batch)
            while not self._sender.idle:  # bounded: every batch has a deadline
                self._pump()
            queues = self._queues.items()
            return {partition: queue.receipt for partition, queue in queues if queue.receipt is not None}

    def cancel(self) -> None:
        """Make a call that waits in another thread end soon, with `BatchRetryError`."""
        self._cancelled = True

    def close(self) -> None:
        """Drop everything without waiting. Sent batches are still part of the transaction."""
        self._failure = self._failure or LocalProtocolError(
            operation="append or flush", state="closed", rule="a session serves one transaction"
        )
        self._encoder.clear()
        self._queues.clear()
        self._sender.clear()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """End the session on any exception: rows may be half processed."""
        if self._failure is not None:
            raise self._failure
        try:
            with self._sender.running():
                yield
        except Exception as error:
            self._failure = error
            raise
        except BaseException:
            self._failure = BatchRetryError(reason="writing to Kafka was interrupted")
            raise

    def _look_up(self, partitions: Iterable[TopicPartition]) -> None:
        new = [partition for partition in dict.fromkeys(partitions) if partition not in self._queues]
        unknown = [partition for partition in new if partition not in self._ends]
        if unknown:
            self._ends |= end_offsets(self._cluster, unknown, OffsetSpec.LATEST, self._cluster.deadline())
        for partition in new:
            self._queues[partition] = PartitionQueue(partition, self._ends[partition], self._limits_of(partition.topic))

    def _limits_of(self, topic: str) -> TopicLimits:
        known = self._limits.get(topic)
        if known is None:
            known = self._limits[topic] = topic_limits(self._cluster, topic, self._cluster.deadline())
        return known

    def _send(self, batch: EncodedBatch) -> None:
        """Queue one batch, and send the queue once it fills a request."""
        # For each request that adds partitions, the coordinator writes the whole list so far.
        queue = self._queues[batch.partition]
        size = self._sender.push(queue, batch)
        self.digest = combine_digests(self.digest, batch.digest)
        self.record_bytes += size
        self._queued_bytes += size
        too_much = self._sender.unacknowledged_bytes > UNACKNOWLEDGED_BYTES_MAX
        if too_much or self._queued_bytes > self._options.max_request_bytes:
            self._queued_bytes = 0
            self._sender.pump(0)
            while self._sender.unacknowledged_bytes > UNACKNOWLEDGED_BYTES_MAX:  # bounded: every batch has a deadline
                self._pump()

    def _pump(self) -> None:
        if self._cancelled:
            raise BatchRetryError(reason="writing to Kafka was cancelled because the attempt failed elsewhere")
        self._sender.pump(self._options.retry_backoff_ms / 1000)


_log = sink_log(__name__)

_ROW_COLUMNS: Final = ("topic", "partition", "key", "value", "headers")


@dataclass(frozen=True)
class AcknowledgedBatches:
    """The first and the last offset in each partition; and Kafka's topic ids by topic, if its broker has one."""

    offsets: Mapping[TopicPartition, tuple[int, int]]
    topic_ids: Mapping[str, str]


#: `BatchListSender.send`: takes the pair, the cluster's transaction.version, and one transaction's batches.
SendBatches: TypeAlias = Callable[[ProducerIdAndEpoch, int, Sequence[PlacedBatch]], AcknowledgedBatches]


class BatchListSender:
    """Sends for one transactional id, whose pair it owns exclusively."""

    def __init__(self, cluster: Cluster, transactional_id: str, options: KafkaOptions) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._options = options

    def send(
        self, producer: ProducerIdAndEpoch, transaction_version: int, batches: Sequence[PlacedBatch]
    ) -> AcknowledgedBatches:
        """Send, and wait for every acknowledgement: for ``delivery_timeout_ms``, excluding the first attempt.

        The pair was not used for sending before. Below transaction.version 2 the partitions must have been added to the
        transaction.
        """
        transaction = ProducedTransaction(self._transactional_id, producer, transaction_version)
        return self._send_at_once(transaction, batches) or self._send_queued(transaction, batches)

    def _send_at_once(
        self, transaction: ProducedTransaction, batches: Sequence[PlacedBatch]
    ) -> AcknowledgedBatches | None:
        """One request to one broker, enough for most transactions; None if more is needed."""
        # Batches to send again keep their sequence numbers: no broker appends one twice.
        payloads = {
            each.partition: assign_producer(each.payload, producer=transaction.producer, base_sequence=0)
            for each in batches
        }
        leaders = {self._cluster.leaders.get(partition) for partition in payloads}
        leader = leaders.pop() if len(leaders) == 1 else None
        fits = sum(len(each) for each in payloads.values()) + REQUEST_BYTES <= self._options.max_request_bytes
        if leader is None or len(payloads) < len(batches) or not fits:
            return None
        timeout_ms = self._options.request_timeout_ms
        request = transaction.request(payloads, timeout_ms=timeout_ms)
        try:
            answer_later = self._cluster.begin(leader, request, self._cluster.deadline(timeout_ms))
            if answer_later is None:
                return None
            answers = answer_later()
        except NodeUnavailableError as error:
            _log.info("Produce: %s; retrying", error)
            return None
        offsets: dict[TopicPartition, tuple[int, int]] = {}
        for batch in batches:
            answer = answers.get(batch.partition)
            if answer is None or answer.error_code in PRODUCE_RETRIED:
                return None
            if answer.error_code != Code.NONE:
                raise produce_error(batch.partition, batch, answer, transaction.producer)
            if answer.base_offset < 0:  # a success without an offset, which is impossible for our own batch
                return None
            offsets[batch.partition] = (answer.base_offset, answer.base_offset + batch.record_count - 1)
        return self._acknowledged(offsets)

    def _send_queued(self, transaction: ProducedTransaction, batches: Sequence[PlacedBatch]) -> AcknowledgedBatches:
        sender = BatchSender(self._cluster, transaction, self._options)
        # Topic limits are not requested: the broker refuses a batch that is too large.
        queues = {each.partition: PartitionQueue(each.partition) for each in batches}
        with sender.running():
            for batch in batches:
                sender.push(queues[batch.partition], batch)
            while not sender.idle:  # bounded: every batch has a deadline
                sender.pump(self._options.retry_backoff_ms / 1000)
        receipts = {partition: queue.receipt for partition, queue in queues.items() if queue.receipt is not None}
        return self._acknowledged({at: (found.first_offset, found.last_offset) for at, found in receipts.items()})

    def _acknowledged(self, offsets: Mapping[TopicPartition, tuple[int, int]]) -> AcknowledgedBatches:
        topic_ids = {each.topic: found for each in offsets if (found := self._cluster.topic_id(each.topic))}
        return AcknowledgedBatches(offsets, topic_ids)


def join_batches(batches: Sequence[PlacedBatch]) -> tuple[tuple[str, ...], bytes]:
    """Batches as stored in a database: their partitions, and their concatenated bytes."""
    return tuple(str(each.partition) for each in batches), b"".join(each.payload for each in batches)


def split_batches(partitions: Sequence[str], data: bytes) -> Iterator[PlacedBatch]:
    """Split the output of `join_batches`."""
    position = 0
    for name in partitions:
        if position + HEADER_BYTES > len(data):
            break
        header = read_header(data, position)
        stop = position + max(HEADER_BYTES, header.size_bytes)
        if stop > len(data):
            break
        yield PlacedBatch(TopicPartition.parse(name), data[position:stop], header.record_count)
        position = stop
    else:
        if position == len(data):
            return
    raise LocalProtocolError(
        operation="read kept records",
        state=f"{len(data)} bytes for {len(partitions)} partitions",
        rule="the bytes must be one record batch for each partition, and nothing else",
    )


class StickyPartitioner(ArrowPartitioner):
    """The writer's partitioner: keyless rows of one call share a partition, those of the next use another (KIP-480)."""

    def __init__(self, cluster: Cluster, topic: str | None) -> None:
        super().__init__(topic)
        self._cluster = cluster
        self._counts: dict[str, int] = {}
        self._calls = 0

    def new_transaction(self) -> None:
        """Forget partition counts, which may have grown since the last transaction."""
        self._counts.clear()

    def columns(self, rows: Any) -> RecordColumns:
        names = set(rows.schema.names)
        columns = {name: as_one_array(rows.column(name)) for name in _ROW_COLUMNS if name in names}
        unknown = sorted(names - set(_ROW_COLUMNS))
        if unknown or "value" not in columns:
            wrong = f"unknown columns {unknown}" if unknown else "no column 'value'"
            raise _unsendable(wrong, f"the columns must be some of {', '.join(_ROW_COLUMNS)}, at least value")
        topic, partition = columns.get("topic"), columns.get("partition")
        if self._topic is None and (topic is None or topic.null_count):
            raise _unsendable("a row without a topic", "set it in a column 'topic', or pass topic= to the writer")
        if partition is not None and not pa.types.is_integer(partition.type):
            raise _unsendable(f"column 'partition' of type {partition.type}", "partitions must be integers")
        if topic is not None and self._topic is not None:
            topic = pc.fill_null(topic, self._topic)
        return RecordColumns(topic, partition, columns.get("key"), columns["value"], columns.get("headers"))

    def split_call(self, columns: RecordColumns) -> list[PartitionRows]:
        self._calls += 1
        return list(self.split(columns))

    def _partition_count(self, topic: str, columns: RecordColumns, row: int) -> int:
        del columns, row
        if topic not in self._counts:
            self._counts[topic] = self._cluster.partition_counts([topic])[topic]
        return self._counts[topic]

    def _free_partitions(self, topic: str, count: int) -> Sequence[int]:
        del topic
        return (self._calls % count,)

    def _no_partition(self, topic: str, count: int, columns: RecordColumns, row: int) -> Exception:
        named = None if columns.partition is None else columns.partition[row].as_py()
        return unknown_topic(
            topic, f"it has partitions 0 to {count - 1}, and a row requests {named}; correct the row, or add partitions"
        )


def _unsendable(state: str, rule: str) -> LocalProtocolError:
    return LocalProtocolError(operation="append", state=state, rule=rule)
