"""State store in memory: for tests and simulations, and to read what a store does without its SQL.

A true fake: it is held to the same tests as the store on PostgreSQL. It keeps what was committed and forgets what was
not, a claim ends older deciding transactions, and a COMMIT that meets such an end is unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, cast

from sqlalchemy import Connection

from jdbc_state import history
from jdbc_state.actions import LAYOUT, ROUTINE, ActionLine, Actor
from jdbc_state.claim import Claimant
from jdbc_state.errors import CommitUnknownError, StateStoreError
from jdbc_state.model import (
    DECIDE,
    DONE,
    NONE,
    OWED,
    Decision,
    HistoryLine,
    Move,
    StateRow,
    claim_lost_error,
    legal_before,
    status_after,
)
from jdbc_state.state_store import DecidingTransaction, StateStore

_ADMIN_SHUTDOWN = "57P01"
_UNDEFINED_TABLE = "42P01"
#: Who acts where a test does not say.
NOBODY = Actor(os_user="nobody", host="nowhere", program="test")
#: Whom the database of this store takes for logged in.
ROLE = "job"


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


def _changed_at(row: StateRow) -> datetime:
    return max(moment for moment in (row.claimed_at, row.decided_at, row.settled_at) if moment is not None)


def fits(row: StateRow, move: Move) -> bool:
    """True where the row may make this move; the same rule as in the WHERE clause of its statement."""
    return (
        row.generation == move.generation
        and row.status in legal_before(move.operation)
        and move.expected in {None, row.prepared_transaction_state}
    )


class MemoryConnection:
    """Stands in for SQLAlchemy's Connection in a deciding transaction: it records what it is told to execute."""

    def __init__(self) -> None:
        self.statements: list[tuple[object, object]] = []
        self.ended = False

    def execute(self, statement: object, parameters: object = None) -> None:
        """Record a statement; COMMIT appends it to ``MemoryStateStore.committed``."""
        if self.ended:
            raise StateStoreError(
                operation="deciding transaction",
                detail="terminating connection due to administrator command",
                sqlstate=_ADMIN_SHUTDOWN,
                retriable=True,
            )
        self.statements.append((statement, parameters))


class MemoryDecidingTransaction(DecidingTransaction):
    """Made by :meth:`MemoryStateStore.deciding` only."""

    def __init__(self, store: MemoryStateStore, transactional_id: str, generation: int) -> None:
        self.recorded = MemoryConnection()
        super().__init__(transactional_id, cast("Connection", self.recorded))
        self.transactional_id = transactional_id
        self.generation = generation
        self.pending: StateRow | None = None
        self.figures: Mapping[str, Any] | None = None
        self._store = store

    def _write(self, decision: Decision) -> None:
        """Keep the row as it will be, for COMMIT."""
        self.recorded.execute(DECIDE, decision)
        self.figures = decision.figures
        self.pending = self._store.moved(decision.move(self.transactional_id, self.generation))


class MemoryStateStore(StateStore):
    """State rows in this process; see ``StateStore``. Safe to use from several threads.

    Args:
        clock: the time, with a zone; for tests of a row's age.
        history_batches: lines of the history kept for each transactional id, as in `StoreSettings`.

    Attributes:
        committed: the statements of every deciding transaction that was committed, in order.
    """

    def __init__(
        self, *, clock: Callable[[], datetime] = _utc_now, history_batches: int = 1_000, actor: Actor = NOBODY
    ) -> None:
        self.committed: list[tuple[object, object]] = []
        self._clock = clock
        self._lock = threading.RLock()
        self._rows: dict[str, StateRow] = {}
        # Lines by rising number. Tuples, so that a copy of this is a copy of all.
        self._lines: dict[str, tuple[HistoryLine, ...]] = {}
        self._history_batches = history_batches
        self._actor = actor
        # Lines by rising time, in the same way.
        self._actions: tuple[ActionLine, ...] = ()
        self._numbers = 0
        self._open: list[MemoryDecidingTransaction] = []
        self._prepared = False

    def prepare_schema(self) -> None:
        """From now on rows can be claimed."""
        self._prepared = True

    def _claim(self, claimant: Claimant) -> StateRow:
        with self._lock:
            if not self._prepared:
                raise StateStoreError(operation="claim", detail="there is no table", sqlstate=_UNDEFINED_TABLE)
            there = claimant.transactional_id in self._rows
            standing = self.judged_row(claimant)
            claimant.check(standing)
            row = self._taken_over(standing, claimant)
            rebuilt_from = None if there or standing is None else standing.decision
            self._write(row, history.ADOPTED if claimant.adopt else history.CLAIMED)
            again = {} if rebuilt_from is None else {"rebuilt_from": rebuilt_from}
            self._tell(row.transactional_id, row, claimant.action, {**claimant.detail, **again})
            self._trim_actions(row.transactional_id)
            for transaction in self._open:
                if transaction.transactional_id == claimant.transactional_id:
                    transaction.recorded.ended = True
            return replace(self._aged(row), rebuilt_from=rebuilt_from)

    def read(self, transactional_id: str) -> StateRow | None:
        with self._lock:
            row = self._rows.get(transactional_id)
            return None if row is None else self._aged(row)

    def read_all(self) -> list[StateRow]:
        with self._lock:
            return [self._aged(self._rows[transactional_id]) for transactional_id in sorted(self._rows)]

    def read_history(self, transactional_id: str | None = None, *, last: int) -> list[HistoryLine]:
        with self._lock:
            if transactional_id is None:
                every = [line for lines in self._lines.values() for line in lines]
                found = sorted(every, key=lambda line: _changed_at(line.row), reverse=True)
            else:
                found = [*self._lines.get(transactional_id, ())[::-1]]
            return [replace(line, row=self._aged(line.row)) for line in found[:last]]

    def read_lost(self) -> list[StateRow]:
        with self._lock:
            return [self._aged(lines[-1].row) for name, lines in sorted(self._lines.items()) if name not in self._rows]

    def read_actions(
        self, transactional_id: str | None = None, *, last: int, since: datetime | None = None
    ) -> list[ActionLine]:
        with self._lock:
            found = [
                line
                for line in self._actions[::-1]
                if transactional_id in {None, line.transactional_id} and (since is None or line.at >= since)
            ]
            return found[:last]

    def read_layout(self, transactional_id: str) -> Mapping[str, Any] | None:
        lines = self.read_actions(transactional_id, last=len(self._actions))
        return next((line.detail[LAYOUT] for line in lines if LAYOUT in line.detail), None)

    def note_action(
        self, transactional_id: str, generation: int | None, action: str, detail: Mapping[str, Any]
    ) -> None:
        """Write down what changes no row."""
        with self._lock:
            row = None if generation is None else self._rows.get(transactional_id)
            if generation is not None and (row is None or row.generation != generation):
                raise claim_lost_error(transactional_id, generation, row)
            self._tell(transactional_id, row, action, detail)

    def deciding(self, transactional_id: str, generation: int) -> AbstractContextManager[DecidingTransaction]:
        return self._deciding(transactional_id, generation)

    def close(self) -> None:
        """Nothing is held."""

    @contextmanager
    def _deciding(self, transactional_id: str, generation: int) -> Iterator[MemoryDecidingTransaction]:
        with self._lock:
            self.check_generation(transactional_id, generation)
            transaction = MemoryDecidingTransaction(self, transactional_id, generation)
            self._open.append(transaction)
        try:
            yield transaction
            self._commit(transaction)
        finally:
            transaction.end()
            with self._lock:
                self._open.remove(transaction)

    def _commit(self, transaction: MemoryDecidingTransaction) -> None:
        with self._lock:
            if transaction.pending is None:
                return
            if transaction.recorded.ended:
                raise CommitUnknownError(
                    operation=f"COMMIT of the decision for {transaction.transactional_id!r}",
                    detail="terminating connection due to administrator command",
                    sqlstate=_ADMIN_SHUTDOWN,
                )
            resent = self._rows[transaction.transactional_id].status == OWED
            self._write(transaction.pending, history.RESENT if resent else history.DECIDED, transaction.figures)
            self.committed += transaction.recorded.statements

    def moved(self, move: Move) -> StateRow:
        """The row as ``move`` would leave it; or as it is, where that is the same already."""
        with self._lock:
            row = self._rows.get(move.transactional_id)
            if row is None or not fits(row, move):
                return move.refused_by(row)
            now, operation = self._clock(), move.operation
            times: dict[str, Any] = {} if operation == "mark_initialized" else {"settled_at": now}
            if operation in (DECIDE, "accept_open"):
                times = {"decided_at": now, "settled_at": None}
            anew = operation == DECIDE or (operation in history.EVENT_OF and row.batch_id != move.values["batch_id"])
            return replace(row, status=status_after(operation), decision=row.decision + anew, **times, **move.values)

    def _move(self, move: Move) -> StateRow:
        with self._lock:
            before, row = self._rows.get(move.transactional_id), self.moved(move)
            if row is not before:
                self._write(row, history.EVENT_OF.get(move.operation, history.NOTED), move.figures)
                if move.action:
                    self._tell(row.transactional_id, row, move.action, move.detail or {})
            return self._aged(row)

    def _write(self, row: StateRow, event: str, figures: Mapping[str, Any] | None = None) -> None:
        """The row and its line; the event is that of a new one. The same as in `history.with_line`."""
        self._rows[row.transactional_id] = row
        if not self._history_batches:
            self._lines.pop(row.transactional_id, None)
            return
        lines = self._lines.get(row.transactional_id, ())
        before = {line.row.decision: line for line in lines}.get(row.decision, HistoryLine(event, row))
        others = [line for line in lines if line.row.decision != row.decision]
        written = replace(before, row=row, figures=before.figures if figures is None else figures)
        kept = sorted([*others, written], key=lambda line: line.row.decision)
        more = event in {history.RESENT, *history.EVENT_OF.values()}
        if more and not row.decision % history.trim_step(self._history_batches):
            kept = [line for line in kept if line.row.decision > row.decision - self._history_batches]
        self._lines[row.transactional_id] = tuple(kept)

    def _tell(self, transactional_id: str, row: StateRow | None, action: str, detail: Mapping[str, Any]) -> None:
        """The line of an action; of those under a claim none where no history is kept."""
        if row is not None and not self._history_batches:
            return
        self._numbers += 1
        written = ActionLine(
            number=self._numbers,
            transactional_id=transactional_id,
            at=self._clock(),
            action=action,
            batch_id=None if row is None else row.batch_id,
            generation=None if row is None else row.generation,
            role=ROLE,
            detail=dict(detail),
            **vars(self._actor),
        )
        self._actions = (*self._actions, written)

    def _trim_actions(self, transactional_id: str) -> None:
        """The same as in `actions.ActionLines.trim`: one line more stays, which the claim has just written."""
        mine = [each for each in self._actions if each.transactional_id == transactional_id and each.action in ROUTINE]
        old: set[int] = set()
        for with_layout in (True, False):
            kind = [each.number for each in mine if (LAYOUT in each.detail) is with_layout]
            older = [number for number in kind if number != self._numbers]
            old.update(older[: max(0, len(older) - self._history_batches)])
        if old:
            self._actions = tuple(each for each in self._actions if each.number not in old)

    def _taken_over(self, row: StateRow | None, claimant: Claimant) -> StateRow:
        """What a claim makes of a row; the same as in ``claim.claim_statement``."""
        if row is None:
            row = StateRow(
                transactional_id=claimant.transactional_id, generation=0, cluster_id=None, claimed_at=self._clock()
            )
        moved = row.cluster_id not in (None, claimant.cluster_id)
        other_query = claimant.query_id is not None and row.query_id not in (None, claimant.query_id)
        lines = self._lines.get(claimant.transactional_id, ())
        newest = lines[-1].row.decision if lines else 0
        if moved or other_query or row.decision < newest:
            row = replace(row, decision=max(row.decision, newest) + 1)
        if moved:
            status = NONE if row.status == DONE else row.status
            row = replace(row, status=status, prepared_transaction_state="", settled="", kafka_offsets={}, topic_ids={})
        if other_query:
            row = replace(row, batch_id=None)
        return replace(
            row,
            generation=row.generation + 1,
            query_id=row.query_id if claimant.query_id is None else claimant.query_id,
            run_id=claimant.run_id,
            cluster_id=claimant.cluster_id,
            claimed_at=self._clock(),
            rebuilt_from=None,
        )

    def _aged(self, row: StateRow) -> StateRow:
        now = self._clock()
        decided_age_s = None if row.decided_at is None else (now - row.decided_at).total_seconds()
        return replace(row, age_s=(now - _changed_at(row)).total_seconds(), decided_age_s=decided_age_s)
