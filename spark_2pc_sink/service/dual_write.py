"""`DualWrite`: a SQLAlchemy session and Kafka in one decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import psycopg2
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session

from jdbc_state.connections import driver_connection
from jdbc_state.sink_log import sink_log
from jdbc_state.watchdog import Watchdog
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.service.service import Commitment, ServiceBase
from spark_2pc_sink.service.transaction import SYNC_DRIVERS, Enlisted, ServiceTransaction, enlist

#: Types that a block's rows may be written with.
Writable: TypeAlias = Session | scoped_session[Any] | Connection

_log = sink_log(__name__)


class DualWrite(ServiceBase):
    """Writes rows of a session and records of Kafka exactly once, by one decision. Thread-safe.

    ::

        with dual.transaction(session) as tx:
            session.add(order)
            tx.send("orders", order.key, order.as_json())

    The end of the block commits. The session's database must be the one that has the state rows; its engine may be any
    PostgreSQL engine with psycopg2 or psycopg. An object of this class belongs to one process; it is started by
    `start`, ``with``, or the first transaction. docs/service.md has the guarantee, and what a block may do.

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Take transactional ids, and settle those left by dead processes. Calling it again changes nothing.

        Raises:
            ConfigurationError: other processes hold every id.
            HaltError: both sides of an id differ, and a person has to decide.
            KafkaError, KafkaTimeoutError, StateStoreError: one side cannot be used.
        """
        self._service.start()

    def close(self) -> None:
        """Wait for running transactions, and close every connection. No transaction can begin afterwards."""
        self._service.close()
        self._threads.shutdown()

    @contextmanager
    def transaction(self, session: Writable) -> Iterator[ServiceTransaction]:
        """A block whose rows and records are on both sides when it has ended, or on neither.

        Args:
            session: a Session, a scoped_session or a Connection. Earlier writes of its current transaction belong to
                the block. After the block that transaction has ended.

        Yields:
            an object that sends records; see `ServiceTransaction.send`.

        Raises:
            LocalProtocolError: the block is inside another one, or has ended the session's transaction itself.
            ConfigurationError: the session is not PostgreSQL's.
            InDoubtError: decided, or perhaps decided, and Kafka did not commit in time; it is settled later. Check the
                outcome before you repeat the block.
            HaltError: the same, and a person has to decide.
            Everything else: raised by the session, `ServiceTransaction.send` or Kafka; nothing is on either side, and
                the block may be repeated.
        """
        self._service.start()
        transaction = self._blocks.enter()
        try:
            enlisted = enlist(_connection_of(session), SYNC_DRIVERS)
            try:
                yield transaction
                transaction.check_runner("commit")
                transaction.phase = "committing"
                self._commit(session, enlisted, transaction)
            except BaseException:
                enlisted.ends_now()
                _roll_back(session)
                raise
            finally:
                enlisted.release()
        finally:
            self._blocks.leave(transaction)

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
        """COMMIT; True if Kafka has committed already, because the outcome had to be found out."""
        try:
            self._send_commit(session, enlisted)
        except Exception as error:
            _roll_back(session)
            if not enlisted.committed or not commitment.commit_failed():
                raise
            _log.warning("COMMIT raised %r, but was carried out; both sides have the transaction", error)
            return True
        commitment.committed()
        return False

    def _send_commit(self, session: Writable, enlisted: Enlisted) -> None:
        with Watchdog(driver_connection(enlisted.connection), self._service.options.commit_timeout_ms):
            session.commit()
        enlisted.check_committed()


def _connection_of(session: object) -> Connection:
    """The connection of a session, now in a transaction."""
    if isinstance(session, Connection):
        return session
    connect, kind = getattr(session, "connection", None), type(session).__name__
    if connect is None or not hasattr(session, "flush"):
        rule = "must be a Session, a scoped_session or a Connection of SQLAlchemy"
        remedy = "pass the session that has the rows; for an AsyncSession use AsyncDualWrite"
        raise refused("session", kind, rule, remedy)
    if getattr(session, "twophase", False):
        rule = "must be a session with one-phase commit, as its COMMIT is the decision"
        raise refused("session", "twophase=True", rule, "leave twophase=True out")
    connection = connect()
    if not isinstance(connection, Connection):
        raise refused("session", kind, "must not be asynchronous", "pass an AsyncSession to AsyncDualWrite")
    return connection


def _roll_back(session: Writable) -> None:
    """Roll back; if that fails the connection is broken, and the server rolls back."""
    with suppress(SQLAlchemyError, psycopg2.Error):
        session.rollback()
