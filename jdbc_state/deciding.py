"""Deciding transaction: the batch's rows and the state row, in one COMMIT (KIP-939, "Normal processing recipe")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_INTRANS
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from jdbc_state.claim import row_columns, row_of
from jdbc_state.connections import ANSWER_GRACE_MS, DURABLE, Database, discard, driver_connection, give_back, prelude
from jdbc_state.errors import CommitUnknownError, StateStoreError
from jdbc_state.model import DECIDE, Decision, StateRow, claim_lost_error
from jdbc_state.moves import Moves
from jdbc_state.sessions import application_name
from jdbc_state.settings import StoreSettings
from jdbc_state.sqlstate import describe, sqlstate_of, translated
from jdbc_state.state_store import OneDecision
from jdbc_state.watchdog import Watchdog, watched_statements


class SqlDecidingTransaction(OneDecision):
    """One open transaction; see ``DecidingTransaction``. Made by :func:`deciding` only."""

    def __init__(
        self, connection: Connection, moves: Moves, settings: StoreSettings, transactional_id: str, generation: int
    ) -> None:
        super().__init__(transactional_id)
        self._connection = connection
        self._state = moves.state
        self._moves = moves
        self._settings = settings
        self._generation = generation
        self._own_row = moves.state.c.transactional_id == transactional_id

    @property
    def connection(self) -> Connection:
        self._check_open("use of the connection")
        return self._connection

    def begin(self) -> None:
        """Set this transaction's limits and name, and read the row.

        Reading it first saves a driver that was superseded long ago the COPY; and it takes the lock on the state table
        by which a newer claim distinguishes this transaction from one of the same name that uses another table.
        """
        limits = (
            f"SET LOCAL lock_timeout = {self._settings.lock_timeout_ms}; "
            f"SET LOCAL statement_timeout = {self._settings.statement_timeout_ms}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {self._settings.idle_in_transaction_timeout_ms}; "
            f"{DURABLE}"
        )
        name = application_name(self._transactional_id, self._generation)
        named = func.set_config("application_name", name, True)  # noqa: FBT003 - SQL's: local to the transaction
        statement = select(named, self._state.c.generation).where(self._own_row)
        answer = self._connection.execute(statement, execution_options=prelude(limits)).one_or_none()
        if answer is None or answer.generation != self._generation:
            raise claim_lost_error(self._transactional_id, self._generation, self._read())

    def decide(self, decision: Decision) -> None:
        """Write the state row under the claim's generation: lock, check and write in one statement.

        The same statement writes the history line, from the row that was written: if the check fails there is no line.

        The check includes that the row still names the decision after which the batch was placed: after a failover that
        lost commits the claim may still be valid while that decision is gone.
        """
        with self._deciding():
            move = decision.move(self._transactional_id, self._generation)
            statement, parameters = self._moves.statement(move)
            # Otherwise a deferred constraint that fails in COMMIT would look like an unknown outcome. And a trigger,
            # or the user's own SQL, may have made the transaction less durable since it began.
            checked = prelude(f"SET CONSTRAINTS ALL IMMEDIATE; {DURABLE}")
            written = self._connection.execute(statement, parameters, execution_options=checked).one_or_none()
            if written is None:
                move.refused_by(self._read())

    def commit(self) -> None:
        """COMMIT.

        Raises:
            StateStoreError: before COMMIT was sent.
            CommitUnknownError: after that, with any answer.
        """
        driver = driver_connection(self._connection)
        if driver.info.transaction_status != TRANSACTION_STATUS_INTRANS:
            # PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, and psycopg2 takes that for a success.
            raise StateStoreError(
                operation=DECIDE, detail="a statement failed after the decision, and its error was not raised"
            )
        watchdog = Watchdog(driver, self._settings.commit_timeout_ms)
        try:
            with watchdog:
                self._connection.commit()
        except Exception as error:
            # Not only for codes that say so (08007, 40003): 57P01 of a terminated backend, a reset, or the watchdog's
            # cut can all follow after the server has made the commit durable.
            raise CommitUnknownError(
                operation=f"COMMIT of the decision for {self._transactional_id!r}, generation {self._generation}",
                detail=f"{describe(error)}; only a new claim can tell whether it was carried out",
                sqlstate=sqlstate_of(error),
            ) from error

    def _read(self) -> StateRow | None:
        answer = self._connection.execute(select(*row_columns(self._state)).where(self._own_row)).one_or_none()
        return None if answer is None else row_of(answer)


@contextmanager
def deciding(
    database: Database, moves: Moves, settings: StoreSettings, transactional_id: str, generation: int
) -> Iterator[SqlDecidingTransaction]:
    """One deciding transaction, from BEGIN to COMMIT or ROLLBACK; see ``StateStore.deciding``.

    The server limits each statement, including the batch's own. If the server is stopped, the driver's watchdog does.
    """
    operation = f"deciding transaction of {transactional_id!r}, generation {generation},"
    connection = database.open(operation)
    transaction = SqlDecidingTransaction(connection, moves, settings, transactional_id, generation)
    limit_ms = settings.statement_timeout_ms + ANSWER_GRACE_MS
    try:
        with translated(database.named(operation)), watched_statements(driver_connection(connection), limit_ms):
            transaction.begin()
            yield transaction
            if transaction.decided:
                transaction.commit()
    except BaseException:
        transaction.end()
        _roll_back(connection, settings.commit_timeout_ms)
        discard(connection)
        raise
    transaction.end()
    _roll_back(connection, settings.commit_timeout_ms)
    give_back(connection)


def _roll_back(connection: Connection, limit_ms: int) -> None:
    """Release locks before the caller continues; after COMMIT there is nothing to do.

    If that fails the connection is broken, and closing it ends the transaction on the server.
    """
    if connection.in_transaction() and not connection.invalidated:
        with suppress(SQLAlchemyError, psycopg2.Error), Watchdog(driver_connection(connection), limit_ms):
            connection.rollback()
