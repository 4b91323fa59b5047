"""One driver's connections to the database: `StateStore`, statement by statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from jdbc_state import Decision, StateRow
from jdbc_state.claim import Claimant
from jdbc_state.memory import MemoryConnection, MemoryDecidingTransaction
from jdbc_state.model import DecidingTransaction
from spark_2pc_sink.errors import LocalProtocolError
from tests.simulation import faults
from tests.simulation.database import commit_unknown, connection_lost

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


class SimDeciding:
    """`DecidingTransaction` over one session."""

    def __init__(self, store: SimStore, session: MemoryDecidingTransaction) -> None:
        self._store = store
        self._session = session
        self.connection = SimConnection(store, session.recorded)

    def decide(self, decision: Decision) -> None:
        """The UPDATE of the state row: takes its lock."""
        self._store.statement("update-row", partial(self._session.decide, decision))


class SimStore:
    """`StateStore`; see `SqlStateStore` for the statements that each method is made of."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._database = world.database

    def prepare_schema(self) -> None:
        """The table is there."""

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
        """The claim, then the end of older sessions."""
        claimant = Claimant(
            transactional_id=transactional_id,
            cluster_id=cluster_id,
            query_id=query_id,
            run_id=run_id,
            adopt=adopt,
            expected_generation=expected_generation,
        )
        row = self.statement("claim", lambda: self._database.claim_row(claimant))
        self.statement("end-older", lambda: self._database.end_older(row.generation))
        self._world.trace(f"  row: {row.status} {row.prepared_transaction_state} generation {row.generation}")
        return row

    def read(self, transactional_id: str) -> StateRow | None:
        """A plain read."""
        return self.statement("read", lambda: self._database.read(transactional_id))

    def read_all(self) -> list[StateRow]:
        """Not used by a driver."""
        raise LocalProtocolError(operation="read_all", state="simulation", rule="no driver reads all rows")

    def check_generation(self, transactional_id: str, generation: int) -> StateRow:
        """A read, and the comparison."""
        return self.statement("check", lambda: self._database.check_generation(transactional_id, generation))

    def mark_initialized(self, transactional_id: str, generation: int, settled: str) -> StateRow:
        """One UPDATE, as all the following."""
        return self.statement(
            "mark-initialized", lambda: self._database.mark_initialized(transactional_id, generation, settled)
        )

    def mark_done(self, transactional_id: str, generation: int, settled: str) -> StateRow:
        """See `StateStore`."""
        return self.statement(
            f"mark-done {settled}", lambda: self._database.mark_done(transactional_id, generation, settled)
        )

    def mark_owed(self, transactional_id: str, generation: int) -> StateRow:
        """See `StateStore`."""
        return self.statement("mark-owed", lambda: self._database.mark_owed(transactional_id, generation))

    def take_empty_batch(self, transactional_id: str, generation: int, batch_id: int, after: str) -> StateRow:
        """See `StateStore`."""
        return self.statement(
            "take-empty", lambda: self._database.take_empty_batch(transactional_id, generation, batch_id, after)
        )

    def accept_replay(self, transactional_id: str, generation: int) -> StateRow:
        """See `StateStore`."""
        return self.statement("accept", lambda: self._database.accept_replay(transactional_id, generation))

    def drop_batch(self, transactional_id: str, generation: int, settled: str) -> StateRow:
        """See `StateStore`."""
        return self.statement("drop", lambda: self._database.drop_batch(transactional_id, generation, settled))

    def deciding(self, transactional_id: str, generation: int) -> AbstractContextManager[DecidingTransaction]:
        """BEGIN … COMMIT."""
        return cast("AbstractContextManager[DecidingTransaction]", self._deciding(generation))

    def close(self) -> None:
        """Nothing is held."""

    @contextmanager
    def _deciding(self, generation: int) -> Iterator[SimDeciding]:
        session = self.statement("begin", lambda: self._database.begin(generation))
        try:
            yield SimDeciding(self, session)
            if session.pending is not None:
                self._commit(session)
        finally:
            session.end()
            self._database.roll_back(session)

    def _commit(self, session: MemoryDecidingTransaction) -> None:
        self._world.io(
            faults.COMMIT,
            "COMMIT",
            lambda: self._database.commit(session),
            commit_unknown,
            hang=lambda: self._hang(session),
        )

    def _hang(self, session: MemoryDecidingTransaction) -> None:
        if not session.recorded.ended:
            self._database.hanging = session

    def statement(self, what: str, effect: Callable[[], _T]) -> _T:
        """One statement with its own answer."""
        return self._world.io(faults.SQL, what, effect, lambda: connection_lost(what))
