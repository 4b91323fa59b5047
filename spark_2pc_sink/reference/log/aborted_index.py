"""Index of aborted transactions of a partition: what a read_committed reader must skip.

Kafka keeps it in ``.txnindex`` files (``TransactionIndex``); here it is in memory and rebuilt from the end markers
when the log is opened. Entries are in the order of their markers.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from spark_2pc_sink.reference.log.producer_state import EndedTransaction


@dataclass(frozen=True)
class AbortedTransaction:
    """One aborted transaction.

    Args:
        marker_offset: of its ABORT marker.
        stable_offset: the last stable offset once the marker stands, as far as this partition can know: where the
            earliest transaction of another producer id began, else the offset behind the marker. No entry behind this
            one begins before it, which is what ends a search.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_offset: int


class AbortedIndex:
    """All aborted transactions of one partition."""

    def __init__(self) -> None:
        self._entries: list[AbortedTransaction] = []
        self._marker_offsets: list[int] = []

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """In the order of the markers."""
        return tuple(self._entries)

    def add(self, ended: EndedTransaction, stable_offset: int) -> None:
        """A transaction was aborted whose marker is behind all others'."""
        assert not ended.commit
        assert not self._marker_offsets or self._marker_offsets[-1] < ended.marker_offset
        self._entries.append(
            AbortedTransaction(ended.producer_id, ended.first_offset, ended.marker_offset, stable_offset)
        )
        self._marker_offsets.append(ended.marker_offset)

    def between(self, fetch_offset: int, upper_offset: int) -> tuple[tuple[int, int], ...]:
        """(producer id, first offset) of those that overlap ``[fetch_offset, upper_offset)``.

        ``TransactionIndex.collectAbortedTxns``: marker at or behind the fetch offset, begun before the upper one.
        """
        found = []
        for entry in self._entries[bisect_left(self._marker_offsets, fetch_offset) :]:
            if entry.first_offset < upper_offset:
                found.append((entry.producer_id, entry.first_offset))
            if entry.stable_offset >= upper_offset:
                break
        return tuple(found)
