"""`AsyncDualWrite`: `DualWrite` for an AsyncSession, on an event loop.

The session's statements run on the event loop, through any of SQLAlchemy's asynchronous PostgreSQL drivers. Waiting for
Kafka and the state store is done in threads, one for each transactional id: a second client for event loops would be a
second implementation of the recipe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import KafkaTimeoutError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.service.service import Commitment, ServiceBase
from spark_2pc_sink.service.transaction import ASYNC_DRIVERS, Enlisted, ServiceTransaction, enlist

#: Types that a block's rows may be written with.
AsyncWritable: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection

_log = sink_log(__name__)
_T = TypeVar("_T")


class AsyncDualWrite(ServiceBase):
    """Writes rows of an AsyncSession and records of Kafka exactly once, by one decision. For one event loop.

    ::

        async with dual.transaction(session) as tx:
            session.add(order)
            tx.send("orders", order.key, order.as_json())

    Options, errors and behaviour are those of `DualWrite`. The session's engine may be any PostgreSQL engine with
    asyncpg or psycopg.
    """

    _turns: asyncio.Semaphore | None = None

    async def __aenter__(self) -> AsyncDualWrite:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """See `DualWrite.start`."""
        await _shielded(asyncio.to_thread(self._service.start))

    async def close(self) -> None:
        """See `DualWrite.close`."""
        await asyncio.to_thread(self._service.close)
        await asyncio.to_thread(self._threads.shutdown)

    @asynccontextmanager
    async def transaction(self, session: AsyncWritable) -> AsyncIterator[ServiceTransaction]:
        """See `DualWrite.transaction`.

        A block that is cancelled before the decision leaves nothing on either side. After the decision, the end of the
        block is shielded: Kafka commits even if it is cancelled.

        Args:
            session: an AsyncSession or an AsyncConnection.
        """
        if not self._service.started:
            await self.start()
        transaction = self._blocks.enter()
        try:
            # Its session belongs to the calling task, and the end of a block runs in a separate task.
            session = session() if isinstance(session, async_scoped_session) else session
            connection, under = await _connection_of(session)
            enlisted = enlist(under, ASYNC_DRIVERS)
            try:
                yield transaction
                transaction.check_runner("commit")
                transaction.phase = "committing"
                await self._commit(session, connection, enlisted, transaction)
            except BaseException:
                enlisted.ends_now()
                await _roll_back(session)
                raise
            finally:
                enlisted.release()
        finally:
            self._blocks.leave(transaction)

    async def _commit(
        self, session: AsyncWritable, connection: AsyncConnection, enlisted: Enlisted, transaction: ServiceTransaction
    ) -> None:
        enlisted.check()
        flush = getattr(session, "flush", None)
        if flush is not None:
            await flush()
        if not transaction.records:
            enlisted.ends_now()
            await self._send_commit(session, enlisted)
            return
        async with self._turn():
            commitment = self._service.commitment()
            try:
                await self._blocking(lambda: commitment.send(transaction.records))
                enlisted.check()
                await connection.run_sync(commitment.decide)
            except BaseException:
                commitment.end()
                raise
            enlisted.ends_now()
            await _shielded(self._decide_and_complete(session, enlisted, commitment))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One turn per id: waiting for an id in a thread could block the thread that its holder needs."""
        limit_ms = self._service.options.wait_for_id_ms
        if self._turns is None:
            self._turns = asyncio.Semaphore(self._service.options.ids)
        turns = self._turns
        try:
            # A free one is acquired without waiting: wait_for with 0 would not even try.
            await (asyncio.wait_for(turns.acquire(), limit_ms / 1000) if turns.locked() else turns.acquire())
        except asyncio.TimeoutError as error:
            raise KafkaTimeoutError(
                operation="waiting for a transactional id",
                deadline_ms=limit_ms,
                last_error=f"all {self._service.options.ids} are in use; raise ids if that is usual",
            ) from error
        try:
            yield
        finally:
            turns.release()

    async def _decide_and_complete(self, session: AsyncWritable, enlisted: Enlisted, commitment: Commitment) -> None:
        try:
            complete = await self._decide(session, enlisted, commitment)
        except BaseException:
            commitment.end()
            raise
        if complete:
            commitment.end()
        elif self._service.options.kafka_commit == "before_return":
            await self._blocking(commitment.complete)
        else:
            self._complete_in_background(commitment)

    async def _decide(self, session: AsyncWritable, enlisted: Enlisted, commitment: Commitment) -> bool:
        """COMMIT; True if Kafka has committed already, because the outcome had to be found out."""
        try:
            await self._send_commit(session, enlisted)
        except Exception as error:
            await _roll_back(session)
            if not enlisted.committed or not await self._blocking(commitment.commit_failed):
                raise
            _log.warning("COMMIT raised %r, but was carried out; both sides have the transaction", error)
            return True
        commitment.committed()
        return False

    async def _send_commit(self, session: AsyncWritable, enlisted: Enlisted) -> None:
        await asyncio.wait_for(session.commit(), self._service.options.commit_timeout_ms / 1000)
        enlisted.check_committed()

    async def _blocking(self, call: Callable[[], _T]) -> _T:
        """Run a blocking wait for Kafka or the state store in a thread; it is not interrupted."""
        return await _shielded(asyncio.get_running_loop().run_in_executor(self._threads, call))


async def _connection_of(session: object) -> tuple[AsyncConnection, Connection]:
    """The connection of a session, now in a transaction; and SQLAlchemy's own under it."""
    connection = await session.connection() if isinstance(session, AsyncSession) else session
    if isinstance(connection, AsyncConnection) and connection.sync_connection is not None:
        return connection, connection.sync_connection
    rule = "must be an AsyncSession, or an open AsyncConnection"
    remedy = "pass the session that has the rows; for a Session use DualWrite"
    raise refused("session", type(session).__name__, rule, remedy)


async def _roll_back(session: AsyncWritable) -> None:
    """Roll back; if that fails the connection is broken, and the server rolls back."""
    with suppress(SQLAlchemyError, OSError):
        await _shielded(session.rollback())


async def _shielded(awaited: Awaitable[_T]) -> _T:
    """Wait for something that must not be interrupted; a cancellation takes effect after it."""
    task = asyncio.ensure_future(awaited)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and task.exception() is not None:
        _log.warning("a transaction was cancelled, and its end raised %r", task.exception())
    raise cancelled
