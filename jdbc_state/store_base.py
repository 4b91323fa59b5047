"""Base of both stores: who claims, and what each move writes. Which move is legal is in ``model``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from jdbc_state.claim import Claimant
from jdbc_state.model import AcceptedLoss, HistoryLine, Move, StateRow, claim_lost_error


class StoreBase(ABC):
    """The methods of `model.StateStore` that are made of a claim, of one conditional update, or of a read."""

    @abstractmethod
    def read(self, transactional_id: str) -> StateRow | None:
        """See `model.StateStore.read`."""

    @abstractmethod
    def read_history(self, transactional_id: str, *, last: int) -> list[HistoryLine]:
        """See `model.StateStore.read_history`."""

    @abstractmethod
    def _claim(self, claimant: Claimant) -> StateRow:
        """Take the row over, and end what older claimants have open."""

    @abstractmethod
    def _move(self, move: Move) -> StateRow:
        """Change the row, or raise what `model.Move.refused_by` finds."""

    def claim(
        self,
        *,
        transactional_id: str,
        cluster_id: str,
        query_id: str | None,
        run_id: str | None,
        adopt: bool = False,
        expected_generation: int | None = None,
    ) -> StateRow:
        """Take the row over: one statement that checks, counts and reads."""
        return self._claim(
            Claimant(
                transactional_id=transactional_id,
                cluster_id=cluster_id,
                query_id=query_id,
                run_id=run_id,
                adopt=adopt,
                expected_generation=expected_generation,
            )
        )

    def _standing(self, claimant: Claimant) -> StateRow | None:
        """The row by which a claim is judged: the one that is there, or the line from which it would be made again."""
        row = self.read(claimant.transactional_id)
        if row is not None or claimant.expected_generation is not None:
            return row
        lines = self.read_history(claimant.transactional_id, last=1)
        return lines[0].row if lines else None

    def check_generation(self, transactional_id: str, generation: int) -> StateRow:
        """The row, while ``generation`` is the newest claim."""
        row = self.read(transactional_id)
        if row is None or row.generation != generation:
            raise claim_lost_error(transactional_id, generation, row)
        return row

    def mark_initialized(self, transactional_id: str, generation: int, settled: str) -> StateRow:
        """Note the pair with which a first recovery took the id over."""
        return self._move(Move("mark_initialized", transactional_id, generation, {"settled": settled}))

    def mark_done(self, transactional_id: str, generation: int, settled: str) -> StateRow:
        """Note that Kafka committed the row's transaction."""
        return self._move(Move("mark_done", transactional_id, generation, {"settled": settled}))

    def mark_owed(self, transactional_id: str, generation: int) -> StateRow:
        """Note that Kafka aborted the row's transaction."""
        return self._move(Move("mark_owed", transactional_id, generation))

    def take_empty_batch(self, transactional_id: str, generation: int, batch_id: int, expected: str) -> StateRow:
        """Note a batch without records as done."""
        empty = {
            "batch_id": batch_id,
            "row_count": 0,
            "record_count": 0,
            "digest": "",
            "kafka_offsets": {},
            "topic_ids": {},
        }
        return self._move(Move("take_empty_batch", transactional_id, generation, empty, expected=expected))

    def accept_open(
        self,
        transactional_id: str,
        generation: int,
        prepared: str,
        batch_id: int,
        kafka_offsets: Mapping[str, tuple[int, int]],
    ) -> StateRow:
        """Note a decision that was lost with its row and its history."""
        found = {"prepared_transaction_state": prepared, "batch_id": batch_id, "kafka_offsets": dict(kafka_offsets)}
        unknown = {"row_count": 1, "record_count": 1, "digest": "", "settled": "", "topic_ids": {}}
        return self._move(Move("accept_open", transactional_id, generation, {**found, **unknown}))

    def accept_replay(self, transactional_id: str, generation: int) -> StateRow:
        """Let the replay of an owed batch be sent whatever its digest."""
        return self._move(Move("accept_replay", transactional_id, generation, {"digest": ""}))

    def drop_batch(self, transactional_id: str, generation: int, settled: str) -> StateRow:
        """Give the Kafka half of a batch up."""
        return self._move(Move("drop_batch", transactional_id, generation, {"settled": settled, "digest": ""}))

    def accept_loss(self, transactional_id: str, generation: int, loss: AcceptedLoss) -> StateRow:
        """Go on without batches that Kafka has and this database lost."""
        return self._move(Move("accept_loss", transactional_id, generation, loss.columns()))
