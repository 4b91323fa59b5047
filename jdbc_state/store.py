"""State store in PostgreSQL, and the procedure of a claim.

A claim whose connection was cut may have been carried out, or be carried out later, when the server processes it. So a
claim names the generation that was read just before it, and two claims of one call cannot both be carried out. The
outcome of an unanswered claim is read from the row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, select

from jdbc_state.actions import LAYOUT, ActionLine, ActionLines, Actor
from jdbc_state.claim import Claimant, carried_out, claim_statement
from jdbc_state.connections import Database, pause_s
from jdbc_state.deciding import JoinedDecisions, deciding
from jdbc_state.errors import DatabaseUnreachableError, StateStoreError
from jdbc_state.history import all_rows, line_of, lost_rows, newest_lines, row_of
from jdbc_state.model import Decision, HistoryLine, KeptRecords, Move, StateRow, claim_lost_error
from jdbc_state.moves import Moves
from jdbc_state.preparing import FoundTable, SchemaReport, check, migrate, prepare
from jdbc_state.schema import VERSION, StateTables, quoted
from jdbc_state.sessions import Liveness, Presence, end_older_sessions, lock_holders, presence_name, run_presence_name
from jdbc_state.settings import StoreSettings
from jdbc_state.sink_log import sink_log
from jdbc_state.sqlstate import LOCK_NOT_AVAILABLE, is_cut
from jdbc_state.state_store import DecidingTransaction, KeepingStore
from jdbc_state.survey import Survey, find_drivers, survey

_UNDEFINED_TABLE = "42P01"


class SqlStateStore(KeepingStore):
    """State rows in PostgreSQL; see ``StateStore``. Safe to use from several threads.

    Args:
        url: SQLAlchemy's URL, dialect postgresql, driver psycopg2.
        actor: user of the store; None for this process.
        shown_while: True while the claimant of a row is working for its query; see `Presence`.
        shown_by_run: show the run of the newest claim instead of that claim: for a run that holds many rows through
            one store.
    """

    def __init__(
        self,
        url: str,
        settings: StoreSettings = StoreSettings(),  # noqa: B008 - frozen
        *,
        actor: Actor | None = None,
        shown_while: Callable[[], bool] = lambda: True,
        shown_by_run: bool = False,
    ) -> None:
        self._settings = settings
        #: Opens its connections; the kept connection may be shared.
        self.database: Database = Database(url, settings)
        self._presence = Presence(self.database, shown_while)
        self._tables = StateTables(settings)
        self._state = self._tables.state
        self._actions = ActionLines(self._tables, actor or Actor.of_this_process())
        self._moves = Moves(self._tables, self._actions)
        # Set from the settings until it was checked.
        self._has_history = settings.history_batches > 0
        self._joined = JoinedDecisions(self._moves)
        self._shown_by_run = shown_by_run

    def prepare_schema(self) -> None:
        """Create missing tables, and check that existing ones are ours, and in PostgreSQL."""

        def prepare_once() -> FoundTable | None:
            with self._changes("prepare_schema") as connection:
                self.database.check_kind()
                return prepare(connection, self._tables, where=self.database.label)

        history = retry_when_cut(prepare_once, time.monotonic() + self._settings.claim_deadline_ms / 1000)
        # A store that keeps none may find another table of that name.
        self._has_history = history is not None and (history.version or 0) >= VERSION
        self._moves.has_figures = history is not None and not history.lacks

    def migrate(self) -> list[str]:
        """Migrate tables of an earlier version, as the role of their owner; return the changes made.

        Raises:
            StateStoreError: a table is foreign, or of a later version, or another role's; or it stayed locked.
        """
        operation = f"migration of table {quoted(self._state)}"
        with self._naming_holders(operation, self._settings.lock_timeout_ms) as connection:
            return migrate(connection, self._tables, where=self.database.label)

    def check_schema(self, role: str | None = None) -> SchemaReport:
        """Report the version of the tables, and what ``role`` (default: the connected one) lacks; changes nothing."""
        with self.database.requests("check of the state tables") as connection:
            return check(connection, self._tables, role=role, where=self.database.label)

    def _claim(self, claimant: Claimant) -> StateRow:
        return Claiming(self, self._tables, self._actions, claimant, has_history=self._has_history).run()

    def read(self, transactional_id: str) -> StateRow | None:
        rows = self._select(all_rows(self._state, transactional_id))
        return rows[0] if rows else None

    def read_all(self) -> list[StateRow]:
        return self._select(all_rows(self._state))

    def read_history(self, transactional_id: str | None = None, *, last: int) -> list[HistoryLine]:
        found = self._answers(newest_lines(self._tables, transactional_id, last=last))
        return [line_of(answer) for answer in found]

    def read_lost(self) -> list[StateRow]:
        return self._select(lost_rows(self._tables))

    def read_actions(
        self, transactional_id: str | None = None, *, last: int, since: datetime | None = None
    ) -> list[ActionLine]:
        found = self._answers(self._actions.newest(transactional_id, last=last, since=since))
        return [ActionLine(**answer._mapping) for answer in found]  # noqa: SLF001 - see `row_of`

    def read_layout(self, transactional_id: str) -> Mapping[str, Any] | None:
        with_layout = self._tables.actions.c.detail.has_key(LAYOUT)
        found = self._answers(self._actions.newest(transactional_id, last=1).where(with_layout))
        return dict(found[0].detail[LAYOUT]) if found else None

    def note_action(
        self, transactional_id: str, generation: int | None, action: str, detail: Mapping[str, Any]
    ) -> None:
        if generation is not None and not self._settings.history_batches:
            return
        line = self._actions.line_alone(transactional_id, generation, action, detail)
        with self._changes(f"log line {action} of {transactional_id!r}") as connection:
            written = connection.execute(line).one_or_none()
        if written is None and generation is not None:
            raise claim_lost_error(transactional_id, generation, self.read(transactional_id))

    def deciding(self, transactional_id: str, generation: int) -> AbstractContextManager[DecidingTransaction]:
        return deciding(self.database, self._moves, transactional_id, generation)

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
        move = decision.move(transactional_id, generation)
        self._joined.decide(connection, move, settled=settled, kept=kept)

    def read_kept(self, transactional_id: str) -> KeptRecords | None:
        records = self._tables.records
        found = self._answers(select(records).where(records.c.transactional_id == transactional_id))
        return KeptRecords(found[0].batch_id, tuple(found[0].partitions), bytes(found[0].batches)) if found else None

    def liveness(self, row: StateRow) -> Liveness:
        """Whether the driver with the claim of ``row``, or with a newer one, is alive; without a claim."""
        with self.database.requests("search for the driver") as connection:
            return find_drivers(connection, self._state, [row])[row.transactional_id]

    def survey(self, transactional_id: str | None = None) -> Survey:
        """The database's view of one sink, or of all, without a claim; see `jdbc_state.survey`."""
        operation = "status of every sink" if transactional_id is None else f"status of {transactional_id!r}"
        with self._naming_holders(operation, self._settings.claim_lock_timeout_ms) as connection:
            return survey(connection, self._tables, transactional_id)

    def locked_error(self, operation: str, waited_ms: int, remedy: str) -> StateStoreError:
        table = quoted(self._state)
        with self.database.requests(operation) as connection:
            holders = ", ".join(map(str, lock_holders(connection, table=table))) or "none now"
        held = f"Sessions that hold locks on {table}: {holders}"
        detail = f"the row or its table stayed locked for {waited_ms} ms. {held}. {remedy}"
        named = self.database.named(operation)
        return StateStoreError(operation=named, detail=detail, sqlstate=LOCK_NOT_AVAILABLE, retriable=True)

    def close(self) -> None:
        self._presence.end()
        self.database.close()

    def show(self, row: StateRow) -> None:
        table = quoted(self._state)
        if row.run_id is not None:
            of_run, of_claim = run_presence_name(table, row.run_id), (table, row.transactional_id, row.generation)
            self._presence.show(of_run if self._shown_by_run else presence_name(*of_claim))

    def _changes(self, operation: str) -> AbstractContextManager[Connection]:
        return self.database.requests(operation, lock_timeout_ms=self._settings.lock_timeout_ms)

    @contextmanager
    def _naming_holders(self, operation: str, lock_timeout_ms: int) -> Iterator[Connection]:
        """As `Database.requests`; if the block gives up waiting for a lock, the error names its holders."""
        try:
            with self.database.requests(operation, lock_timeout_ms=lock_timeout_ms) as connection:
                yield connection
        except StateStoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            raise self.locked_error(operation, lock_timeout_ms, "Wait for them, and try again") from error

    def _select(self, statement: Select[Any]) -> list[StateRow]:
        return [row_of(answer) for answer in self._answers(statement)]

    def _answers(self, statement: Select[Any]) -> Sequence[Any]:
        """Rows of a SELECT; empty if the table does not exist."""
        try:
            # Only DROP or ALTER TABLE can block it.
            with self.database.requests("read") as connection:
                return connection.execute(statement).all()
        except StateStoreError as error:
            if error.sqlstate == _UNDEFINED_TABLE:
                return []
            raise

    def _move(self, move: Move) -> StateRow:
        statement, parameters = self._moves.statement(move)
        operation = f"{move.operation} of {move.transactional_id!r}"
        with self._changes(operation) as connection:
            answer = connection.execute(statement, parameters).one_or_none()
        return row_of(answer) if answer is not None else move.refused_by(self.read(move.transactional_id))


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
                    # The ``rebuilt_from`` that it would have returned; read from its line, if one is kept.
                    lines = self._store.read_actions(found.transactional_id, last=1)
                    kept = lines[0].detail if lines and lines[0].generation == found.generation else {}
                    return replace(found, rebuilt_from=kept.get("rebuilt_from"))
            return self._send(None if seen is None else seen.generation)
        except StateStoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            return None

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
                role = "of another role, which only that role or a superuser may end"
                why, listed = role if foreign else "that have not ended yet", ", ".join(map(str, left))
                detail = (
                    f"an older driver has open transactions {why}: {listed}. End them with pg_terminate_backend(pid)"
                )
                named = self._store.database.named(operation)
                raise StateStoreError(operation=named, detail=detail, retriable=True)
