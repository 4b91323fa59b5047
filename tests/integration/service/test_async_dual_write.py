"""An asynchronous service on real servers, with each driver that it takes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from spark_2pc_sink import AsyncDualWrite
from spark_2pc_sink.service.commitment import Commitment
from tests.harness.providers import Broker
from tests.integration.service.services import Order, records_of, rows_of


@pytest.fixture
async def engine(database: str, table: Engine, driver: str) -> AsyncIterator[AsyncEngine]:
    del table
    made = create_async_engine(make_url(database).set(drivername=f"postgresql+{driver}"))
    yield made
    await made.dispose()


@pytest.fixture
def driver() -> str:
    """Of the session's engine."""
    return "asyncpg"


@pytest.fixture
def options(kafka_without_2pc: Broker, database: str, transactional_id: str) -> dict[str, Any]:
    kafka = {"bootstrap.servers": kafka_without_2pc.bootstrap}
    return {"transactional_id": transactional_id, "kafka": kafka, "database": database, "ids": 2}


async def write(dual: AsyncDualWrite, engine: AsyncEngine, topic: str, name: str) -> None:
    async with AsyncSession(engine) as session, dual.transaction(session) as tx:
        session.add(Order(id=name))
        tx.send(topic, name, name)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_rows_and_records_are_on_both_sides_or_on_none(
    kafka_without_2pc: Broker,
    engine: AsyncEngine,
    table: Engine,
    topic: Callable[..., str],
    options: dict[str, Any],
) -> None:
    orders = topic(broker=kafka_without_2pc)
    names = [f"order-{number}" for number in range(10)]
    async with AsyncDualWrite(**options) as dual:
        await asyncio.gather(*(write(dual, engine, orders, name) for name in names))
        with pytest.raises(DBAPIError):
            await write(dual, engine, orders, names[0])
        async with engine.connect() as connection, dual.transaction(connection) as tx:
            await connection.execute(text("INSERT INTO orders VALUES ('by connection')"))
            tx.send(orders, None, "by connection")
        # A scoped session is that of the task that asks, and the end of a block runs in another one.
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        async with dual.transaction(scoped):
            scoped.add(Order(id="row alone"))
        await scoped.remove()
    assert rows_of(table) == Counter([*names, "by connection", "row alone"])
    assert records_of(kafka_without_2pc.bootstrap, orders) == Counter([*names, "by connection"])


async def test_a_cancelled_block_is_on_both_sides_or_on_none(
    kafka_without_2pc: Broker,
    engine: AsyncEngine,
    table: Engine,
    topic: Callable[..., str],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the decision nothing is left of it; from the decision on Kafka follows, and then it is cancelled."""
    orders, loop = topic(broker=kafka_without_2pc), asyncio.get_running_loop()
    running: list[asyncio.Task[None]] = []

    def cancelling(patch: pytest.MonkeyPatch, name: str) -> None:
        method = getattr(Commitment, name)

        def cancel(self: Commitment, *given: Any) -> Any:
            loop.call_soon_threadsafe(running[-1].cancel)
            return method(self, *given)

        patch.setattr(Commitment, name, cancel)

    async with AsyncDualWrite(**options) as dual:
        await write(dual, engine, orders, "whole")
        for step in ("send", "committed"):
            with monkeypatch.context() as patch:
                cancelling(patch, step)
                running.append(asyncio.ensure_future(write(dual, engine, orders, f"cancelled at {step}")))
                with pytest.raises(asyncio.CancelledError):
                    await running[-1]
        await write(dual, engine, orders, "afterwards")
    expected = Counter(["whole", "cancelled at committed", "afterwards"])
    assert rows_of(table) == records_of(kafka_without_2pc.bootstrap, orders) == expected
