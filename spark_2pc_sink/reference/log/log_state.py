"""State of a partition that follows from its batches: producers, aborted transactions, leader epochs, stable offset.

Pure: the same batches in the same order make the same state, whether they are being appended or read back.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.reference.log.aborted_index import AbortedIndex
from spark_2pc_sink.reference.log.leader_epochs import LeaderEpochs
from spark_2pc_sink.reference.log.producer_state import ProducerStates
from spark_2pc_sink.reference.storage.records import read_marker
from spark_2pc_sink.wire.batch_format import BatchHeader


@dataclass(frozen=True)
class _Ended:
    """A transaction that is over, but whose marker no reader may see yet: it still holds back the stable offset."""

    first_offset: int
    marker_offset: int


class LogState:
    """The state of one partition.

    Args:
        verification: as for `ProducerStates`.

    Attributes:
        producers: what they may append next.
        aborted: what read_committed readers skip.
        epochs: which leader epoch wrote what.
    """

    def __init__(self, *, verification: bool) -> None:
        self.producers: ProducerStates = ProducerStates(verification=verification)
        self.aborted: AbortedIndex = AbortedIndex()
        self.epochs: LeaderEpochs = LeaderEpochs()
        self._ended: list[_Ended] = []

    def recovered(self, header: BatchHeader, batch: bytes) -> None:
        """Take a batch into account that is in the log already: it was right when it was written.

        Raises:
            BatchError: a control batch that cannot be read.
        """
        self.epochs.begin(header.leader_epoch, header.base_offset)
        if not header.has_producer:
            return
        if not header.control:
            self.producers.batch_written(header)
            return
        marker = read_marker(batch, header)
        if marker is not None:
            self.marker_written(header, commit=marker.commit, coordinator_epoch=marker.coordinator_epoch)

    def marker_written(self, header: BatchHeader, *, commit: bool, coordinator_epoch: int) -> None:
        """An end marker stands in the log. Where no transaction was open it changes the producer only."""
        ended = self.producers.marker_written(header, commit=commit, coordinator_epoch=coordinator_epoch)
        if ended is None:
            return
        self._ended.append(_Ended(ended.first_offset, ended.marker_offset))
        if not commit:
            other = self.producers.first_open_offset()
            self.aborted.add(ended, ended.marker_offset + 1 if other is None else other)

    def stable_offset(self, high_watermark: int) -> int:
        """The last stable offset at a high watermark, which only grows from call to call.

        No transaction may be open below it, nor one be over whose marker is not below the high watermark
        (``ProducerStateManager.firstUnstableOffset``).
        """
        self._ended = [each for each in self._ended if each.marker_offset >= high_watermark]
        unstable = [high_watermark, *(each.first_offset for each in self._ended)]
        first_open = self.producers.first_open_offset()
        if first_open is not None:
            unstable.append(first_open)
        return min(unstable)
