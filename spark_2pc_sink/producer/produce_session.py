"""Writing the records of one transaction, from one process, in its own sequence per partition.

A session belongs to one transaction and one pair. Several sessions may share both as long as no partition is written
by two of them: sequence numbers start at 0 in each partition of each transaction, so a second writer's batches would
be taken for repetitions of the first one's and answered "done" without being written. The session therefore checks
every first answer, and fails with `BatchRetryError` where somebody else must have been there.

Everything happens on the caller's thread, inside `ProduceSession.append` and `ProduceSession.flush`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from spark_2pc_sink.errors import BatchRetryError, LocalProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.batch_sender import BatchSender, Lane
from spark_2pc_sink.producer.connection import Cluster
from spark_2pc_sink.producer.partition_lookup import LeaderFinder, TopicLimits, end_offset, topic_limits
from spark_2pc_sink.producer.partition_queue import PartitionQueue, PartitionReceipt
from spark_2pc_sink.producer.produce_answers import record_too_large
from spark_2pc_sink.producer.row_buffer import RowBuffer, Rows
from spark_2pc_sink.wire.arrow_layout import ArrowColumn
from spark_2pc_sink.wire.arrow_records import encode_records
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, batch_digest, combine_digests
from spark_2pc_sink.wire.messages import OffsetSpec
from spark_2pc_sink.wire.record_batch import BATCH_HEADER_BYTES, encode_record_batch, next_sequence

#: Encoded bytes that wait for an acknowledgement, per session; `ProduceSession.append` blocks above it. The same as
#: Java's buffer.memory: many times what a connection holds in flight, little beside a Spark worker.
UNACKNOWLEDGED_BYTES_MAX: Final = 32 * 1024 * 1024
#: Bytes of rows that wait for more rows, per session; above it batches are sent as they are.
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
#: Compression makes data that does not compress a little larger. Of the five snappy's framing adds most, less than one
#: byte in sixty-four and a header, so so much room is left below max.message.bytes.
_COMPRESSION_LOSS: Final = 1 / 64
_COMPRESSION_LOSS_BYTES: Final = 512
#: Characters of a row's key in an error.
_KEY_CHARACTERS_MAX: Final = 80


@dataclass(eq=False)
class _Partition:
    """One partition of the session: what is kept, what comes next, and the way out."""

    lane: Lane
    rows: RowBuffer
    sequence: int = 0


class ProduceSession:
    """Appends records to a transaction and waits for their acknowledgement.

    Args:
        cluster: connections; not closed by this object.
        transactional_id: whose transaction.
        producer: the pair of the transaction.
        transaction_version: of the cluster. Below 2 the partitions must have been added to the transaction before
            (`TransactionClient.add_partitions`).
        options: batch sizes, compression, time-outs.
        timestamp_ms: of every record, milliseconds since 1970.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        transaction_version: int,
        options: KafkaOptions,
        timestamp_ms: int,
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._options = options
        self._timestamp_ms = timestamp_ms
        self._sender = BatchSender(
            cluster,
            transactional_id=transactional_id,
            producer=producer,
            transaction_version=transaction_version,
            options=options,
        )
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._limits: dict[str, TopicLimits] = {}
        self._kept_bytes = 0
        self._digest = EMPTY_DIGEST
        self._failure: Exception | None = None

    def __enter__(self) -> ProduceSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def records(self) -> int:
        """Records acknowledged so far."""
        return sum(receipt.records for receipt in self._receipts().values())

    @property
    def digest(self) -> int:
        """The digest of every record encoded so far; of every record appended once `flush` has returned."""
        return self._digest

    def append(
        self, partition: TopicPartition, key: ArrowColumn | None, value: ArrowColumn, headers: ArrowColumn | None
    ) -> None:
        """Append rows to one partition, in order.

        Returns when they are on their way, not when they are acknowledged. Blocks while more than
        `UNACKNOWLEDGED_BYTES_MAX` bytes are unacknowledged.

        Args:
            partition: where to.
            key: binary or string column, or None for null keys.
            value: the same; null is a tombstone.
            headers: list<struct<key: string, value: binary>>, or None for none.

        Raises:
            FencedError: the pair is not the newest of its transactional id.
            AbortableError: the transaction must be aborted; the next one may succeed.
            BatchRetryError: somebody else wrote to the partition with this pair.
            RecordTooLargeError, UnstorableValueError: a row cannot be sent.
            AuthorizationError, UnknownTopicError, ConfigurationError, KafkaError: the topic cannot be written so.
            KafkaTimeoutError: a batch was not acknowledged within ``delivery_timeout_ms``, counting only time spent
                in these calls.
            LocalProtocolError: the session is closed, or the columns do not fit together.

        The first error of a session is raised again by every later call.
        """
        with self._failing():
            rows = Rows.of(key, value, headers)
            if not len(rows):
                return
            target = self._partition(partition)
            self._kept_bytes -= target.rows.kept_bytes
            full = target.rows.add(rows)
            self._kept_bytes += target.rows.kept_bytes
            for batch_rows in full:
                self._send(target, batch_rows)
            if self._kept_bytes > KEPT_BYTES_MAX:
                self._send_kept()

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
                self._sender.pump(self._options.retry_backoff_ms / 1000)
            return self._receipts()

    def close(self) -> None:
        """Forget everything, waiting for nothing. What was sent is still part of the transaction."""
        self._failure = self._failure or LocalProtocolError(
            operation="append or flush", state="closed", rule="a session serves one transaction"
        )
        self._partitions.clear()
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

    def _receipts(self) -> dict[TopicPartition, PartitionReceipt]:
        found = ((partition, target.lane.queue.receipt) for partition, target in self._partitions.items())
        return {partition: receipt for partition, receipt in found if receipt is not None}

    def _partition(self, partition: TopicPartition) -> _Partition:
        known = self._partitions.get(partition)
        if known is not None:
            return known
        deadline = self._cluster.deadline()
        floor = end_offset(self._cluster, partition, OffsetSpec.LATEST, deadline)
        limits = self._limits.get(partition.topic)
        if limits is None:
            limits = self._limits[partition.topic] = topic_limits(self._cluster, partition.topic, deadline)
        lane = Lane(PartitionQueue(partition, floor), LeaderFinder(self._cluster, partition), limits)
        rows = RowBuffer(_records_bytes_max(self._options.batch_bytes_max, limits))
        known = self._partitions[partition] = _Partition(lane, rows)
        return known

    def _send_kept(self) -> None:
        for target in self._partitions.values():
            for rows in target.rows.take():
                self._send(target, rows)
        self._kept_bytes = 0

    def _send(self, target: _Partition, rows: Rows) -> None:
        """Encode one batch, let the connections go on, and wait while too much is unacknowledged."""
        self._encode(target, rows)
        self._sender.pump(0)
        while self._sender.unacknowledged_bytes > UNACKNOWLEDGED_BYTES_MAX:  # bounded: every batch has a deadline
            self._sender.pump(self._options.retry_backoff_ms / 1000)

    def _encode(self, target: _Partition, rows: Rows) -> None:
        partition = target.lane.queue.partition
        section = encode_records(rows.key, rows.value, rows.headers)
        payload = encode_record_batch(
            section,
            producer=self._producer,
            base_sequence=target.sequence,
            timestamp_ms=self._timestamp_ms,
            compression=self._options.compression,
        )
        row_key = _printable_key(rows) if len(rows) == 1 else None
        if row_key is not None:
            self._check_single(target.lane, row_key, payload, int(rows.sizes[0]))
        self._digest = combine_digests(self._digest, batch_digest(partition.topic, section))
        target.sequence = next_sequence(target.sequence, section.record_count)
        self._sender.push(target.lane, payload, record_count=section.record_count, row_key=row_key)

    def _check_single(self, lane: Lane, row_key: str, payload: bytes, record_bytes: int) -> None:
        """Refuse a record that cannot arrive before anything is sent for it."""
        partition, allowed = lane.queue.partition, lane.limits.message_bytes_max
        if allowed is not None and len(payload) > allowed:
            limit = f"max.message.bytes of the topic is {allowed}"
            raise record_too_large(partition, row_key, len(payload), limit)
        if record_bytes > self._options.max_request_bytes:
            limit = f"max.request.size is {self._options.max_request_bytes}"
            raise record_too_large(partition, row_key, record_bytes, limit)


def _records_bytes_max(option: int, limits: TopicLimits) -> int:
    """Bytes of records for one batch: the option, or less where the topic takes less."""
    if limits.message_bytes_max is None:
        return option
    room = limits.message_bytes_max - BATCH_HEADER_BYTES - _COMPRESSION_LOSS_BYTES
    return max(1, min(option, int(room * (1 - _COMPRESSION_LOSS))))


def _printable_key(rows: Rows) -> str:
    """The key of the only row: as text where it is text, else in hexadecimal; cut to a readable length."""
    key: bytes | None = None if rows.key is None else rows.key[0].as_py()
    if key is None:
        return "null"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text.isprintable() and (text or not key) else "0x" + key.hex()
    return shown if len(shown) <= _KEY_CHARACTERS_MAX else shown[:_KEY_CHARACTERS_MAX] + "…"
