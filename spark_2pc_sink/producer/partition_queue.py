"""The queue of one partition: its record batches in the order of their sequence numbers. Pure: no I/O, no clock.

The broker appends a producer's batches in sequence or not at all, and remembers the last five of them (KIP-98,
"Idempotent Producer Guarantees"; KIP-185). So when a batch fails, nothing new is sent until all answers of this
partition are in, and then it and everything behind it goes again, in the same order with the same sequence numbers.
Those that were appended already are then answered as duplicates, which is success.

Until the first batch is acknowledged it travels alone: below transaction.version 2 a broker that knows nothing of a
producer takes any sequence number as its first, and would take the second batch for it.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Final

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.framed_request import RecordBytes

#: Back-off doubles with each failure in a row; beyond this the maximum is reached for any sensible setting.
_DOUBLINGS_MAX: Final = 16


@dataclass(eq=False)
class Batch:
    """An encoded record batch that is not acknowledged yet.

    Args:
        ordinal: its place among the batches of its partition, from 0. Sequence numbers wrap, this does not.
        payload: the encoded batch.
        record_count: how many records it has.
        row_key: the key of its record, printable; None for a batch of several.
        deadline_s: when it must be acknowledged, on the monotonic clock.
        sends: how often it was handed to a connection.
    """

    ordinal: int
    payload: RecordBytes
    record_count: int
    row_key: str | None
    deadline_s: float
    sends: int = 0


@dataclass(frozen=True)
class PartitionReceipt:
    """The acknowledgements of brokers on one partition in this transaction.

    Args:
        records: how many, never counting what was only sent.
        first_offset: of the first record.
        last_offset: of the last record.
    """

    records: int
    first_offset: int
    last_offset: int


@dataclass(eq=False)
class PartitionQueue:
    """Batches that wait, that are on the wire, and that came back.

    Args:
        partition: whose batches.
        floor_offset: the end of the log when the session met it; what it appends lies at or above.
    """

    partition: TopicPartition
    floor_offset: int
    receipt: PartitionReceipt | None = None
    resend_at_s: float = 0.0
    last_error: str | None = None
    _waiting: list[Batch] = field(default_factory=list)
    _in_flight: list[Batch] = field(default_factory=list)
    _returned: list[Batch] = field(default_factory=list)
    _failures_in_a_row: int = 0
    _count: int = 0

    @property
    def outstanding(self) -> int:
        """How many batches are not acknowledged."""
        return len(self._waiting) + len(self._in_flight) + len(self._returned)

    def push(self, payload: RecordBytes, *, record_count: int, row_key: str | None, deadline_s: float) -> None:
        """Add a batch behind all others."""
        batch = Batch(self._count, payload, record_count, row_key, deadline_s)
        self._count += 1
        self._waiting.append(batch)

    def oldest(self) -> Batch | None:
        """The unacknowledged batch that was pushed first."""
        return min((*self._waiting[:1], *self._in_flight, *self._returned), key=_ordinal, default=None)

    def is_overdue(self, now_s: float) -> bool:
        """True when the oldest batch has not been acknowledged in time."""
        oldest = self.oldest()
        return oldest is not None and now_s > oldest.deadline_s

    def waits_for(self) -> str:
        """What the oldest batch waits for, for errors."""
        oldest = self.oldest()
        return "sent, and not answered" if oldest is not None and oldest.sends else "not sent yet"

    def peek(self, now_s: float) -> Batch | None:
        """The batch to send next; None when there is none, or it must not be sent yet."""
        if self._returned:
            if self._in_flight:
                return None  # their answers may still come, and a batch is never on the wire twice
            self._waiting = sorted((*self._returned, *self._waiting), key=_ordinal)
            self._returned = []
        alone = self.receipt is None and bool(self._in_flight)
        if not self._waiting or alone or now_s < self.resend_at_s:
            return None
        return self._waiting[0]

    def sent(self, batch: Batch) -> None:
        """``batch``, just peeked, was handed to a connection."""
        if not self._waiting or self._waiting[0] is not batch:
            raise AssertionError("only the first waiting batch is sent")
        self._waiting.pop(0)
        batch.sends += 1
        bisect.insort(self._in_flight, batch, key=_ordinal)

    def acknowledged(self, batch: Batch, base_offset: int) -> None:
        """The broker has ``batch`` at ``base_offset``."""
        self._in_flight.remove(batch)
        self._failures_in_a_row = 0
        last = base_offset + batch.record_count - 1
        before = self.receipt or PartitionReceipt(0, base_offset, last)
        self.receipt = PartitionReceipt(
            records=before.records + batch.record_count,
            first_offset=min(before.first_offset, base_offset),
            last_offset=max(before.last_offset, last),
        )

    def returned(self, batch: Batch) -> None:
        """``batch`` must be sent again."""
        self._in_flight.remove(batch)
        bisect.insort(self._returned, batch, key=_ordinal)

    def note_error(self, error: str, now_s: float) -> None:
        """An attempt has failed; one that the deadline cut short says less than what was found before it."""
        if self.last_error is None or not self.is_overdue(now_s):
            self.last_error = error

    def back_off(self, now_s: float, *, first_s: float, max_s: float) -> None:
        """Send nothing for a while, longer after each failure in a row."""
        pause_s = min(max_s, first_s * 2 ** min(self._failures_in_a_row, _DOUBLINGS_MAX))
        self._failures_in_a_row += 1
        self.resend_at_s = now_s + pause_s

    def has_earlier(self, batch: Batch) -> bool:
        """True while a batch before ``batch`` is unacknowledged: then OUT_OF_ORDER is about that one."""
        return any(other.ordinal < batch.ordinal for other in (*self._in_flight, *self._returned))

    def next_offset(self) -> int:
        """Nothing that is appended from now on may lie below this."""
        return self.floor_offset if self.receipt is None else max(self.floor_offset, self.receipt.last_offset + 1)


def _ordinal(batch: Batch) -> int:
    return batch.ordinal
