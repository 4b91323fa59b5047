"""Claim of a state row as a procedure: read, claim, end blocking sessions, and start over if a connection was cut.

A claim whose connection was cut may have been carried out, or be carried out later, when the server processes it. So a
claim names the generation that was read just before it, and two claims of one call cannot both be carried out. The
outcome of an unanswered claim is read from the row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from jdbc_state.actions import ActionLines
from jdbc_state.claim import Claimant, carried_out, claim_statement
from jdbc_state.connections import Database, pause_s
from jdbc_state.errors import DatabaseUnreachableError, StateStoreError
from jdbc_state.model import StateRow
from jdbc_state.rows import row_of
from jdbc_state.schema import StateTables, quoted
from jdbc_state.sessions import end_older_sessions, lock_holders
from jdbc_state.sink_log import sink_log
from jdbc_state.sqlstate import LOCK_NOT_AVAILABLE, is_cut
from jdbc_state.state_store import StateStore

_log = sink_log(__name__)
T = TypeVar("T")

#: A claim gives up at its deadline. This only limits it if each attempt fails at once.
CLAIM_ATTEMPTS_MAX = 1_000
#: How long one call waits for a backend to end; it rolls back first. The claim's deadline limits all of them.
_END_WAIT_MS = 1_000


@dataclass
class _Call:
    """One call of `Claiming.claim`, which gives up at ``end_s`` on the monotonic clock."""

    claimant: Claimant
    end_s: float
    #: Whether a claim of this call was sent and has no answer; and the generation that it named.
    in_doubt: bool = False
    generation: int | None = None


def retry_when_cut(step: Callable[[], T], end_s: float) -> T:
    """The result of ``step``, which is repeated until ``end_s``, on the monotonic clock, if its connection is cut."""
    for cuts in range(CLAIM_ATTEMPTS_MAX - 1):
        try:
            return step()
        except DatabaseUnreachableError:
            # It already waited for the database.
            raise
        except StateStoreError as error:
            left_s = end_s - time.monotonic()
            if not is_cut(error.sqlstate) or left_s <= 0:
                raise
            _log.warning("%s; trying again for up to %.0f s", error, left_s)
            time.sleep(min(pause_s(cuts), left_s))
    return step()


class Claiming:
    def __init__(self, database: Database, tables: StateTables, actions: ActionLines, store: StateStore) -> None:
        self._database = database
        self._tables = tables
        self._settings = tables.settings
        self._actions = actions
        self._store = store
        # Set from the settings until the store has checked.
        self.has_history: bool = tables.settings.history_batches > 0

    def claim(self, claimant: Claimant, claimed: Callable[[StateRow], None]) -> StateRow:
        """Take the row over, and end open sessions of older claimants; see `jdbc_state.state_store.StateStore.claim`.

        ``claimed`` is called once with the row, before older sessions are ended.
        """
        call = _Call(claimant, time.monotonic() + self._settings.claim_deadline_ms / 1000)
        row = retry_when_cut(lambda: self._take(call), call.end_s)
        claimed(row)
        retry_when_cut(lambda: self._end_older(call, below_generation=row.generation), call.end_s)
        return row

    def _take(self, call: _Call) -> StateRow:
        for _ in range(CLAIM_ATTEMPTS_MAX):
            row = self._try(call)
            if row is not None:
                return row
            self._end_blocking_sessions(call)
            if time.monotonic() >= call.end_s:
                break
        remedy = "None of them is a driver of this sink. End their transactions"
        operation = f"claim of {call.claimant.transactional_id!r}"
        raise self.locked(operation, self._settings.claim_deadline_ms, remedy)

    def _try(self, call: _Call) -> StateRow | None:
        """The claimed row; None if it was refused, or its lock was not released in time."""
        try:
            seen = self._store.read(call.claimant.transactional_id)
            if call.in_doubt:
                found = carried_out(call.claimant, seen, named=call.generation)
                if found is not None:
                    return replace(found, rebuilt_from=self._rebuilt_from(found))
            return self._send(call, None if seen is None else seen.generation)
        except StateStoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            return None

    def _rebuilt_from(self, row: StateRow) -> int | None:
        """The ``rebuilt_from`` that the claim of ``row`` would have returned; read from its line, if one is kept."""
        lines = self._store.read_actions(row.transactional_id, last=1)
        return lines[0].detail.get("rebuilt_from") if lines and lines[0].generation == row.generation else None

    def _send(self, call: _Call, generation: int | None) -> StateRow | None:
        """Claim the row as it was read; the claim stays in doubt if there is no answer."""
        statement = claim_statement(
            self._tables, call.claimant, self._actions, generation=generation, has_history=self.has_history
        )
        # A claim with another generation can no longer be carried out; one with this generation still can.
        before = call.in_doubt and call.generation == generation
        call.in_doubt, call.generation = True, generation
        try:
            with self._database.requests(f"claim of {call.claimant.transactional_id!r}") as connection:
                answer = connection.execute(statement).one_or_none()
        except StateStoreError as error:
            if not is_cut(error.sqlstate):
                call.in_doubt = before
            raise
        call.in_doubt = before
        return None if answer is None else row_of(answer)

    def _end_blocking_sessions(self, call: _Call) -> None:
        """End the sessions that may hold the row's lock, if the claimant may have the row; raise if it may not.

        A healthy driver of another query, or on another cluster, must not be disturbed.
        """
        try:
            row = self._store.judged_row(call.claimant)
        except StateStoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            # The whole table is locked, which drivers never do.
            return
        call.claimant.check(row)
        if row is not None:
            self._end_older(call, below_generation=row.generation + 1)

    def _end_older(self, call: _Call, *, below_generation: int) -> None:
        """End the deciding transactions of older claims, until none is left."""
        operation = f"ending older sessions of {call.claimant.transactional_id!r}"
        while True:
            with self._database.requests(operation) as connection:
                sessions = end_older_sessions(
                    connection,
                    table=quoted(self._tables.state),
                    history=quoted(self._tables.history),
                    transactional_id=call.claimant.transactional_id,
                    below_generation=below_generation,
                    wait_ms=_END_WAIT_MS,
                )
            # PostgreSQL also returns False for a session that ended before the signal: only another query tells.
            left = [session for session in sessions if session.ended is not True]
            if not left:
                return
            foreign = any(session.ended is None for session in left)
            if foreign or time.monotonic() >= call.end_s:
                why = (
                    "of another role, which only that role or a superuser may end"
                    if foreign
                    else "that have not ended yet"
                )
                listed = ", ".join(map(str, left))
                raise StateStoreError(
                    operation=self._database.named(operation),
                    detail=f"an older driver has open transactions {why}: {listed}. End them with "
                    "pg_terminate_backend(pid)",
                    retriable=True,
                )

    def locked(self, operation: str, waited_ms: int, remedy: str) -> StateStoreError:
        with self._database.requests(operation) as connection:
            holders = lock_holders(connection, table=quoted(self._tables.state))
        return StateStoreError(
            operation=self._database.named(operation),
            detail=f"the row or its table stayed locked for {waited_ms} ms. Sessions that hold locks on "
            f"{quoted(self._tables.state)}: {', '.join(map(str, holders)) or 'none now'}. {remedy}",
            sqlstate=LOCK_NOT_AVAILABLE,
            retriable=True,
        )
