"""The produce session: writes records of one transaction, from one process, with a sequence per partition.

A session belongs to one transaction and one pair. Several sessions may share both as long as no partition is written
by two of them: sequence numbers start at 0 in each partition of each transaction, so a second writer's batches would
be taken for repetitions of the first one's and answered "done" without being written. The session therefore checks
every first answer, and fails with `BatchRetryError` where somebody else must have been there.

Everything happens on the caller's thread, inside `ProduceSession.append` and `ProduceSession.flush`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.batch_sender import BatchSender, Lane, OpenTransaction
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.encoding_options import EncodingOptions, TopicLimits
from spark_2pc_sink.producer.leader_lookup import LeaderFinder, end_offsets, topic_limits
from spark_2pc_sink.producer.partition_queue import PartitionQueue, PartitionReceipt
from spark_2pc_sink.producer.record_encoder import EncodedBatch, RecordEncoder
from spark_2pc_sink.wire.batch_format import next_sequence
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests
from spark_2pc_sink.wire.messages import OffsetSpec
from spark_2pc_sink.wire.record_batch import assign_producer
from spark_2pc_sink.wire.record_rows import Rows

#: Encoded bytes that wait for an acknowledgement, per session; `ProduceSession.append` blocks above it. The same as
#: Java's buffer.memory: many times what a connection holds in flight, little beside a Spark worker.
UNACKNOWLEDGED_BYTES_MAX: Final = 32 * 1024 * 1024


class ProduceSession:
    """Appends records to a transaction and waits for their acknowledgement.

    Args:
        cluster: connections; not closed by this object.
        transaction: which the records are written in.
        options: batch sizes, compression, time-outs.
        timestamp_ms: of every record that is appended as a row, milliseconds since 1970.
        limits: what topics allow, where that is known; others are asked for.
        ends: where logs ended before the session, where that is known; others are asked for.
    """

    def __init__(
        self,
        cluster: Cluster,
        transaction: OpenTransaction,
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
        self._lanes: dict[TopicPartition, Lane] = {}
        self._limits = dict(limits or {})
        self._ends = dict(ends or {})
        self._digest = EMPTY_DIGEST
        self._record_bytes = 0
        #: Since the connections were let go on.
        self._queued_bytes = 0
        self._failure: Exception | None = None
        self._cancelled = False

    @property
    def digest(self) -> int:
        """The digest of every record encoded so far; of every record appended once `flush` has returned."""
        return self._digest

    @property
    def record_bytes(self) -> int:
        """Of all record batches so far, compressed; each is counted once, however often it was sent."""
        return self._record_bytes

    def append(self, partition: TopicPartition, rows: Rows) -> None:
        """Append rows to one partition, in order.

        Returns when they are queued, not when they are acknowledged. What is queued is sent as soon as it fills a
        request of ``max_request_bytes``. Blocks while more than `UNACKNOWLEDGED_BYTES_MAX` bytes are unacknowledged.

        Raises:
            FencedError: the pair is not the newest of its transactional id.
            AbortableError: the transaction must be aborted; the next one may succeed.
            BatchRetryError: somebody else wrote to the partition with this pair.
            RecordTooLargeError, RecordRefusedError: a row cannot be sent.
            AuthorizationError, UnknownTopicError, ConfigurationError, KafkaError: the topic cannot be written so.
            KafkaTimeoutError: a batch was not acknowledged within ``delivery_timeout_ms``, counting only time spent
                in these calls.
            LocalProtocolError: the session is closed.

        The first error of a session is raised again by every later call.
        """
        with self._failing():
            if not len(rows):
                return
            self._meet([partition])
            for batch in self._encoder.append(partition, rows):
                self._send(batch)

    def append_encoded(self, batch: EncodedBatch) -> None:
        """Append a batch that a `RecordEncoder` made elsewhere, behind what went to its partition before.

        Raises:
            As `append`.
        """
        with self._failing():
            self._meet([batch.partition])
            self._send(batch)

    def meet(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask about partitions that will be written, all together: one by one, each would cost a round trip.

        Raises:
            As `append`.
        """
        with self._failing():
            self._meet(partitions)

    def flush(self) -> dict[TopicPartition, PartitionReceipt]:
        """Wait until everything appended is acknowledged.

        Returns:
            For each partition what was acknowledged since the session began; partitions without records are absent.

        Raises:
            As `append`.
        """
        with self._failing():
            self._send_kept()
            while not self._sender.idle:  # bounded: every batch has a deadline
                self._pump()
            found = ((partition, lane.queue.receipt) for partition, lane in self._lanes.items())
            return {partition: receipt for partition, receipt in found if receipt is not None}

    def cancel(self) -> None:
        """Have a call in another thread that waits for brokers end soon, with `BatchRetryError`."""
        self._cancelled = True

    def close(self) -> None:
        """Forget everything, waiting for nothing. What was sent is still part of the transaction."""
        self._failure = self._failure or LocalProtocolError(
            operation="append or flush", state="closed", rule="a session serves one transaction"
        )
        self._encoder.clear()
        self._lanes.clear()
        self._sender.clear()

    # --- parts ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever interrupts a call ends the session: rows may be half way through."""
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

    def _meet(self, partitions: Iterable[TopicPartition]) -> None:
        new = [partition for partition in dict.fromkeys(partitions) if partition not in self._lanes]
        if not new:
            return
        unknown = [partition for partition in new if partition not in self._ends]
        if unknown:
            self._ends |= end_offsets(self._cluster, unknown, OffsetSpec.LATEST, self._cluster.deadline())
        for partition in new:
            limits = self._limits_of(partition.topic)
            queue = PartitionQueue(partition, self._ends[partition])
            self._lanes[partition] = Lane(queue, LeaderFinder(self._cluster, partition), limits)

    def _limits_of(self, topic: str) -> TopicLimits:
        known = self._limits.get(topic)
        if known is None:
            known = self._limits[topic] = topic_limits(self._cluster, topic, self._cluster.deadline())
        return known

    def _send_kept(self) -> None:
        """Queue what is left of each partition."""
        for batch in self._encoder.finish():
            self._send(batch)

    def _send(self, batch: EncodedBatch) -> None:
        """Queue one batch, and let what is queued go once it fills a request.

        One request for each batch would be dear where a topic has many partitions. With each request that adds some of
        them to the transaction, the coordinator writes down all that it has by then.
        """
        self._queued_bytes += self._queue(batch)
        too_much = self._sender.unacknowledged_bytes > UNACKNOWLEDGED_BYTES_MAX
        if too_much or self._queued_bytes > self._options.max_request_bytes:
            self._let_go()

    def _queue(self, batch: EncodedBatch) -> int:
        """Put one batch behind the others of its partition; its bytes."""
        lane = self._lanes[batch.partition]
        payload = assign_producer(batch.payload, producer=self._producer, base_sequence=lane.sequence)
        lane.sequence = next_sequence(lane.sequence, batch.record_count)
        self._digest = combine_digests(self._digest, batch.digest)
        self._sender.push(lane, payload, record_count=batch.record_count, row_key=batch.row_key)
        self._record_bytes += len(payload)
        return len(payload)

    def _let_go(self) -> None:
        """Let the connections go on, and wait while too much is unacknowledged."""
        self._queued_bytes = 0
        self._sender.pump(0)
        while self._sender.unacknowledged_bytes > UNACKNOWLEDGED_BYTES_MAX:  # bounded: every batch has a deadline
            self._pump()

    def _pump(self) -> None:
        if self._cancelled:
            raise BatchRetryError(reason="writing to Kafka was given up, since the attempt has failed elsewhere")
        self._sender.pump(self._options.retry_backoff_ms / 1000)
