"""Producers of a partition and what they may append: pure rules, no I/O, no clock.

The rules are those of Kafka 4.4.0's ``ProducerAppendInfo``, ``ProducerStateManager`` and ``UnifiedLog`` (KIP-98,
"Producer Id, Epoch and Sequence"; KIP-360; KIP-890, "Verification" and "Epoch bump"). Per producer id there is an entry
(epoch, last five batches of the epoch, open transaction) that the log itself determines, so that a reopened log has the
same one; a question to the coordinator (`VerificationGuard`) is in memory only, until the transaction's first record.

A caller checks first (`check_batch`, `check_marker`: nothing changes), writes, and then reports what it wrote
(`batch_written`, `marker_written`). Reading a log back is the second half alone: what is in the log was right once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import EPOCH_BUMP_VERSION, EPOCH_LIMIT
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.coordinator.states import NO_EPOCH, NO_TIMESTAMP, Pair
from spark_2pc_sink.wire.batch_format import NO_SEQUENCE, BatchHeader, next_sequence


@dataclass(eq=False)
class VerificationGuard:
    """A question to the coordinator that no record has followed yet (``VerificationStateEntry``).

    While it is the producer's, the transaction has not ended since: guards are compared by identity. No batch may
    overtake the one with the lowest first sequence received in this epoch. A client that ``supports_epoch_bump``
    (Produce v12, TxnOffsetCommit v5) is on transaction.version 2, whose transactions begin at sequence 0.
    """

    lowest_sequence: int
    epoch: int
    supports_epoch_bump: bool
    created_ms: int


#: Number of batches remembered to recognise a retry: a producer has at most five requests in flight
#: (``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``).
BATCHES_KEPT_MAX: Final = 5


class BatchMemory(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True)
class ProducerEntry:
    """What the log says about one producer id.

    ``batches`` are the last ones in this epoch, oldest first; none after a marker that bumped the epoch.
    ``txn_start_offset`` is the first offset of the open transaction.
    """

    producer_id: int
    epoch: int = NO_EPOCH
    batches: tuple[BatchMemory, ...] = ()
    coordinator_epoch: int = NO_EPOCH
    txn_start_offset: int | None = None
    last_timestamp_ms: int = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def has_open_transaction(self, epoch: int) -> bool:
        return self.txn_start_offset is not None and self.epoch == epoch


class EndedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    marker_offset: int


class ProducerStates:
    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        # One per producer id, from the question until the transaction's first record, or a marker in between. A
        # reopened log has none: pending questions are asked again.
        self._verifying: dict[int, VerificationGuard] = {}
        # First offset of each open transaction to its producer id. Offsets only grow, so the first entry is smallest.
        self._open: dict[int, int] = {}

    def entry(self, producer_id: int) -> ProducerEntry:
        return self._entries.get(producer_id) or ProducerEntry(producer_id)

    def entries(self) -> Iterator[ProducerEntry]:
        return iter(tuple(self._entries.values()))

    def first_open_offset(self, otherwise: int) -> int:
        return next(iter(self._open), otherwise)

    def start_verification(
        self, pair: Pair, sequence: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | Code:
        """As ``UnifiedLog.maybeStartTransactionVerification``: a guard if the coordinator must be asked, else the code.

        NONE if the transaction has records here already.
        """
        entry = self.entry(pair.producer_id)
        if entry.epoch > pair.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if entry.has_open_transaction(pair.epoch):
            return Code.NONE
        # Batches that wait together share one guard.
        guard = self._verifying.get(pair.producer_id)
        if guard is None:
            guard = VerificationGuard(sequence, pair.epoch, supports_epoch_bump, now_ms)
            self._verifying[pair.producer_id] = guard
        elif pair.epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = pair.epoch, sequence
        elif pair.epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def duplicate(self, header: BatchHeader) -> BatchMemory | None:
        """The batch that this one repeats: same epoch, exactly the same sequences, among the last five."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        wanted = (header.base_sequence, header.last_sequence)
        return next((kept for kept in entry.batches if (kept.first_sequence, kept.last_sequence) == wanted), None)

    def check_batch(
        self, header: BatchHeader, guard: VerificationGuard | None, *, verification: bool = True, sequenced: bool = True
    ) -> Code:
        """NONE if a data batch with a producer id may be appended, after `duplicate` found none.

        Without ``verification`` (transaction.partition.verification.enable) no guard is needed. Broker records have no
        sequence numbers: they are not ``sequenced``.
        """
        entry = self.entry(header.producer_id)
        epoch = header.producer_epoch
        # Both of Kafka's checks begin with the epoch: a fenced producer is told so, whatever its guard.
        if epoch < entry.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        needs_guard = verification and header.transactional and not entry.has_open_transaction(epoch)
        if needs_guard and (guard is None or self._verifying.get(header.producer_id) is not guard):
            return Code.INVALID_TXN_STATE
        if sequenced and not self._in_sequence(entry, header):
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        if entry.txn_start_offset is not None and not header.transactional:
            return Code.INVALID_TXN_STATE
        return Code.NONE

    def check_marker(self, marker: EndMarker) -> Code:
        entry = self.entry(marker.producer_id)
        stale = marker.producer_epoch < entry.epoch
        if marker.transaction_version >= EPOCH_BUMP_VERSION and marker.producer_epoch == entry.epoch:
            # KIP-890: it carries the epoch of the transaction + 1, so this is a retry. It is accepted if there is
            # nothing to end, and at the last epoch, which cannot be bumped.
            stale = entry.txn_start_offset is not None and marker.producer_epoch != EPOCH_LIMIT
        if stale:
            return Code.INVALID_PRODUCER_EPOCH
        if entry.coordinator_epoch > marker.coordinator_epoch:
            return Code.TRANSACTION_COORDINATOR_FENCED
        return Code.NONE

    def _in_sequence(self, entry: ProducerEntry, header: BatchHeader) -> bool:
        first, asked = header.base_sequence, self._verifying.get(header.producer_id)
        if asked is not None:
            # KIP-890: a client that bumps epochs begins each transaction at 0, and if several batches waited for one
            # guard, the first must be appended first.
            later = asked.supports_epoch_bump and not entry.batches and first != 0
            if later or first > asked.lowest_sequence:
                return False
        if entry.epoch == NO_EPOCH:
            return True  # nothing is known: the producer's records may have expired
        if header.producer_epoch != entry.epoch:
            return first == 0
        return first == next_sequence(entry.last_sequence, 1)

    def batch_written(self, header: BatchHeader) -> None:
        """Apply a data batch in the log: a new epoch forgets the batches; an open transaction stays open."""
        before = self.entry(header.producer_id)
        memory = BatchMemory(
            next_sequence(header.last_sequence, -header.last_offset_delta),
            header.last_sequence,
            header.base_offset,
            header.last_offset,
            header.max_timestamp_ms,
        )
        kept = before.batches if header.producer_epoch == before.epoch else ()
        start = before.txn_start_offset
        if header.transactional:
            self._verifying.pop(header.producer_id, None)
            if start is None:
                start = header.base_offset
                self._open[start] = header.producer_id
        self._entries[header.producer_id] = ProducerEntry(
            header.producer_id,
            header.producer_epoch,
            (*kept, memory)[-BATCHES_KEPT_MAX:],
            before.coordinator_epoch,
            start,
            header.max_timestamp_ms,
        )

    def marker_written(self, header: BatchHeader, *, coordinator_epoch: int) -> EndedTransaction | None:
        """Apply an end marker in the log; returns the transaction that it ended, or None if none was open."""
        before, epoch = self.entry(header.producer_id), header.producer_epoch
        self._entries[header.producer_id] = ProducerEntry(
            header.producer_id,
            epoch,
            before.batches if epoch == before.epoch else (),
            coordinator_epoch,
            last_timestamp_ms=header.max_timestamp_ms,
        )
        asked = self._verifying.get(header.producer_id)
        # A marker with the bumped epoch ends the previous transaction; the next one is already being verified.
        if asked is not None and not (asked.supports_epoch_bump and asked.epoch == epoch):
            del self._verifying[header.producer_id]
        if before.txn_start_offset is None:
            return None
        del self._open[before.txn_start_offset]
        return EndedTransaction(header.producer_id, before.txn_start_offset, header.base_offset)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget old questions, and producers whose last record is so old and who have no open transaction."""
        oldest_ms = now_ms - expiration_ms
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if entry.txn_start_offset is not None or entry.last_timestamp_ms > oldest_ms
        }
        self._verifying = {key: asked for key, asked in self._verifying.items() if asked.created_ms > oldest_ms}


class AbortedIndex:
    def __init__(self) -> None:
        self._entries: list[tuple[EndedTransaction, int]] = []

    def add(self, ended: EndedTransaction, stable_offset: int) -> None:
        """Add an aborted transaction; its marker must be the newest.

        ``stable_offset`` is the last stable offset once the marker is written, as far as this partition can know: the
        start of the earliest transaction of another producer id, else the offset after the marker. No later entry
        begins before it, so a search can stop there.
        """
        assert not self._entries or self._entries[-1][0].marker_offset < ended.marker_offset
        self._entries.append((ended, stable_offset))

    def between(self, fetch_offset: int, upper_offset: int) -> tuple[tuple[int, int], ...]:
        """(producer id, first offset) of transactions that overlap ``[fetch_offset, upper_offset)``.

        ``TransactionIndex.collectAbortedTxns``: marker at or after the fetch offset, begun before the upper one.
        """
        found = []
        first = bisect_left(self._entries, fetch_offset, key=lambda entry: entry[0].marker_offset)
        for ended, stable_offset in self._entries[first:]:
            if ended.first_offset < upper_offset:
                found.append((ended.producer_id, ended.first_offset))
            if stable_offset >= upper_offset:
                break
        return tuple(found)
