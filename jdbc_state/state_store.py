"""Contract of a state store, and the parts that all stores share.

The legal moves of a row are in ``model``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from jdbc_state.actions import ACCEPT_LOSS, ACCEPT_REPLAY, DROP, NOTE_OWED, OPEN_TRANSACTION, ActionLine
from jdbc_state.claim import Claimant
from jdbc_state.errors import LocalProtocolError
from jdbc_state.model import DECIDE, Decision, HistoryLine, KeptRecords, Move, StateRow, claim_lost_error


class DecidingTransaction(ABC):
    """One database transaction that ends with a decision, or is rolled back."""

    def __init__(self, transactional_id: str, connection: Connection) -> None:
        self._transactional_id = transactional_id
        self._connection = connection
        # Open, then decided or failed, and finally ended.
        self._phase = "open"

    @property
    def connection(self) -> Connection:
        """For COPY and everything else that belongs to the batch; refused after :meth:`decide`, the last statement."""
        self._check_open("use of the connection")
        return self._connection

    def decide(self, decision: Decision) -> None:
        """Write the state row: the last statement. COMMIT follows when the ``with`` block exits.

        Raises:
            SupersededError: a newer driver has claimed the row; everything is rolled back.
            CommitsLostError: the database has lost commits since the batch was placed; everything is rolled back.
            LocalProtocolError: the row's status allows no decision, or this transaction made one already.
            StateStoreError: the database refused; everything is rolled back.
        """
        self._check_open(DECIDE)
        self._phase = "failed"
        self._write(decision)
        self._phase = "decided"

    @property
    def decided(self) -> bool:
        return self._phase == "decided"

    def end(self) -> None:
        self._phase = "ended"

    @abstractmethod
    def _write(self, decision: Decision) -> None:
        """Write the state row, or raise why not."""

    def _check_open(self, operation: str) -> None:
        if self._phase != "open":
            state = f"{self._phase} (deciding transaction of {self._transactional_id!r})"
            rule = "decide() must be called once, as the last statement of its transaction"
            raise LocalProtocolError(operation=operation, state=state, rule=rule)


class StateStore(ABC):
    """Where state rows live. Every method raises StateStoreError when the database fails.

    A method that changes a row takes the generation of a claim. It raises SupersededError if that is not the newest,
    CommitsLostError if the row is older than that claim (see :func:`lost_commits_error`), or LocalProtocolError if
    :data:`TRANSITIONS` has no such move; the row is then unchanged. A method that has succeeded may be called again
    after a lost answer, and succeeds again. ``detail`` is that of the line in the action log.
    """

    @abstractmethod
    def prepare_schema(self) -> None:
        """Create missing tables, and check that existing ones are ours. Safe to run concurrently."""

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

        Call it BEFORE asking Kafka anything: an answer from before the claim may be stale. AFTER it no older driver can
        decide, and a decision that was just being committed is in the answer.

        A row that is lost but has history lines is rebuilt from the newest of them, in the same statement and under the
        same rules of ownership. Its generation is greater than that of every claim that was granted.

        Args:
            transactional_id: key of the row; created if neither the row nor a history line exists.
            cluster_id: the claimant's Kafka cluster.
            query_id: the claimant's query; None for the command line, which takes no part in ownership.
            run_id: the claimant's run of that query.
            adopt: take the row from another query or cluster. From another query, its batches start again;
                from another cluster, its Kafka state is cleared.
            expected_generation: the claim that this driver holds; then no row is created or rebuilt, and only that
                claim, or a later one of the same run whose answer was lost, is replaced.
            layout: places of the writer's records and rows, and how both are made, as JSON. It is stored with the
                claim for readers of both sides (:meth:`read_layout`) and must not contain secrets.

        Raises:
            ClaimRefusedError: the row belongs to another query or cluster; nothing was changed.
            SupersededError: the row is no longer at ``expected_generation``; nothing was changed.
            StateStoreError: the database failed, or a session that must not be ended blocked the claim.
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
        """The row, without a claim and without waiting for locks; None if it or its table does not exist."""

    @abstractmethod
    def read_all(self) -> list[StateRow]:
        """Every row by transactional id, also without a claim."""

    @abstractmethod
    def read_history(self, transactional_id: str | None = None, *, last: int) -> list[HistoryLine]:
        """The newest ``last`` history lines, the newest first, also without a claim; empty if no history is kept.

        Those of one sink are ordered by line number, those of all by their last change.
        """

    @abstractmethod
    def read_lost(self) -> list[StateRow]:
        """The newest line of each sink whose row is gone, by transactional id, also without a claim."""

    @abstractmethod
    def read_actions(
        self, transactional_id: str | None = None, *, last: int, since: datetime | None = None
    ) -> list[ActionLine]:
        """The newest ``last`` actions of drivers and people, the newest first, also without a claim.

        Empty if none are kept. ``since`` excludes older ones, by the database's clock.
        """

    @abstractmethod
    def read_layout(self, transactional_id: str) -> Mapping[str, Any] | None:
        """The layout of the newest claim that has one, also without a claim; None if none is known."""

    @abstractmethod
    def note_action(
        self, transactional_id: str, generation: int | None, action: str, detail: Mapping[str, Any]
    ) -> None:
        """Log an action that does not change a row, one of `jdbc_state.actions.ACTIONS`, BEFORE it is carried out.

        ``generation`` is the claim that it is done under; None if it needs no claim, and for an id without a sink.

        Raises:
            SupersededError, CommitsLostError: ``generation`` is not the newest claim; nothing was written.
        """

    def read_standing(self, transactional_id: str) -> StateRow | None:
        """The row; if it is lost, the newest line of its history; None if neither exists."""
        row = self.read(transactional_id)
        if row is not None:
            return row
        lines = self.read_history(transactional_id, last=1)
        return replace(lines[0].row, rebuilt_from=lines[0].row.decision) if lines else None

    def check_generation(self, transactional_id: str, generation: int) -> StateRow:
        """The row, while ``generation`` is the newest claim."""
        row = self.read(transactional_id)
        if row is None or row.generation != generation:
            raise claim_lost_error(transactional_id, generation, row)
        return row

    def mark_initialized(self, transactional_id: str, generation: int, settled: str) -> StateRow:
        """Note the ``producerId:epoch`` with which a first recovery took the id over."""
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
            settled: ``producerId:epoch`` that Kafka shows.
            action: action of its log line, if a recovery settles a previous transaction; '' for a normal batch.
            figures: figures of the batch for its history line: JSON values, under names that the writer chooses.
        """
        values = {"settled": settled}
        done = Move("mark_done", transactional_id, generation, values, action=action, detail=detail, figures=figures)
        return self._move(done)

    def mark_owed(self, transactional_id: str, generation: int, *, detail: Mapping[str, Any] | None = None) -> StateRow:
        """Note that Kafka aborted the row's transaction; BEFORE anything else is asked of Kafka."""
        return self._move(Move("mark_owed", transactional_id, generation, action=NOTE_OWED, detail=detail))

    def take_empty_batch(
        self,
        transactional_id: str,
        generation: int,
        batch_id: int,
        expected: str,
        *,
        figures: Mapping[str, Any] | None = None,
    ) -> StateRow:
        """Note a batch without rows and records as done; the row must have, and keeps, the ``expected`` decision."""
        counted: dict[str, Any] = {"row_count": 0, "record_count": 0, "digest": "", "kafka_offsets": {}}
        empty = Decision(prepared="", expected=expected, batch_id=batch_id, figures=figures, **counted)
        return self._move(empty.move(transactional_id, generation))

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

        The batch's numbers of rows and records are not known: the row says 1, and accepts any digest.

        Args:
            prepared: ``producerId:epoch`` of the open transaction in Kafka.
            batch_id: the batch whose rows are in the table.
            kafka_offsets: the transaction's first offset in each 'topic-partition', twice.
        """
        found = {"prepared_transaction_state": prepared, "batch_id": batch_id, "kafka_offsets": dict(kafka_offsets)}
        unknown = {"row_count": 1, "record_count": 1, "digest": "", "settled": "", "topic_ids": {}}
        values = {**found, **unknown}
        opened = Move("accept_open", transactional_id, generation, values, action=OPEN_TRANSACTION, detail=detail)
        return self._move(opened)

    def accept_replay(
        self, transactional_id: str, generation: int, *, detail: Mapping[str, Any] | None = None
    ) -> StateRow:
        """Let the replay of an owed batch be sent with any digest (a person's decision)."""
        accepted = Move(
            "accept_replay", transactional_id, generation, {"digest": ""}, action=ACCEPT_REPLAY, detail=detail
        )
        return self._move(accepted)

    def drop_batch(
        self,
        transactional_id: str,
        generation: int,
        settled: str,
        *,
        digest: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> StateRow:
        """Give the Kafka half of a batch up (a person's decision); with '' any replay of the batch is skipped then."""
        values = {"settled": settled, "digest": digest}
        return self._move(Move("drop_batch", transactional_id, generation, values, action=DROP, detail=detail))

    def accept_loss(
        self,
        transactional_id: str,
        generation: int,
        settled: str,
        *,
        batch_id: int | None,
        record_count: int,
        kafka_offsets: Mapping[str, tuple[int, int]],
        detail: Mapping[str, Any] | None = None,
    ) -> StateRow:
        """Continue without batches that Kafka has and this database lost (a person's decision).

        Args:
            settled: ``producerId:epoch`` that Kafka shows.
            batch_id: the last of them; None if they belong to a query that no longer owns the row.
            record_count: its records in Kafka as far as they are known, at least 1: with an empty digest any replay of
                it is accepted.
            kafka_offsets: the newest known offsets, by 'topic-partition'.
        """
        lost = {"batch_id": batch_id, "record_count": record_count, "kafka_offsets": dict(kafka_offsets)}
        values = {**lost, "row_count": 0, "digest": "", "settled": settled}
        return self._move(Move("accept_loss", transactional_id, generation, values, action=ACCEPT_LOSS, detail=detail))

    @abstractmethod
    def deciding(self, transactional_id: str, generation: int) -> AbstractContextManager[DecidingTransaction]:
        """Open one database transaction for a batch's data and its decision.

        Leaving the block by an exception, or without ``decide()``, rolls back. Database errors become StateStoreError;
        any error of COMMIT becomes CommitUnknownError, because the server may have carried it out. A KeyboardInterrupt
        during COMMIT is passed on, and leaves the outcome unknown.

        Raises:
            SupersededError: ``generation`` is not the newest claim, on entering or in ``decide()``.
            CommitUnknownError: only a new claim can tell whether the decision was committed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connections. The store can't be used afterwards."""

    @abstractmethod
    def _claim(self, claimant: Claimant) -> StateRow:
        """Take the row over, and end open sessions of older claimants."""

    @abstractmethod
    def _move(self, move: Move) -> StateRow:
        """Change the row, or raise what `model.Move.refused_by` finds."""

    def judged_row(self, claimant: Claimant) -> StateRow | None:
        """The row by which a claim is judged: the existing one, or the line from which it would be rebuilt."""
        read = self.read_standing if claimant.expected_generation is None else self.read
        return read(claimant.transactional_id)


class KeepingStore(StateStore):
    """A store that also decides in the transactions of a caller, and keeps the records of these decisions."""

    @abstractmethod
    def decide_within(
        self,
        connection: Connection,
        transactional_id: str,
        generation: int,
        decision: Decision,
        *,
        settled: str | None = None,
        kept: KeptRecords | None = None,
    ) -> None:
        """Write the state row in the caller's transaction, as its last statement; the caller commits it.

        Any error of that COMMIT leaves the outcome unknown, which only a new claim can tell. Database errors are not
        wrapped: the caller's session must see them.

        Args:
            connection: in the transaction with the rows; any PostgreSQL driver.
            settled: ``producerId:epoch`` that Kafka returned for the previous decision, noted with this one; None if
                that is noted already.
            kept: the records of this decision, if they must be kept; the store then needs ``keep_records``.

        Raises:
            SupersededError, CommitsLostError, LocalProtocolError: as by `DecidingTransaction.decide`.
        """

    @abstractmethod
    def read_kept(self, transactional_id: str) -> KeptRecords | None:
        """The records of the newest decision that has some, without waiting for locks; None for none."""
