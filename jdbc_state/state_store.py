"""Contract of a state store, and what every store does in the same way.

Which move of a row is legal is in ``model``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection

from jdbc_state.actions import ACTION_OF, NOTE_OWED, ActionLine
from jdbc_state.claim import Claimant
from jdbc_state.errors import LocalProtocolError
from jdbc_state.model import DECIDE, AcceptedLoss, Decision, HistoryLine, Move, StateRow, claim_lost_error


class DecidingTransaction(Protocol):
    """One database transaction that ends with a decision, or leaves no trace."""

    @property
    def connection(self) -> Connection:
        """For COPY and everything else that belongs to the batch.

        Raises:
            LocalProtocolError: after :meth:`decide`, which is the last statement, or after the end.
        """

    def decide(self, decision: Decision) -> None:
        """Write the state row: the last statement. COMMIT follows when the ``with`` block is left.

        Raises:
            SupersededError: a newer driver has claimed the row; everything is rolled back.
            HaltError: the database has lost commits since the batch was placed; everything is rolled back.
            LocalProtocolError: the row's status allows no decision, or this transaction made one already.
            StateStoreError: the database refused; everything is rolled back.
        """


class OneDecision:
    """The phases of a deciding transaction: open, then decided or failed, and ended at last.

    Args:
        transactional_id: whose row it decides.
    """

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._phase = "open"

    @property
    def decided(self) -> bool:
        """True once the state row is written, and COMMIT may follow."""
        return self._phase == "decided"

    def end(self) -> None:
        """Refuse every further use."""
        self._phase = "ended"

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """The block that writes the state row."""
        self._check_open(DECIDE)
        self._phase = "failed"
        yield
        self._phase = "decided"

    def _check_open(self, operation: str) -> None:
        if self._phase != "open":
            raise LocalProtocolError(
                operation=operation,
                state=f"{self._phase} (deciding transaction of {self._transactional_id!r})",
                rule="decide() comes once, as the last statement of its transaction",
            )


class StateStore(ABC):
    """Where state rows live. Every method raises StateStoreError when the database fails.

    A method that changes a row takes the generation of a claim and raises SupersededError when it is no longer the
    newest, HaltError when the row is behind that claim (see :func:`lost_commits_error`), or LocalProtocolError when
    :data:`TRANSITIONS` has no such move; the row is then as it was. Calling one again that has succeeded, after an
    answer was lost, succeeds.
    """

    @abstractmethod
    def prepare_schema(self) -> None:
        """Make the tables unless they are there, and check that they are ours. Safe to run at the same time."""

    def claim(
        self,
        *,
        transactional_id: str,
        cluster_id: str,
        query_id: str | None,
        run_id: str | None,
        adopt: bool = False,
        expected_generation: int | None = None,
        layout: Mapping[str, Any] | None = None,
    ) -> StateRow:
        """Take the row over: one statement that checks, counts and reads.

        BEFORE anything is asked of Kafka: what Kafka said before a claim may be stale. AFTER it no older driver can
        decide, and a decision that was just being committed is in the answer.

        A row that is lost, and of which the history has lines, is made again from the newest of them, in the same
        statement and by the same rules of ownership. Its generation is beyond every claim that was granted.

        Args:
            transactional_id: the row; made when there is none, and no line of it.
            cluster_id: the Kafka cluster that the claimant talks to.
            query_id: the claimant's query; None for the command line, which takes no part in its ownership.
            run_id: the claimant's run of that query.
            adopt: take the row from another query or cluster. From another query, its batches count from none;
                from another cluster, what it says of Kafka is forgotten.
            expected_generation: the claim that this driver holds already; then no row is made or made again, and only
                that claim, or a later one of the same run whose answer was lost, is replaced.
            layout: where the writer's records and rows are, and how both are made, as JSON has it. It is kept with the
                claim, for those who look at both sides (:meth:`read_layout`); nothing secret may be in it.

        Raises:
            ClaimRefusedError: the row belongs to another query or cluster; nothing was changed.
            SupersededError: the row is no longer at ``expected_generation``; nothing was changed.
            StateStoreError: the database failed, or a session that is not ours to end stood in the way.
        """
        return self._claim(
            Claimant(
                transactional_id=transactional_id,
                cluster_id=cluster_id,
                query_id=query_id,
                run_id=run_id,
                adopt=adopt,
                expected_generation=expected_generation,
                layout=layout,
            )
        )

    @abstractmethod
    def read(self, transactional_id: str) -> StateRow | None:
        """The row, without a claim and without waiting for anyone; None when it or its table does not exist."""

    @abstractmethod
    def read_all(self) -> list[StateRow]:
        """Every row by transactional id, in the same way."""

    @abstractmethod
    def read_history(self, transactional_id: str | None = None, *, last: int) -> list[HistoryLine]:
        """The newest lines of the history, the newest first, in the same way; none where no history is kept.

        Args:
            transactional_id: one sink, whose lines come by their number; None for all, by their last change.
            last: at most so many.
        """

    @abstractmethod
    def read_lost(self) -> list[StateRow]:
        """The newest line of each sink whose row is gone, by transactional id, in the same way."""

    @abstractmethod
    def read_actions(
        self, transactional_id: str | None = None, *, last: int, since: datetime | None = None
    ) -> list[ActionLine]:
        """What drivers and people did, the newest first, in the same way; none where none is kept.

        Args:
            transactional_id: one sink; None for all.
            last: at most so many.
            since: none before this, by the database's clock.
        """

    @abstractmethod
    def read_layout(self, transactional_id: str) -> Mapping[str, Any] | None:
        """The layout of the newest claim that came with one, in the same way; None where none is known."""

    @abstractmethod
    def note_action(
        self, transactional_id: str, generation: int | None, action: str, detail: Mapping[str, Any]
    ) -> None:
        """Write down what changes no row; BEFORE it is done.

        Args:
            transactional_id: of a sink; any id where ``generation`` is None.
            generation: the claim under which it is done; None for what needs none.
            action: one of `jdbc_state.actions.ACTIONS`.
            detail: more of it, as JSON has it.

        Raises:
            SupersededError, HaltError: ``generation`` is not the newest claim; nothing was written.
        """

    def read_standing(self, transactional_id: str) -> StateRow | None:
        """The row; where it is lost, the newest line of its history; None where nothing is known."""
        row = self.read(transactional_id)
        if row is not None:
            return row
        lines = self.read_history(transactional_id, last=1)
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

    def mark_done(
        self,
        transactional_id: str,
        generation: int,
        settled: str,
        *,
        action: str = "",
        detail: Mapping[str, Any] | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> StateRow:
        """Note that Kafka committed the row's transaction; BEFORE the next transaction begins.

        Args:
            transactional_id: the row.
            generation: the claim.
            settled: the pair that Kafka shows.
            action: of the line that tells it, where a recovery settles what was left; '' for a batch that goes its way.
            detail: of that line.
            figures: of the batch, for its line in the history: values that JSON has, by names of the writer's own.
        """
        values, told = {"settled": settled}, detail or {}
        done = Move("mark_done", transactional_id, generation, values, action=action, detail=told, figures=figures)
        return self._move(done)

    def mark_owed(self, transactional_id: str, generation: int, *, detail: Mapping[str, Any] | None = None) -> StateRow:
        """Note that Kafka aborted the row's transaction; BEFORE anything else is asked of Kafka."""
        return self._move(Move("mark_owed", transactional_id, generation, action=NOTE_OWED, detail=detail or {}))

    def take_empty_batch(
        self,
        transactional_id: str,
        generation: int,
        batch_id: int,
        expected: str,
        *,
        figures: Mapping[str, Any] | None = None,
    ) -> StateRow:
        """Note a batch without rows and records as done; the row keeps its pair.

        Args:
            transactional_id: the row.
            generation: the claim.
            batch_id: of the batch.
            expected: the pair that the row must have.
            figures: of the batch, for its line in the history.
        """
        empty = {
            "batch_id": batch_id,
            "row_count": 0,
            "record_count": 0,
            "digest": "",
            "kafka_offsets": {},
            "topic_ids": {},
        }
        taken = Move("take_empty_batch", transactional_id, generation, empty, expected=expected, figures=figures)
        return self._move(taken)

    def accept_open(
        self,
        transactional_id: str,
        generation: int,
        prepared: str,
        batch_id: int,
        kafka_offsets: Mapping[str, tuple[int, int]],
        *,
        detail: Mapping[str, Any] | None = None,
    ) -> StateRow:
        """Note a decision that was lost with its row and its history (a person's decision).

        How many rows and records the batch has is not known: the row says 1, and takes any digest.

        Args:
            transactional_id: the row, of which nothing is known.
            generation: the claim.
            prepared: ``producerId:epoch`` of the transaction that Kafka holds open.
            batch_id: of the batch whose rows are in the table.
            kafka_offsets: where the transaction begins in each 'topic-partition', twice.
            detail: of the line that tells it.
        """
        found = {"prepared_transaction_state": prepared, "batch_id": batch_id, "kafka_offsets": dict(kafka_offsets)}
        unknown = {"row_count": 1, "record_count": 1, "digest": "", "settled": "", "topic_ids": {}}
        return self._decide("accept_open", transactional_id, generation, {**found, **unknown}, detail)

    def accept_replay(
        self, transactional_id: str, generation: int, *, detail: Mapping[str, Any] | None = None
    ) -> StateRow:
        """Let the replay of an owed batch be sent whatever its digest (a person's decision)."""
        return self._decide("accept_replay", transactional_id, generation, {"digest": ""}, detail)

    def drop_batch(
        self, transactional_id: str, generation: int, settled: str, *, detail: Mapping[str, Any] | None = None
    ) -> StateRow:
        """Give the Kafka half of a batch up (a person's decision)."""
        return self._decide("drop_batch", transactional_id, generation, {"settled": settled, "digest": ""}, detail)

    def accept_loss(
        self,
        transactional_id: str,
        generation: int,
        loss: AcceptedLoss,
        *,
        detail: Mapping[str, Any] | None = None,
    ) -> StateRow:
        """Go on without batches that Kafka has and this database lost (a person's decision)."""
        return self._decide("accept_loss", transactional_id, generation, loss.columns(), detail)

    @abstractmethod
    def deciding(self, transactional_id: str, generation: int) -> AbstractContextManager[DecidingTransaction]:
        """One database transaction for a batch's data and its decision.

        Leaving the block by an exception, or without ``decide()``, rolls back. Errors of the database become
        StateStoreError; whatever COMMIT raises becomes CommitUnknownError, because the server may have carried it
        out. A KeyboardInterrupt during COMMIT passes through, and leaves the outcome as unknown.

        Raises:
            SupersededError: ``generation`` is not the newest claim, on entering or in ``decide()``.
            CommitUnknownError: only a new claim can tell whether the decision stands.
        """

    @abstractmethod
    def close(self) -> None:
        """Give connections back. The store can't be used afterwards."""

    @abstractmethod
    def _claim(self, claimant: Claimant) -> StateRow:
        """Take the row over, and end what older claimants have open."""

    @abstractmethod
    def _move(self, move: Move) -> StateRow:
        """Change the row, or raise what `model.Move.refused_by` finds."""

    def _decide(
        self,
        operation: str,
        transactional_id: str,
        generation: int,
        values: Mapping[str, Any],
        detail: Mapping[str, Any] | None,
    ) -> StateRow:
        """A move that a person has decided, which always has its line."""
        action = ACTION_OF[operation]
        return self._move(Move(operation, transactional_id, generation, values, action=action, detail=detail or {}))

    def _standing(self, claimant: Claimant) -> StateRow | None:
        """The row by which a claim is judged: the one that is there, or the line from which it would be made again."""
        read = self.read_standing if claimant.expected_generation is None else self.read
        return read(claimant.transactional_id)
