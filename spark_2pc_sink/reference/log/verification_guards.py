"""Verification guards: which questions to the coordinator still hold, in memory only (KIP-890, "Verification").

A guard is taken when the coordinator is asked about a transaction, and is used up by the transaction's first record,
or taken away by a marker that comes in between. A reopened log has none: what was on its way is asked again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


class Guard:
    """Proof that the coordinator was asked about a transaction that nothing has ended since. Compared by identity."""

    __slots__ = ()


@dataclass(frozen=True)
class Verifying:
    """A question to the coordinator that is not settled by a record yet (``VerificationStateEntry``).

    Args:
        lowest_sequence: the lowest first sequence that came in this epoch: no batch may pass it.
        supports_epoch_bump: the client is on transaction.version 2, whose transactions begin at sequence 0.
        created_ms: milliseconds since 1970.
    """

    guard: Guard
    lowest_sequence: int
    epoch: int
    supports_epoch_bump: bool
    created_ms: int

    def seen(self, sequence: int, epoch: int) -> Verifying:
        """After another batch that waits for the same guard."""
        if epoch > self.epoch:
            return replace(self, epoch=epoch, lowest_sequence=sequence)
        if epoch == self.epoch and sequence < self.lowest_sequence:
            return replace(self, lowest_sequence=sequence)
        return self


class VerificationGuards:
    """The guards of one partition, at most one for each producer id."""

    def __init__(self) -> None:
        self._verifying: dict[int, Verifying] = {}

    def take(self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool, now_ms: int) -> Guard:
        """The guard of a batch that the coordinator is asked about: batches that wait together have the same one."""
        asked = self._verifying.get(producer_id)
        if asked is None:
            asked = Verifying(Guard(), sequence, epoch, supports_epoch_bump, now_ms)
        self._verifying[producer_id] = asked = asked.seen(sequence, epoch)
        return asked.guard

    def holds(self, producer_id: int, guard: Guard | None) -> bool:
        """True where nothing has used up this guard, or taken it away."""
        asked = self._verifying.get(producer_id)
        return guard is not None and asked is not None and asked.guard is guard

    def in_sequence(self, producer_id: int, sequence: int, *, first_of_epoch: bool) -> bool:
        """False where a batch that waits for a guard may not be the next one, whatever the log says of it.

        Both rules are KIP-890's: a client that bumps epochs begins each transaction at 0, and of several batches that
        waited for one guard, the first must come first.
        """
        asked = self._verifying.get(producer_id)
        if asked is None:
            return True
        if asked.supports_epoch_bump and first_of_epoch and sequence != 0:
            return False
        return sequence <= asked.lowest_sequence

    def record_written(self, producer_id: int) -> None:
        """A transactional record stands in the log."""
        self._verifying.pop(producer_id, None)

    def marker_written(self, producer_id: int, epoch: int) -> None:
        """An end marker stands in the log."""
        asked = self._verifying.get(producer_id)
        # A marker with the bumped epoch belongs to the transaction before; the next one is being verified already.
        if asked is not None and not (asked.supports_epoch_bump and asked.epoch == epoch):
            del self._verifying[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget the questions that were asked ``expiration_ms`` ago, and that no record has followed."""
        expired = [key for key, asked in self._verifying.items() if now_ms - asked.created_ms >= expiration_ms]
        for producer_id in expired:
            del self._verifying[producer_id]
