"""The batch sender: sends encoded record batches, and processes their acknowledgements.

At most ``max_in_flight`` requests are in flight per broker; one request has the next batch of as many partitions
as fit. Failed batches are sent again until their deadline. All of it happens in `BatchSender.pump`, on the caller's
thread.

The broker appends a producer's batches in sequence or not at all, and remembers the last five of them (KIP-98,
"Idempotent Producer Guarantees"; KIP-185). So when a batch fails, nothing new is sent until all answers for this
partition have arrived, and then it and all later ones are sent again, in the same order with the same sequence
numbers. Those already appended are then answered as duplicates, which is success.

Until the first batch is acknowledged no other is sent: below transaction.version 2 a broker without state for a
producer accepts any sequence number as its first, and would accept the second batch as such.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from time import monotonic
from typing import Final, TypeAlias

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, KafkaTimeoutError, RemoteProtocolError
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster, LeaderFinder
from spark_2pc_sink.kafka.connection import SentRequest
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.kafka.error_policy import BUSY_BACKOFF_MS, LEADER_MOVED, PRODUCE_RETRIED, produce_error
from spark_2pc_sink.kafka.record_encoder import UNKNOWN_LIMITS, TopicLimits
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.batch_format import SEQUENCE_COUNT, Buffer
from spark_2pc_sink.wire.framed_request import ProducedPartition, RequestTemplate, produce_request
from spark_2pc_sink.wire.messages import describe_error
from spark_2pc_sink.wire.record_batch import PlacedBatch, assign_producer


@dataclass(eq=False)
class Batch:
    """An unacknowledged encoded record batch."""

    #: Its position among the batches for its partition, from 0. Sequence numbers wrap, this does not.
    ordinal: int
    payload: Buffer
    record_count: int
    #: Its record's key, printable; None for several records.
    row_key: str | None
    #: When it must be acknowledged, on the monotonic clock.
    deadline_s: float
    sends: int = 0


_ordinal: Final = attrgetter("ordinal")


@dataclass(frozen=True)
class PartitionReceipt:
    records: int
    first_offset: int
    last_offset: int


@dataclass(eq=False)
class PartitionQueue:
    """A partition's waiting, in-flight and returned batches."""

    partition: TopicPartition
    #: The log's end when the session began to write it; appended batches are at or above it.
    floor_offset: int = 0
    limits: TopicLimits = UNKNOWN_LIMITS
    #: That of the next pushed record.
    sequence: int = 0
    receipt: PartitionReceipt | None = None
    resend_at_s: float = 0.0
    last_error: str | None = None
    _waiting: list[Batch] = field(default_factory=list)
    _in_flight: list[Batch] = field(default_factory=list)
    _returned: list[Batch] = field(default_factory=list)
    _pause_s: float = 0.0
    _count: int = 0

    def push(self, batch: PlacedBatch, payload: Buffer, *, deadline_s: float) -> None:
        self._waiting.append(Batch(self._count, payload, batch.record_count, batch.row_key, deadline_s))
        self._count += 1
        self.sequence = (self.sequence + batch.record_count) % SEQUENCE_COUNT

    def oldest(self) -> Batch | None:
        return min((*self._waiting[:1], *self._in_flight, *self._returned), key=_ordinal, default=None)

    def peek(self, now_s: float) -> Batch | None:
        """The batch to send next; None if there is none, or it must not be sent yet."""
        if self._returned:
            if self._in_flight:
                return None  # answers are pending, and a batch must never be in flight twice
            self._waiting = sorted((*self._returned, *self._waiting), key=_ordinal)
            self._returned = []
        alone = self.receipt is None and bool(self._in_flight)
        if not self._waiting or alone or now_s < self.resend_at_s:
            return None
        return self._waiting[0]

    def sent(self, batch: Batch) -> None:
        """Note that ``batch``, just peeked, was handed to a connection."""
        self._waiting.pop(0)
        batch.sends += 1
        self._in_flight.append(batch)

    def acknowledged(self, batch: Batch, base_offset: int) -> None:
        self._in_flight.remove(batch)
        self._pause_s = 0.0
        last = base_offset + batch.record_count - 1
        before = self.receipt or PartitionReceipt(0, base_offset, last)
        self.receipt = PartitionReceipt(
            records=before.records + batch.record_count,
            first_offset=min(before.first_offset, base_offset),
            last_offset=max(before.last_offset, last),
        )

    def returned(self, batch: Batch) -> None:
        self._in_flight.remove(batch)
        self._returned.append(batch)

    def note_error(self, error: str, now_s: float) -> None:
        """Record a failed attempt; one cut short by the deadline does not replace an earlier error."""
        oldest = self.oldest()
        if self.last_error is None or oldest is None or now_s <= oldest.deadline_s:
            self.last_error = error

    def back_off(self, now_s: float, *, first_s: float, max_s: float) -> None:
        """Pause sending, twice as long after each failure in a row."""
        self._pause_s = min(max_s, max(first_s, self._pause_s * 2))
        self.resend_at_s = now_s + self._pause_s

    def has_earlier(self, batch: Batch) -> bool:
        """True while an earlier batch than ``batch`` is unacknowledged: OUT_OF_ORDER is then about that one."""
        return any(other.ordinal < batch.ordinal for other in (*self._in_flight, *self._returned))


#: Produce adds partitions to the transaction from version 12 on (KIP-890); 11 needs them added earlier.
_ADDING_VERSION: Final = 12
#: Bytes of a Produce request besides its batches, with room for a long topic name and transactional id.
REQUEST_BYTES: Final = 1024


@dataclass(frozen=True)
class ProducedTransaction:
    """The Kafka transaction of record batches. Below version 2 the partitions must have been added to it first."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    version: int

    def request(self, batches: Mapping[TopicPartition, Buffer], *, timeout_ms: int) -> RequestTemplate:
        request = produce_request(self.transactional_id, batches, timeout_ms=timeout_ms)
        adds = self.version >= EPOCH_BUMP_VERSION
        return request if adds else request._replace(version_max=_ADDING_VERSION - 1)


_Batches: TypeAlias = "list[tuple[PartitionQueue, Batch]]"


@dataclass(eq=False)
class _Request:
    node_id: int
    sent: SentRequest
    batches: _Batches


class BatchSender:
    def __init__(self, cluster: Cluster, transaction: ProducedTransaction, options: KafkaOptions) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._options = options
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._finders: dict[TopicPartition, LeaderFinder] = {}
        self._requests: list[_Request] = []
        self.unacknowledged_bytes: int = 0
        self._paused_s = 0.0
        self._left_at_s: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the clock of batch deadlines, inside this block only: the caller's pauses must not use them up."""
        if self._left_at_s is not None:
            self._paused_s += monotonic() - self._left_at_s
        try:
            yield
        finally:
            self._left_at_s = monotonic()

    @property
    def idle(self) -> bool:
        return not self._active

    def push(self, queue: PartitionQueue, batch: PlacedBatch) -> int:
        """Assign a batch to the producer, queue it for ``delivery_timeout_ms`` of `running`, and return its bytes."""
        payload = assign_producer(batch.payload, producer=self._transaction.producer, base_sequence=queue.sequence)
        queue.push(batch, payload, deadline_s=self._now_s() + self._options.delivery_timeout_ms / 1000)
        self.unacknowledged_bytes += len(payload)
        self._active[queue.partition] = queue
        return len(payload)

    def pump(self, wait_s: float) -> None:
        """Process answers, send what may be sent, and wait up to ``wait_s`` for an event; only while `running`."""
        self._take_answers()
        self._check_deadlines()
        # One request per broker and round. Bounded: each round sends a batch, and max_in_flight bounds those.
        while sum(self._send(node_id, batches) for node_id, batches in self._groups().items()):
            pass
        if wait_s > 0:
            now_s = self._now_s()
            resends = (queue.resend_at_s - now_s for queue in self._active.values())
            wait_s = min([wait_s, *(pause_s for pause_s in resends if pause_s > 0)])
        self._cluster.poll(wait_s, until=lambda: any(request.sent.is_done for request in self._requests))
        self._take_answers()

    def clear(self) -> None:
        """Drop everything; later answers are ignored."""
        self._active.clear()
        self._requests.clear()
        self.unacknowledged_bytes = 0

    def _now_s(self) -> float:
        return monotonic() - self._paused_s

    def _groups(self) -> dict[int, _Batches]:
        """The next batch of each partition that may send one now, by leader, as many as fit."""
        now_s = self._now_s()
        groups: dict[int, _Batches] = {}
        sizes: Counter[int] = Counter()
        for queue in self._active.values():
            batch = queue.peek(now_s)
            node_id = None if batch is None else self._ready_leader(queue, batch, now_s)
            if batch is None or node_id is None:
                continue
            fits = sizes[node_id] + len(batch.payload) + REQUEST_BYTES <= self._options.max_request_bytes
            if fits or node_id not in groups:
                groups.setdefault(node_id, []).append((queue, batch))
                sizes[node_id] += len(batch.payload)
        return groups

    def _ready_leader(self, queue: PartitionQueue, batch: Batch, now_s: float) -> int | None:
        node_id = self._cluster.leaders.get(queue.partition)
        if node_id is None:
            finder = self._finders.setdefault(queue.partition, LeaderFinder(self._cluster, queue.partition))
            # Rounded up: an attempt cut off just before the deadline would count as a failure of its own.
            node_id = finder.find(self._cluster.deadline(max(1, math.ceil((batch.deadline_s - now_s) * 1000))))
        if node_id is None:
            self._postpone(queue, "the partition has no leader")
            return None
        try:
            return node_id if self._cluster.ready(node_id) else None
        except NodeUnavailableError as error:
            self._postpone(queue, str(error))
            return None

    def _send(self, node_id: int, batches: _Batches) -> bool:
        timeout_ms = self._options.request_timeout_ms
        payloads = {queue.partition: batch.payload for queue, batch in batches}
        request = self._transaction.request(payloads, timeout_ms=timeout_ms)
        deadline = self._cluster.deadline(timeout_ms)
        try:
            sent = self._cluster.send(node_id, request, deadline)
        except NodeUnavailableError as error:
            for queue, _ in batches:
                self._postpone(queue, str(error))
            return False
        for queue, batch in batches:
            queue.sent(batch)
        self._requests.append(_Request(node_id, sent, batches))
        return True

    def _check_deadlines(self) -> None:
        now_s = self._now_s()
        for queue in self._active.values():
            oldest = queue.oldest()
            if oldest is not None and now_s > oldest.deadline_s:
                raise KafkaTimeoutError(
                    operation=f"produce to {queue.partition}",
                    deadline_ms=self._options.delivery_timeout_ms,
                    last_error=queue.last_error or ("sent, but not answered" if oldest.sends else "not sent yet"),
                )

    def _take_answers(self) -> None:
        done = [request for request in self._requests if request.sent.is_done]
        if done:
            self._requests = [request for request in self._requests if not request.sent.is_done]
        for request in done:
            node_id, sent = request.node_id, request.sent
            for queue, batch in request.batches:
                if sent.exception is not None:
                    # It may have been appended or not, so it is sent again with the same sequence.
                    self._send_again(queue, batch, f"broker {node_id}: {sent.exception}")
                    self._cluster.leaders.pop(queue.partition, None)
                elif (answer := sent.value.get(queue.partition)) is not None:
                    self._handle_answer(queue, batch, answer)
                else:
                    raise RemoteProtocolError(peer=f"broker {node_id}", detail=f"Produce omitted {queue.partition}")

    def _handle_answer(self, queue: PartitionQueue, batch: Batch, answer: ProducedPartition) -> None:
        code = answer.error_code
        if code == Code.NONE:
            _check_ours(queue, batch, answer, self._transaction.producer)
            queue.acknowledged(batch, answer.base_offset)
            self.unacknowledged_bytes -= len(batch.payload)
            if queue.oldest() is None:
                del self._active[queue.partition]
        elif code in PRODUCE_RETRIED or (code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.has_earlier(batch)):
            if code in LEADER_MOVED:
                self._cluster.leaders.pop(queue.partition, None)
            concurrent = code == Code.CONCURRENT_TRANSACTIONS
            self._send_again(queue, batch, f"Produce was answered {describe_error(code)}", concurrent=concurrent)
        else:
            raise produce_error(queue.partition, batch, answer, self._transaction.producer)

    def _send_again(self, queue: PartitionQueue, batch: Batch, error: str, *, concurrent: bool = False) -> None:
        is_first = not queue.has_earlier(batch)
        queue.returned(batch)
        queue.note_error(error, self._now_s())
        if is_first:
            self._back_off(queue, concurrent=concurrent)

    def _postpone(self, queue: PartitionQueue, error: str) -> None:
        """Nothing was sent: look up the leader again after a pause."""
        queue.note_error(error, self._now_s())
        self._cluster.leaders.pop(queue.partition, None)
        self._back_off(queue)

    def _back_off(self, queue: PartitionQueue, *, concurrent: bool = False) -> None:
        first_ms = self._options.retry_backoff_ms
        queue.back_off(
            self._now_s(),
            first_s=(min(first_ms, BUSY_BACKOFF_MS) if concurrent else first_ms) / 1000,
            max_s=self._options.retry_backoff_max_ms / 1000,
        )


def _check_ours(queue: PartitionQueue, batch: Batch, answer: ProducedPartition, producer: ProducerIdAndEpoch) -> None:
    """Fail if the broker acknowledges another writer's batch.

    A broker acknowledges a duplicate with the first batch's offset and, whatever the topic's timestamp type, its time
    (``ProducerStateEntry.findDuplicateBatch``). That is right for a batch sent again, and impossible the first time.
    """
    first, floor = batch.sends == 1, queue.floor_offset
    if first and queue.receipt is not None:
        floor = max(floor, queue.receipt.last_offset + 1)
    stamped = first and queue.limits.create_time is True and answer.log_append_time_ms != -1
    if stamped or answer.base_offset < floor:
        raise BatchRetryError(
            reason=f"{queue.partition} already contained a batch of producer {producer} with the same sequence numbers "
            f"at offset {answer.base_offset}: another writer uses the same transaction and this batch was not written, "
            "or the topic was deleted and recreated. The whole transaction must be aborted"
        )
