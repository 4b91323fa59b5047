"""One driver's connections to the database: `StateStore`, statement by statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from jdbc_state import ActionLine, Decision, HistoryLine, StateRow
from jdbc_state.claim import Claimant
from jdbc_state.state_store import DecidingTransaction, StateStore
from spark_2pc_sink.errors import LocalProtocolError
from tests.simulation import faults
from tests.simulation.database import commit_unknown, connection_lost
from tests.unit.fakes.memory_store import MemoryConnection, MemoryDecidingTransaction

if TYPE_CHECKING:
    from tests.simulation.world import World

_T = TypeVar("_T")


class SimConnection:
    """What `SimWork.copy_into` gets: statements of the open transaction, each a choice point."""

    def __init__(self, store: SimStore, recorded: MemoryConnection) -> None:
        self._store = store
        self._recorded = recorded

    def execute(self, statement: object, parameters: object = None) -> None:
        """One statement."""
        self._store.statement(str(statement), partial(self._recorded.execute, statement, parameters))

    def add(self, statement: object, parameters: object) -> None:
        """One more with the last one: no choice point of its own, as it would have the same effects."""
        self._recorded.execute(statement, parameters)


class SimDeciding:
    """`DecidingTransaction` over one session."""

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


class SimStore:
    """`StateStore`; see `SqlStateStore` for the statements that each method is made of."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.database = world.database

    def prepare_schema(self) -> None:
        """The table is there."""

    def claim(self, **claim: Any) -> StateRow:
        """The claim, then the end of older sessions."""
        claimant = Claimant(**{"adopt": False, "expected_generation": None, **claim})
        row = self.statement("claim", lambda: self.database.claim_row(claimant))
        self.statement("end-older", lambda: self.database.end_older(row.generation))
        if self._world.tracing:
            self._world.trace(f"  row: {row.status} {row.prepared_transaction_state} generation {row.generation}")
        return row

    def read(self, transactional_id: str) -> StateRow | None:
        """A plain read."""
        return self.statement("read", lambda: self.database.read(transactional_id))

    def read_all(self) -> list[StateRow]:
        """Not used by a driver."""
        raise LocalProtocolError(operation="read_all", state="simulation", rule="no driver reads all rows")

    def read_lost(self) -> list[StateRow]:
        """Not used by a driver."""
        raise LocalProtocolError(operation="read_lost", state="simulation", rule="no driver reads all rows")

    def read_actions(self, transactional_id: str | None = None, **_chosen: object) -> list[ActionLine]:
        """Not used by a driver."""
        raise LocalProtocolError(operation="read_actions", state="simulation", rule="no driver reads what people did")

    def read_layout(self, transactional_id: str) -> Mapping[str, Any] | None:
        """Not used by a driver."""
        raise LocalProtocolError(operation="read_layout", state="simulation", rule="no driver reads its layout")

    def read_standing(self, transactional_id: str) -> StateRow | None:
        """The store's own, over the two statements here."""
        return StateStore.read_standing(cast("StateStore", self), transactional_id)

    def read_history(self, transactional_id: str, *, last: int) -> list[HistoryLine]:
        """A plain read."""
        return self.statement("read-history", lambda: self.database.read_history(transactional_id, last=last))

    check_generation = _as_one_statement("check_generation")
    mark_initialized = _as_one_statement("mark_initialized")
    mark_done = _as_one_statement("mark_done")
    mark_owed = _as_one_statement("mark_owed")
    take_empty_batch = _as_one_statement("take_empty_batch")
    accept_open = _as_one_statement("accept_open")
    accept_replay = _as_one_statement("accept_replay")
    drop_batch = _as_one_statement("drop_batch")
    accept_loss = _as_one_statement("accept_loss")
    note_action = _as_one_statement("note_action")

    def deciding(self, transactional_id: str, generation: int) -> AbstractContextManager[DecidingTransaction]:
        """BEGIN … COMMIT."""
        return cast("AbstractContextManager[DecidingTransaction]", self._deciding(generation))

    def close(self) -> None:
        """Nothing is held."""

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
