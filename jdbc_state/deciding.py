"""Decisions: the rows and the state row in one COMMIT (KIP-939, "Normal processing recipe").

A sink decides in a transaction of the store (`deciding`). A service writes its rows in its own session, so the decision
must be made there (`JoinedDecisions`), in a transaction that the caller has begun and will commit. It is the same
statement, with two additions: the note that Kafka has committed the previous decision, as a COMMIT for each note would
double those of a service; and the records of the decision, if Kafka may abort them after it (`KeptRecords`), as a
service's transactions are not replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg2
import sqlalchemy as sa
from psycopg2.extensions import TRANSACTION_STATUS_INTRANS
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from jdbc_state.connections import (
    ANSWER_GRACE_MS,
    DURABLE,
    DURABLE_LEVEL,
    Database,
    discard,
    driver_connection,
    give_back,
    prelude,
)
from jdbc_state.errors import CommitUnknownError, StateStoreError
from jdbc_state.history import read_row
from jdbc_state.model import DECIDE, Decision, KeptRecords, Move, StateRow, claim_lost_error, legal_before
from jdbc_state.moves import Moves
from jdbc_state.sessions import application_name
from jdbc_state.sqlstate import describe, sqlstate_of, translated
from jdbc_state.state_store import DecidingTransaction
from jdbc_state.watchdog import Watchdog, watched_statements

_KEPT = "kept_"
_NAME = "session_name"


class SqlDecidingTransaction(DecidingTransaction):
    """One open transaction. Made by :func:`deciding` only."""

    def __init__(self, connection: sa.Connection, moves: Moves, transactional_id: str, generation: int) -> None:
        super().__init__(transactional_id, connection)
        self._moves = moves
        self._settings = moves.tables.settings
        self._generation = generation

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
        named = sa.func.set_config("application_name", name, True)  # noqa: FBT003 - SQL's: local to the transaction
        state = self._moves.tables.state
        statement = sa.select(named, state.c.generation).where(state.c.transactional_id == self._transactional_id)
        answer = self._connection.execute(statement, execution_options=prelude(limits)).one_or_none()
        if answer is None or answer.generation != self._generation:
            raise claim_lost_error(self._transactional_id, self._generation, self._read())

    def _write(self, decision: Decision) -> None:
        """Write the state row and its history line under the claim's generation, in one statement."""
        # The row must still name the decision after which the batch was placed: after a failover that lost commits the
        # claim may still be valid while that decision is gone.
        move = decision.move(self._transactional_id, self._generation)
        statement, parameters = self._moves.statement(move)
        # Otherwise a deferred constraint that fails in COMMIT would look like an unknown outcome. And a trigger, or
        # the user's own SQL, may have made the transaction less durable since it began.
        checked = prelude(f"SET CONSTRAINTS ALL IMMEDIATE; {DURABLE}")
        written = self._connection.execute(statement, parameters, execution_options=checked).one_or_none()
        if written is None:
            move.refused_by(self._read())

    def commit(self) -> None:
        """COMMIT; after it was sent, any error is a CommitUnknownError."""
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
        return read_row(self._connection, self._moves.tables.state, self._transactional_id)


@contextmanager
def deciding(
    database: Database, moves: Moves, transactional_id: str, generation: int
) -> Iterator[SqlDecidingTransaction]:
    """One deciding transaction, from BEGIN to COMMIT or ROLLBACK; see ``StateStore.deciding``."""
    # The server limits each statement, including the batch's own. If the server is stopped, the watchdog does.
    settings = moves.tables.settings
    operation = f"deciding transaction of {transactional_id!r}, generation {generation},"
    connection = database.open(operation)
    transaction = SqlDecidingTransaction(connection, moves, transactional_id, generation)
    limit_ms = settings.statement_timeout_ms + ANSWER_GRACE_MS
    release = discard
    try:
        with translated(database.named(operation)), watched_statements(driver_connection(connection), limit_ms):
            transaction.begin()
            yield transaction
            if transaction.decided:
                transaction.commit()
        release = give_back
    finally:
        transaction.end()
        _roll_back(connection, settings.commit_timeout_ms)
        release(connection)


def _roll_back(connection: sa.Connection, limit_ms: int) -> None:
    """Release locks before the caller continues. If that fails, closing the connection ends the transaction."""
    if connection.in_transaction() and not connection.invalidated:
        with suppress(SQLAlchemyError, psycopg2.Error), Watchdog(driver_connection(connection), limit_ms):
            connection.rollback()


class JoinedDecisions:
    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._made: dict[tuple[sa.Executable, bool], sa.Executable] = {}

    def decide(self, connection: sa.Connection, move: Move, *, settled: str | None, kept: KeptRecords | None) -> None:
        note = None
        if settled is not None:
            note = Move("mark_done", move.transactional_id, move.generation, {"settled": settled})
        if not self._moves.keep:
            # Note and decide in one change of the row: the decision overwrites everything that the note writes, and
            # only its allowed start status differs. A history would have a line for the note.
            before = legal_before((note or move).operation)
            if self._is_moved(connection, move, self._moves.update(move, before), kept):
                return
            # It matched no row: separate moves tell why.
        if note is not None:
            self._move(connection, note, None)
        self._move(connection, move, kept)

    def _move(self, connection: sa.Connection, move: Move, kept: KeptRecords | None) -> None:
        if not self._is_moved(connection, move, self._moves.statement(move), kept):
            # Locked: above READ COMMITTED the caller's transaction sees the row as of its first statement. If it has
            # changed since, PostgreSQL reports a serialization failure, where the old row would indicate lost commits.
            move.refused_by(read_row(connection, self._moves.tables.state, move.transactional_id, lock=True))

    def _is_moved(
        self, connection: sa.Connection, move: Move, made: tuple[Any, dict[str, object]], kept: KeptRecords | None
    ) -> bool:
        plain, parameters = made
        key = (plain, kept is not None)
        if key not in self._made:
            self._made[key] = self._with_settings(plain, kept=kept is not None)
        parameters[_NAME] = application_name(move.transactional_id, move.generation)
        if kept is not None:
            row = {**vars(kept), "transactional_id": move.transactional_id, "partitions": list(kept.partitions)}
            parameters |= {_KEPT + name: value for name, value in row.items()}
        return connection.execute(self._made[key], parameters).first() is not None

    def _with_settings(self, plain: Any, *, kept: bool) -> sa.Executable:
        """Add a deciding transaction's settings: a newer claim finds it by its name. Other limits are the caller's."""
        idle_ms = self._moves.tables.settings.idle_in_transaction_timeout_ms
        # Literals, as each bound value of a statement costs the sender a microsecond.
        local: dict[str, sa.ColumnElement[Any]] = {
            "application_name": sa.bindparam(_NAME),
            "synchronous_commit": sa.literal_column(DURABLE_LEVEL),
            "idle_in_transaction_session_timeout": sa.literal_column(f"'{idle_ms:d}'"),
        }
        columns = [
            sa.func.set_config(sa.literal_column(f"'{name}'"), value, sa.true()) for name, value in local.items()
        ]
        statement: sa.Select[Any] | sa.Update = plain
        more = statement.add_columns if isinstance(statement, sa.Select) else statement.returning
        statement = more(*columns)
        return statement.add_cte(self._keep().cte("kept")) if kept else statement

    def _keep(self) -> Any:
        table = self._moves.tables.records
        values = {column.name: sa.bindparam(_KEPT + column.name, type_=column.type) for column in table.columns}
        added = insert(table).values(values)
        newer = {name: added.excluded[name] for name in values if name != "transactional_id"}
        return added.on_conflict_do_update(index_elements=[table.c.transactional_id], set_=newer).returning(
            table.c.transactional_id
        )
