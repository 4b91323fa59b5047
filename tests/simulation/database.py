"""The database: the state rows of `MemoryStateStore`, with PostgreSQL's sessions, row lock and COMMIT round them.

What it adds to the store in memory: the deciding UPDATE takes the lock of the row until COMMIT or ROLLBACK; a claim
that meets the lock ends the older session first, as `SqlStateStore.claim` does; a COMMIT can hang, and be carried out
later; and all connections can be cut at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from jdbc_state import ActionLine, Decision, HistoryLine, StateRow
from jdbc_state.claim import Claimant
from jdbc_state.model import Move
from jdbc_state.state_store import DecidingTransaction, StateStore
from spark_2pc_sink.errors import CommitUnknownError, LocalProtocolError, StateStoreError
from tests.simulation import faults
from tests.simulation.broker import Record
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID
from tests.unit.fakes.memory_store import MemoryConnection, MemoryDecidingTransaction, MemoryStateStore

if TYPE_CHECKING:
    from tests.simulation.world import World


#: What writes rows into the target table.
COPY: Final = "copy"
#: What the user's own part of a decision writes, with the id of the batch.
ON_DECIDE: Final = "on-decide"
#: What writes the dead letters of a batch, in place of those that it has.
DEAD_LETTERS: Final = "dead-letters"
#: State rows, their history, what was done, and how many statements and decisions were committed.
Snapshot = tuple[dict[str, StateRow], dict[str, tuple[HistoryLine, ...]], tuple[ActionLine, ...], int, int]


def connection_lost(operation: str) -> StateStoreError:
    """A statement, or its answer, that was lost with the connection."""
    return StateStoreError(operation=operation, detail="the connection was lost", sqlstate="08006", retriable=True)


def commit_unknown() -> CommitUnknownError:
    return CommitUnknownError(operation="COMMIT", detail="the connection was lost", sqlstate="08006")


class SimDatabase(MemoryStateStore):
    """One server. Statements are atomic; what comes between two of them is the scheduler's choice."""

    def __init__(self) -> None:
        super().__init__()
        #: The session whose COMMIT hangs in the server, after its client has given up.
        self.hanging: MemoryDecidingTransaction | None = None
        self.decisions: list[Decision] = []
        #: The run of each claim that was granted, None for an operator's.
        self.claims: list[str | None] = []
        #: True once a query has claimed the row, and not an operator alone.
        self.owned = False
        #: What was there before the last commit of a batch, and before the last write: what a standby may have.
        self.before_batch: Snapshot | None = None
        self.before_write: Snapshot | None = None
        #: What was there before each write, from the first on: what a backup may have.
        self.backups: list[Snapshot] = []
        self.owed_count = 0
        self.prepare_schema()

    def _aged(self, row: StateRow) -> StateRow:
        """No driver reads the age, so none is reckoned."""
        return row

    @property
    def sessions(self) -> list[MemoryDecidingTransaction]:
        """Deciding transactions that are open and not ended by the server."""
        return [each for each in self._open if not each.recorded.ended]

    @property
    def has_sessions(self) -> bool:
        return any(not each.recorded.ended for each in self._open)

    def locked_by(self) -> MemoryDecidingTransaction | None:
        """The session that has written the state row and not ended."""
        return next((each for each in self.sessions if each.pending is not None), None)

    def claim_row(self, claimant: Claimant) -> StateRow:
        """The claim's one statement, and what `SqlStateStore._end_blocking_sessions` does where the row is locked."""
        if self.locked_by() is not None:
            standing = self.read(TRANSACTIONAL_ID)
            claimant.check(standing)
            if standing is not None:
                self.end_older(standing.generation + 1)
        before = self._snapshot()
        open_, self._open = self._open, []
        try:
            row = self.claim(**vars(claimant))
        finally:
            self._open = open_
        self._wrote(before)
        self.claims.append(claimant.run_id)
        self.owned |= claimant.query_id is not None
        return row

    def _move(self, move: Move) -> StateRow:
        before = self._snapshot()
        row = super()._move(move)
        self._wrote(before)
        return row

    def mark_owed(self, transactional_id: str, generation: int, *, detail: Mapping[str, Any] | None = None) -> StateRow:
        """As the store in memory, and counted."""
        row = super().mark_owed(transactional_id, generation, detail=detail)
        self.owed_count += 1
        return row

    def end_older(self, below_generation: int) -> None:
        """``pg_terminate_backend`` for the deciding transactions of older claims."""
        for session in self.sessions:
            if session.generation < below_generation:
                self.end(session)

    def begin(self, generation: int) -> MemoryDecidingTransaction:
        """BEGIN, and the first look at the row."""
        self.check_generation(TRANSACTIONAL_ID, generation)
        session = MemoryDecidingTransaction(self, TRANSACTIONAL_ID, generation)
        self._open.append(session)
        return session

    def commit(self, session: MemoryDecidingTransaction) -> None:
        before = self._snapshot()
        self._commit(session)
        self._wrote(before)
        self.before_batch = before
        self._open.remove(session)
        self.decisions += [what for name, what in session.recorded.statements if isinstance(what, Decision)]

    def roll_back(self, session: MemoryDecidingTransaction) -> None:
        """ROLLBACK, or a connection that was closed; not of a COMMIT that is under way."""
        if session is not self.hanging and session in self._open:
            self._open.remove(session)

    def cut(self) -> None:
        """A failover to a synchronous standby, or a restart: all sessions end, what was committed stays."""
        for session in self.sessions:
            self.end(session)

    def fail_over_to(self, standby: Snapshot) -> None:
        """A failover to a standby that has no more than this."""
        self.cut()
        self._rows, self._lines, self._actions, statements, decisions = standby
        del self.committed[statements:]
        del self.decisions[decisions:]
        self.before_batch = self.before_write = None

    def restore(self, number: int) -> None:
        """A person restores the backup of this number; the later ones are of no use any more."""
        backup = self.backups[number]
        del self.backups[number:]
        self.fail_over_to(backup)

    def delete_row(self) -> None:
        self._wrote(self._snapshot())
        del self._rows[TRANSACTIONAL_ID]

    def delete_history(self) -> None:
        self._lines.pop(TRANSACTIONAL_ID, None)

    @property
    def has_history(self) -> bool:
        """Whether a line is there, of which a lost row could be made again."""
        return bool(self._lines.get(TRANSACTIONAL_ID))

    def set_status(self, status: str) -> None:
        self._wrote(self._snapshot())
        self._rows[TRANSACTIONAL_ID] = replace(self._rows[TRANSACTIONAL_ID], status=status)

    def add(self, records: tuple[Record, ...]) -> None:
        """A person writes rows into the table."""
        self.committed.append((COPY, records))

    def dead_letters(self, batch_id: int | None = None) -> tuple[Record, ...]:
        """Rows that were left out of their batch: of one, or of all."""
        written: dict[int, tuple[Record, ...]] = {}
        for statement, parameters in self.committed:
            if statement == DEAD_LETTERS:
                records: Any = parameters
                written[records[0].batch_id] = records
        return tuple(record for number, records in written.items() if batch_id in {None, number} for record in records)

    @property
    def row(self) -> StateRow | None:
        """The state row, as a person sees it."""
        return self._rows.get(TRANSACTIONAL_ID)

    def _wrote(self, before: Snapshot) -> None:
        self.before_write = before
        self.backups.append(before)

    def _snapshot(self) -> Snapshot:
        return dict(self._rows), dict(self._lines), self._actions, len(self.committed), len(self.decisions)

    def end(self, session: MemoryDecidingTransaction) -> None:
        session.recorded.ended = True
        if session is self.hanging:
            self.hanging = None
            self._open.remove(session)

    def finish_hanging(self) -> None:
        """The COMMIT that hung is carried out."""
        session, self.hanging = self.hanging, None
        if session is not None:
            self.commit(session)

    def decided_with(self) -> list[Any]:
        """The batches of which the user's own part is there."""
        return [batch_id for name, batch_id in self.committed if name == ON_DECIDE]

    def contents(self) -> list[Any]:
        return [row for name, rows in self.committed if name == COPY and isinstance(rows, tuple) for row in rows]


_T = TypeVar("_T")


class SimConnection:
    """What `SimWork.copy_into` gets: statements of the open transaction, each a choice point."""

    def __init__(self, store: SimStore, recorded: MemoryConnection) -> None:
        self._store = store
        self._recorded = recorded

    def execute(self, statement: object, parameters: object = None) -> None:
        self._store.statement(str(statement), partial(self._recorded.execute, statement, parameters))

    def add(self, statement: object, parameters: object) -> None:
        """One more with the last one: no choice point of its own, as it would have the same effects."""
        self._recorded.execute(statement, parameters)


class SimDeciding:
    def __init__(self, store: SimStore, session: MemoryDecidingTransaction) -> None:
        self._store = store
        self._session = session
        self.connection = SimConnection(store, session.recorded)

    def decide(self, decision: Decision) -> None:
        """The UPDATE of the state row: takes its lock."""
        self._store.statement("update-row", partial(self._session.decide, decision))


def _as_one_statement(name: str) -> Callable[..., Any]:
    """The method of `SimDatabase` of this name, as one request. What it takes is said once, in `StateStore`."""
    operation = name.replace("_", "-")

    def method(store: SimStore, transactional_id: str, generation: int, *written: object, **told: object) -> Any:
        carried_out = partial(getattr(store.database, name), transactional_id, generation, *written, **told)
        return store.statement(" ".join((operation, *map(str, written))), carried_out)

    return method


def _not_asked(_store: SimStore, *_arguments: object, **_named: object) -> Any:
    raise LocalProtocolError(operation="read", state="simulation", rule="no driver asks for this")


class SimStore:
    """`StateStore`; see `SqlStateStore` for the statements that each method is made of."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.database = world.database

    def prepare_schema(self) -> None: ...

    def claim(self, **claim: Any) -> StateRow:
        """The claim, then the end of older sessions."""
        claimant = Claimant(**claim)
        row = self.statement("claim", lambda: self.database.claim_row(claimant))
        self.statement("end-older", lambda: self.database.end_older(row.generation))
        if self._world.tracing:
            self._world.trace(f"  row: {row.status} {row.prepared_transaction_state} generation {row.generation}")
        return row

    def read(self, transactional_id: str) -> StateRow | None:
        return self.statement("read", lambda: self.database.read(transactional_id))

    read_all = read_lost = read_actions = read_layout = _not_asked

    def read_standing(self, transactional_id: str) -> StateRow | None:
        """The store's own, over the two statements here."""
        return StateStore.read_standing(cast("StateStore", self), transactional_id)

    def read_history(self, transactional_id: str, *, last: int) -> list[HistoryLine]:
        return self.statement("read-history", lambda: self.database.read_history(transactional_id, last=last))

    check_generation = _as_one_statement("check_generation")
    mark_initialized = _as_one_statement("mark_initialized")
    mark_done = _as_one_statement("mark_done")
    mark_owed = _as_one_statement("mark_owed")
    take_empty_batch = _as_one_statement("take_empty_batch")
    accept_open = _as_one_statement("accept_open")
    accept_replay = _as_one_statement("accept_replay")
    _drop_batch = _as_one_statement("drop_batch")
    accept_loss = _as_one_statement("accept_loss")
    note_action = _as_one_statement("note_action")

    def drop_batch(self, transactional_id: str, generation: int, settled: str, *, digest: str = "", **told: Any) -> Any:
        row = self.database.row
        if not digest and row is not None and row.batch_id is not None:
            self._world.ledger.left_out.add(row.batch_id)
        return self._drop_batch(transactional_id, generation, settled, digest=digest, **told)

    def deciding(self, transactional_id: str, generation: int) -> AbstractContextManager[DecidingTransaction]:
        return cast("AbstractContextManager[DecidingTransaction]", self._deciding(generation))

    def close(self) -> None: ...

    @contextmanager
    def _deciding(self, generation: int) -> Iterator[SimDeciding]:
        session = self.statement("begin", lambda: self.database.begin(generation))
        try:
            yield SimDeciding(self, session)
            if session.pending is not None:
                self._commit(session)
        finally:
            session.end()
            self.database.roll_back(session)

    def _commit(self, session: MemoryDecidingTransaction) -> None:
        self._world.io(
            faults.COMMIT,
            "COMMIT",
            lambda: self.database.commit(session),
            commit_unknown,
            hang=lambda: self._hang(session),
        )

    def _hang(self, session: MemoryDecidingTransaction) -> None:
        if not session.recorded.ended:
            self.database.hanging = session

    def statement(self, what: str, effect: Callable[[], _T]) -> _T:
        """One statement with its own answer."""
        return self._world.io(faults.SQL, what, effect, lambda: connection_lost(what))
