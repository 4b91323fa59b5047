"""`DualWrite`: a session of SQLAlchemy's and Kafka in one decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg2
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from jdbc_state.sink_log import sink_log
from jdbc_state.watchdog import Watchdog
from spark_2pc_sink.errors import ConfigurationError, LocalProtocolError
from spark_2pc_sink.service.enlisted import SYNC_DRIVERS, Enlisted, enlist
from spark_2pc_sink.service.service_base import ServiceBase
from spark_2pc_sink.service.transaction import Phase, ServiceTransaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

    from spark_2pc_sink.service.commitment import Commitment

#: What a block may have its rows in.
Writable: TypeAlias = "Session | scoped_session[Any] | Connection"

_log = sink_log(__name__)


class DualWrite(ServiceBase):
    """Writes rows of a session and records of Kafka exactly once, by one decision. For any number of threads.

    ::

        with dual.transaction(session) as tx:
            session.add(order)
            tx.send("orders", order.key, order.as_json())

    The block's end commits. Its database is the one that has the state rows; the session's engine may be any of
    PostgreSQL's with psycopg2 or psycopg. An object of this class belongs to one process; it is started by `start`, by
    ``with``, or by the first transaction. docs/service.md has the guarantee, and what a block may do.

    Args:
        transactional_id: the name of the service.
        kafka: Kafka client properties.
        database: SQLAlchemy URL, dialect postgresql, driver psycopg2: for the state rows.

    The other options are described in docs/reference/options.md.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. Nothing was connected to.
    """

    def __enter__(self) -> DualWrite:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Take transactional ids, and settle what dead processes have left. Calling it again changes nothing.

        Raises:
            ConfigurationError: other processes hold every id.
            HaltError: both sides of an id differ, and a person has to decide.
            KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be used.
        """
        self._service.start()

    def close(self) -> None:
        """Wait for the transactions under way, and close every connection. No transaction can begin afterwards."""
        self._service.close()
        self._threads.shutdown()

    @contextmanager
    def transaction(self, session: Writable) -> Iterator[ServiceTransaction]:
        """A block whose rows and records are on both sides when it has ended, or on none.

        Args:
            session: a Session, a scoped_session or a Connection. What it has written before the block, in the same
                transaction, belongs to the block. After the block its transaction has ended.

        Yields:
            what sends records; see `ServiceTransaction.send`.

        Raises:
            LocalProtocolError: the block is inside another one, or has ended the session's transaction itself.
            ConfigurationError: the session is none of PostgreSQL's.
            InDoubtError: decided, or perhaps decided, and Kafka did not follow in time; it is settled later. Do not
                repeat the block before you have looked.
            HaltError: the same, and a person has to decide.
            Everything else that the session, `ServiceTransaction.send` or Kafka raise: nothing is on either side, and
            the block may be repeated.
        """
        self._service.start()
        block = self._blocks.enter()
        try:
            enlisted = enlist(_connection_of(session), SYNC_DRIVERS)
            transaction = ServiceTransaction()
            try:
                yield transaction
                transaction.check_runner("commit")
                transaction.move_to(Phase.COMMITTING)
                self._commit(session, enlisted, transaction)
            except BaseException:
                enlisted.ends_now()
                _roll_back(session)
                raise
            finally:
                transaction.move_to(Phase.ENDED)
                enlisted.release()
        finally:
            self._blocks.leave(block)

    # --- parts ---------------------------------------------------------------------------------------------------

    def _commit(self, session: Writable, enlisted: Enlisted, transaction: ServiceTransaction) -> None:
        enlisted.check()
        if not isinstance(session, Connection):
            session.flush()
        if not transaction.records:
            enlisted.ends_now()
            self._send_commit(session, enlisted)
            return
        commitment = self._service.commitment()
        try:
            commitment.send(transaction.records)
            enlisted.check()
            commitment.decide(enlisted.connection)
            enlisted.ends_now()
            complete = self._decide(session, enlisted, commitment)
        except BaseException:
            commitment.end()
            raise
        if complete:
            commitment.end()
        elif self._service.options.kafka_commit == "before_return":
            commitment.complete()
        else:
            self._complete_in_background(commitment)

    def _decide(self, session: Writable, enlisted: Enlisted, commitment: Commitment) -> bool:
        """COMMIT; True where Kafka has followed already, as its outcome had to be found out."""
        try:
            self._send_commit(session, enlisted)
        except Exception as error:
            _roll_back(session)
            if not enlisted.committed or not commitment.commit_failed():
                raise
            _log.warning("COMMIT raised %r, and was carried out: both sides have the transaction", error)
            return True
        commitment.committed()
        return False

    def _send_commit(self, session: Writable, enlisted: Enlisted) -> None:
        with Watchdog(enlisted.driver, self._service.options.commit_timeout_ms):
            session.commit()
        if not enlisted.committed:
            raise LocalProtocolError(
                operation="commit",
                state="the session sent no COMMIT",
                rule="the session has begun its transaction itself, and not joined one of somebody else's",
            )


def _connection_of(session: object) -> Connection:
    """The connection of a session, in a transaction from here on.

    Raises:
        ConfigurationError: it is no session.
    """
    if isinstance(session, Connection):
        return session
    connect = getattr(session, "connection", None)
    if connect is None or not hasattr(session, "flush"):
        raise ConfigurationError(
            option="session",
            value=type(session).__name__,
            rule="it is a Session, a scoped_session or a Connection of SQLAlchemy's",
            remedy="pass the session that has the rows; an AsyncSession goes to AsyncDualWrite",
        )
    if getattr(session, "twophase", False):
        raise ConfigurationError(
            option="session",
            value="twophase=True",
            rule="its COMMIT is the decision: PREPARE TRANSACTION has none",
            remedy="leave twophase=True out",
        )
    connection = connect()
    if not isinstance(connection, Connection):
        raise ConfigurationError(
            option="session",
            value=type(session).__name__,
            rule="it is not asynchronous",
            remedy="pass an AsyncSession to AsyncDualWrite",
        )
    return connection


def _roll_back(session: Writable) -> None:
    """Leave nothing behind; where that fails the connection is broken, and the server rolls back by itself."""
    with suppress(SQLAlchemyError, psycopg2.Error):
        session.rollback()
