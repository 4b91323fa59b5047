"""When the database transaction that decides a batch begins, and that an attempt has one only."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from sqlalchemy import Connection

    from jdbc_state.model import DecidingTransaction


class DecidingScope:
    """The database transaction of one attempt. It begins where it is first needed, and ends with the block at last.

    Rows may come long before the decision, and the transaction is open from the first of them on.

    Args:
        deciding: begins the transaction; see `StateStore.deciding`.
    """

    def __init__(self, deciding: Callable[[], AbstractContextManager[DecidingTransaction]]) -> None:
        self._deciding = deciding
        self._stack = ExitStack()
        self._transaction: DecidingTransaction | None = None

    def __enter__(self) -> DecidingScope:
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

    def connection(self) -> Connection:
        """The connection of the transaction."""
        return self.transaction.connection

    def commit(self) -> None:
        """COMMIT what was decided."""
        self._stack.close()
