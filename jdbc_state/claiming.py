"""Claim of a state row as a procedure: read, claim, end blocking sessions, and start over if a connection was cut.

A claim whose connection was cut may have been carried out, or be carried out later, when the server processes it. So a
claim names the generation that was read just before it, and two claims of one call cannot both be carried out. The
outcome of an unanswered claim is read from the row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from jdbc_state.actions import ActionLines
from jdbc_state.claim import Claimant, carried_out, claim_statement
from jdbc_state.connections import pause_s
from jdbc_state.errors import DatabaseUnreachableError, StateStoreError
from jdbc_state.model import StateRow
from jdbc_state.rows import row_of
from jdbc_state.schema import StateTables
from jdbc_state.sessions import end_older_sessions
from jdbc_state.sink_log import sink_log
from jdbc_state.sqlstate import LOCK_NOT_AVAILABLE, is_cut

if TYPE_CHECKING:
    from jdbc_state.store import SqlStateStore

_log = sink_log(__name__)
T = TypeVar("T")

#: A claim gives up at its deadline. This only limits it if each attempt fails at once.
CLAIM_ATTEMPTS_MAX = 1_000
#: How long one call waits for a backend to end; it rolls back first. The claim's deadline limits all of them.
_END_WAIT_MS = 1_000


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
    """One claim, which gives up at its deadline."""

    def __init__(
        self, store: SqlStateStore, tables: StateTables, actions: ActionLines, claimant: Claimant, *, has_history: bool
    ) -> None:
        self._store = store
        self._tables = tables
        self._actions = actions
        self._claimant = claimant
        self._operation = f"claim of {claimant.transactional_id!r}"
        self._has_history = has_history
        self._end_s = time.monotonic() + tables.settings.claim_deadline_ms / 1000
        # Whether a statement was sent and has no answer; and the generation that it named.
        self._in_doubt = False
        self._generation: int | None = None

    def run(self) -> StateRow:
        """Take the row over, and end open sessions of older claimants; see `StateStore.claim`."""
        row = retry_when_cut(self._take, self._end_s)
        self._store.show(row)
        retry_when_cut(lambda: self._end_older(below_generation=row.generation), self._end_s)
        return row

    def _take(self) -> StateRow:
        for _ in range(CLAIM_ATTEMPTS_MAX):
            row = self._try()
            if row is not None:
                return row
            self._end_blocking_sessions()
            if time.monotonic() >= self._end_s:
                break
        remedy = "None of them is a driver of this sink. End their transactions"
        raise self._store.locked_error(self._operation, self._tables.settings.claim_deadline_ms, remedy)

    def _try(self) -> StateRow | None:
        """The claimed row; None if it was refused, or its lock was not released in time."""
        try:
            seen = self._store.read(self._claimant.transactional_id)
            if self._in_doubt:
                found = carried_out(self._claimant, seen, named=self._generation)
                if found is not None:
                    return replace(found, rebuilt_from=self._rebuilt_from(found))
            return self._send(None if seen is None else seen.generation)
        except StateStoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            return None

    def _rebuilt_from(self, row: StateRow) -> int | None:
        """The ``rebuilt_from`` that the claim of ``row`` would have returned; read from its line, if one is kept."""
        lines = self._store.read_actions(row.transactional_id, last=1)
        return lines[0].detail.get("rebuilt_from") if lines and lines[0].generation == row.generation else None

    def _send(self, generation: int | None) -> StateRow | None:
        """Claim the row as it was read; the claim stays in doubt if there is no answer."""
        statement = claim_statement(
            self._tables, self._claimant, self._actions, generation=generation, has_history=self._has_history
        )
        # A claim with another generation can no longer be carried out; one with this generation still can.
        before = self._in_doubt and self._generation == generation
        self._in_doubt, self._generation = True, generation
        try:
            with self._store.database.requests(self._operation) as connection:
                answer = connection.execute(statement).one_or_none()
        except StateStoreError as error:
            if not is_cut(error.sqlstate):
                self._in_doubt = before
            raise
        self._in_doubt = before
        return None if answer is None else row_of(answer)

    def _end_blocking_sessions(self) -> None:
        """End the sessions that may hold the row's lock, if the claimant may have the row; raise if it may not.

        A healthy driver of another query, or on another cluster, must not be disturbed.
        """
        try:
            row = self._store.judged_row(self._claimant)
        except StateStoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            # The whole table is locked, which drivers never do.
            return
        self._claimant.check(row)
        if row is not None:
            self._end_older(below_generation=row.generation + 1)

    def _end_older(self, *, below_generation: int) -> None:
        """End the deciding transactions of older claims, until none is left."""
        operation = f"ending older sessions of {self._claimant.transactional_id!r}"
        while True:
            with self._store.database.requests(operation) as connection:
                sessions = end_older_sessions(
                    connection, self._tables, self._claimant.transactional_id, below_generation, wait_ms=_END_WAIT_MS
                )
            # PostgreSQL also returns False for a session that ended before the signal: only another query tells.
            left = [session for session in sessions if session.ended is not True]
            if not left:
                return
            foreign = any(session.ended is None for session in left)
            if foreign or time.monotonic() >= self._end_s:
                why = (
                    "of another role, which only that role or a superuser may end"
                    if foreign
                    else "that have not ended yet"
                )
                listed = ", ".join(map(str, left))
                raise StateStoreError(
                    operation=self._store.database.named(operation),
                    detail=f"an older driver has open transactions {why}: {listed}. End them with "
                    "pg_terminate_backend(pid)",
                    retriable=True,
                )
