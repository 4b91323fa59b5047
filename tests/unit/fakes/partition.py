"""A partition of the fake Kafka: the real rules of its leader over a list, and what a reader makes of the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.reference.log.producer_state import (
    EndMarker,
    Guard,
    ProducerStates,
    Standing,
)
from spark_2pc_sink.wire.batch_format import CONTROL_BIT, MAGIC, NO_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader


@dataclass(frozen=True)
class Entry:
    """A batch of records, which may be anything, or an end marker (``commit`` is then not None)."""

    header: BatchHeader
    records: tuple[Any, ...] = ()
    commit: bool | None = None
    coordinator_epoch: int = -1


def header_of(
    producer_id: int, epoch: int, *, sequence: int = NO_SEQUENCE, count: int = 1, offset: int = 0, control: bool = False
) -> BatchHeader:
    """The header of a transactional batch; what the leader's rules do not read is 0."""
    attributes = TRANSACTIONAL_BIT | (CONTROL_BIT if control else 0)
    return BatchHeader(offset, 0, 0, MAGIC, 0, attributes, count - 1, 0, 0, producer_id, epoch, sequence, count)


class FakePartition:
    """The log of one partition; `restarted` reads it again as a broker does that was killed."""

    def __init__(self, entries: list[Entry] | None = None, *, first_offset: int = 0) -> None:
        self.entries: list[Entry] = [] if entries is None else entries
        self._first_offset = first_offset
        self.producers = ProducerStates()
        for entry in self.entries:
            self._apply(entry)

    def restarted(self) -> FakePartition:
        """The same log, with what was in memory only forgotten."""
        return FakePartition(self.entries, first_offset=self._first_offset)

    @property
    def end_offset(self) -> int:
        """The next offset."""
        return self.entries[-1].header.last_offset + 1 if self.entries else self._first_offset

    def standing(self, header: BatchHeader, *, bumps: bool, now_ms: int) -> Standing:
        """Whether the coordinator is to be asked first."""
        return self.producers.standing(header, supports_epoch_bump=bumps, now_ms=now_ms)

    def append(self, header: BatchHeader, records: Sequence[Any], guard: Guard | None) -> tuple[int, int, bool]:
        """Append as ``PartitionLog.append`` does: code, base offset, and whether it stood there before."""
        repeated = self.producers.duplicate(header)
        if repeated is not None:
            return Code.NONE, repeated.first_offset, True
        code = self.producers.check_batch(header, guard)
        if code is not Code.NONE:
            return code, -1, False
        written = header._replace(base_offset=self.end_offset)
        self._write(Entry(written, tuple(records)))
        return Code.NONE, written.base_offset, False

    def append_marker(self, marker: EndMarker) -> int:
        """Append as ``PartitionLog.append_marker`` does."""
        code = self.producers.check_marker(marker)
        if code is Code.NONE:
            header = header_of(marker.producer_id, marker.producer_epoch, offset=self.end_offset, control=True)
            self._write(Entry(header, (), marker.commit, marker.coordinator_epoch))
        return code

    def committed(self) -> list[tuple[Any, str]]:
        """What a read_committed reader sees: each record, and the pair that it was written with."""
        seen: list[tuple[Any, str]] = []
        open_: dict[int, list[tuple[Any, str]]] = {}
        for entry in self.entries:
            header = entry.header
            if entry.commit is None:
                pair = f"{header.producer_id}:{header.producer_epoch}"
                open_.setdefault(header.producer_id, []).extend((record, pair) for record in entry.records)
            else:
                ended = open_.pop(header.producer_id, [])
                seen += ended if entry.commit else []
        return seen

    def ended(self, *, commit: bool) -> list[tuple[ProducerIdAndEpoch, tuple[int, int]]]:
        """Pair, first and last offset of the records of each transaction that ended so."""
        found: list[tuple[ProducerIdAndEpoch, tuple[int, int]]] = []
        open_: dict[int, list[BatchHeader]] = {}
        for entry in self.entries:
            header = entry.header
            if entry.commit is None:
                open_.setdefault(header.producer_id, []).append(header)
            elif (ended := open_.pop(header.producer_id, [])) and entry.commit == commit:
                pair = ProducerIdAndEpoch(header.producer_id, ended[0].producer_epoch)
                found.append((pair, (ended[0].base_offset, ended[-1].last_offset)))
        return found

    def _write(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        if entry.commit is None:
            self.producers.batch_written(entry.header)
        else:
            self.producers.marker_written(entry.header, commit=entry.commit, coordinator_epoch=entry.coordinator_epoch)
