"""Leader epochs and the offsets that each wrote: the answer to OffsetForLeaderEpoch (KIP-101, KIP-320).

Kafka keeps it in ``leader-epoch-checkpoint``; here it is rebuilt from the batches, each of which carries its epoch.
An epoch in which nothing was written is forgotten when the next one begins, as by ``LeaderEpochFileCache.assign``.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1


@dataclass(frozen=True)
class EpochEnd:
    """An epoch and the offset behind its last record; -1 and -1 where it is not known."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """The epochs of one partition (``LeaderEpochFileCache``)."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> int:
        """The latest epoch, or -1."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def begin(self, epoch: int, start_offset: int) -> None:
        """From ``start_offset`` on everything is written in ``epoch``; an epoch that is not later changes nothing."""
        if epoch <= self.latest:
            return
        if self._starts and self._starts[-1] == start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def at(self, offset: int) -> int:
        """The epoch that wrote ``offset``, or -1."""
        position = bisect_right(self._starts, offset)
        return self._epochs[position - 1] if position else NO_EPOCH

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end of the largest epoch that is not later than ``epoch``."""
        if epoch < 0 or epoch > self.latest:
            return EpochEnd(NO_EPOCH, NO_OFFSET)
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        later = bisect_right(self._epochs, epoch)
        floor = self._epochs[later - 1] if later else epoch
        return EpochEnd(floor, self._starts[later])
