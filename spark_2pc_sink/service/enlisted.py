"""The database transaction that a block has joined: only the dual write may end it.

A COMMIT inside the block would make rows durable without a state row, and a ROLLBACK would leave the records without
their rows. So both are intercepted at the connection, for any caller. The listeners are added to the engine once:
adding and removing them for each transaction would take as long as its COMMIT.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from sqlalchemy import event

from jdbc_state.connections import driver_connection
from spark_2pc_sink.errors import ConfigurationError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine, RootTransaction

#: Drivers whose COMMIT can be cut off through their socket.
SYNC_DRIVERS: Final = ("psycopg2", "psycopg")
ASYNC_DRIVERS: Final = ("asyncpg", "psycopg", "psycopg_async")
_OPERATION: Final = "transaction"
_RULE: Final = "the block of a dual write ends the transaction itself: do not call commit() or rollback() in it"
_KEY: Final = "spark_2pc_sink.enlisted"
#: By the identity of the connection, which the value keeps alive until `Enlisted.release`.
_joined: Final[dict[int, Enlisted]] = {}
_watched: Final[WeakSet[Engine]] = WeakSet()
_watching: Final = threading.Lock()


class Enlisted:
    """One transaction of a connection, from the beginning of a block to its end. Made by `enlist`."""

    def __init__(self, connection: Connection, root: RootTransaction) -> None:
        self.connection = connection
        self._root = root
        self._ours = False
        #: Whether COMMIT was sent.
        self.committed: bool = False
        self._rolled_back = False
        self._failed = False
        _watch(connection.engine)
        _joined[id(connection)] = self
        # It stays with the driver's connection, which another thread may use right after COMMIT.
        self._info = connection.info
        self._info[_KEY] = self

    @property
    def driver(self) -> Any:
        return driver_connection(self.connection)

    def check(self) -> None:
        """Refuse to decide in a transaction other than the one that the block has joined."""
        if self._rolled_back or self.connection.closed or self.connection.get_transaction() is not self._root:
            rule = f"{_RULE}. A failed flush also rolls back: let its error propagate, or flush in begin_nested()"
            raise LocalProtocolError(operation=_OPERATION, state="its database transaction has ended", rule=rule)

    def check_committed(self) -> None:
        """Refuse a session whose commit has not committed the transaction."""
        if not self.committed:
            rule = "the session must begin its transaction itself, and not join an outer one"
            raise LocalProtocolError(operation="commit", state="the session did not send COMMIT", rule=rule)

    def ends_now(self) -> None:
        """From now on COMMIT and ROLLBACK are issued by the dual write."""
        self._ours = True

    def release(self) -> None:
        _joined.pop(id(self.connection), None)
        self._unmark()

    def on_commit(self) -> None:
        """Called before COMMIT is sent: refuse a caller other than the dual write.

        It also raises the error of PostgreSQL if a statement has failed and its error was hidden from the block, for
        example by a listener of the session.
        """
        if not self._ours:
            raise LocalProtocolError(operation="commit", state="inside the block of a dual write", rule=_RULE)
        if self._failed:
            # PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, and drivers take that for success. It
            # would refuse a statement, unless the failed one was in a savepoint.
            self.connection.exec_driver_sql("SELECT")
        self.committed = True
        self._unmark()

    def on_rollback(self) -> None:
        self._rolled_back = True
        self._unmark()

    def on_error(self) -> None:
        self._failed = True

    def _unmark(self) -> None:
        if self._info.get(_KEY) is self:
            del self._info[_KEY]


def _watch(engine: Engine) -> None:
    """Listen to every COMMIT, ROLLBACK and error of an engine, from now on."""
    with _watching:
        if engine not in _watched:
            event.listen(engine, "commit", lambda connection: _tell(connection, Enlisted.on_commit))
            event.listen(engine, "rollback", lambda connection: _tell(connection, Enlisted.on_rollback))
            event.listen(engine, "handle_error", lambda context: _tell(context.connection, Enlisted.on_error))
            _watched.add(engine)


def _tell(connection: Connection | None, event_of: Callable[[Enlisted], None]) -> None:
    joined = _joined.get(id(connection))
    if joined is not None:
        event_of(joined)


def enlist(connection: Connection, drivers: tuple[str, ...]) -> Enlisted:
    """Join the transaction that a connection is in, or begin one."""
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.driver not in drivers:
        raise ConfigurationError(
            option="session",
            value=f"{dialect.name}+{dialect.driver}",
            rule="must use the PostgreSQL database of the state row",
            remedy=f"use an engine with one of these drivers: {', '.join(drivers)}",
        )
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        rule = "must not commit each statement, as its rows and the decision are one transaction"
        remedy = "leave isolation_level='AUTOCOMMIT' out for this engine or connection"
        raise ConfigurationError(option="session", value="AUTOCOMMIT", rule=rule, remedy=remedy)
    if connection.info.get(_KEY):
        state, rule = "another dual write has joined this session", "transactions cannot be nested"
        raise LocalProtocolError(operation=_OPERATION, state=state, rule=rule)
    if connection.in_nested_transaction():
        rule = "open the block outside of begin_nested(); savepoints inside the block are allowed"
        raise LocalProtocolError(operation=_OPERATION, state="the session is in a savepoint", rule=rule)
    root = connection.get_transaction() or connection.begin()
    return Enlisted(connection, root)
