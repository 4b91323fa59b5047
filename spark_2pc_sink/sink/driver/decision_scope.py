"""The lifetime of the one database transaction that decides an attempt."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from sqlalchemy import Connection

    from jdbc_state.state_store import DecidingTransaction


class DecisionScope:
    """The database transaction of one attempt: opened by whoever needs it first, committed by the driver's thread.

    Mostly the copy thread opens it, for the first rows that arrive while tasks still run; so it may be open long before
    the decision. That thread has ended when the driver's thread writes the state row and commits. The transaction ends
    with the block at last.

    Args:
        deciding: begins the transaction; see `StateStore.deciding`.
    """

    def __init__(self, deciding: Callable[[], AbstractContextManager[DecidingTransaction]]) -> None:
        self._deciding = deciding
        self._stack = ExitStack()
        self._transaction: DecidingTransaction | None = None

    def __enter__(self) -> DecisionScope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def transaction(self) -> DecidingTransaction:
        """The transaction, begun now if it was not yet."""
        if self._transaction is None:
            self._transaction = self._stack.enter_context(self._deciding())
        return self._transaction

    def open_decision(self) -> Connection:
        """The connection of the transaction, which is begun now if it was not yet. For any one thread at a time."""
        return self.transaction.connection

    def commit(self) -> None:
        """COMMIT what was decided."""
        self._stack.close()
