"""A service on real servers, synchronous or asynchronous: one decision for a session and Kafka, and wrong uses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from sqlalchemy.orm import Session

from spark_2pc_sink import AsyncDualWrite, DualWrite, recover, status
from spark_2pc_sink.errors import ConfigurationError, LocalProtocolError, UnknownTopicError
from spark_2pc_sink.service.service import Commitment
from spark_2pc_sink.testing import wait_until
from tests.harness.providers import Broker
from tests.integration.service.conftest import Order, records_of, rows_of, statuses_of


@pytest.fixture
def start(database: str, transactional_id: str) -> Iterator[Callable[..., DualWrite]]:
    started: list[DualWrite] = []

    def make(broker: Any, **options: Any) -> DualWrite:
        given = {"ids": 2, "database": database, "transactional_id": transactional_id, **options}
        started.append(DualWrite(kafka={"bootstrap.servers": broker.bootstrap}, **given))
        started[-1].start()
        return started[-1]

    yield make
    for each in started:
        each.close()


def write(dual: DualWrite, table: Engine, topic: str, name: str, *, fail: Callable[[], object] = lambda: None) -> None:
    with Session(table) as session, dual.transaction(session) as tx:
        session.add(Order(id=name))
        tx.send(topic, name, name)
        fail()


def test_rows_and_records_are_on_both_sides_or_on_none(
    broker: Any, table: Engine, topic: Callable[..., str], start: Callable[..., DualWrite]
) -> None:
    dual, orders = start(broker), topic(partitions=3, broker=broker)
    names = [f"order-{number}" for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(write, dual, table, orders, name) for name in names]:
            done.result()
    with pytest.raises(ZeroDivisionError):
        write(dual, table, orders, "failed", fail=lambda: 1 // 0)
    with pytest.raises(DBAPIError):
        write(dual, table, orders, names[0])
    with pytest.raises(UnknownTopicError):
        write(dual, table, "no-such-topic", "nowhere")
    with Session(table) as session, dual.transaction(session):
        session.add(Order(id="row alone"))
    with table.connect() as connection, dual.transaction(connection) as tx:
        connection.execute(text("INSERT INTO orders VALUES ('by connection')"))
        tx.send(orders, None, "by connection", headers=[("source", "shop")], partition=0)
    assert rows_of(table) == Counter([*names, "row alone", "by connection"])
    assert records_of(broker.bootstrap, orders) == Counter([*names, "by connection"])
    # The note that travels with the next decision is written by itself where none comes.
    wait_until(lambda: statuses_of(table) == Counter(done=2), what="every state row is done")


def test_uses_that_would_break_the_decision_are_refused(
    kafka_without_2pc: Broker, table: Engine, topic: Callable[..., str], start: Callable[..., DualWrite]
) -> None:
    dual, orders = start(kafka_without_2pc), topic(broker=kafka_without_2pc)

    def enter(session: Any) -> None:
        with dual.transaction(session):
            pass

    def end_early(end: Callable[[Session], object]) -> None:
        with Session(table) as session, dual.transaction(session) as tx:
            session.add(Order(id="early"))
            session.flush()
            tx.send(orders, "early", "early")
            end(session)

    for end in (Session.commit, lambda session: session.connection().commit(), Session.rollback):
        with pytest.raises(LocalProtocolError):
            end_early(end)
    with Session(table) as session, dual.transaction(session) as ended:
        pass
    with pytest.raises(LocalProtocolError, match="inside the block"):
        ended.send(orders, "late", "late")
    with Session(table) as session, session.begin(), session.begin_nested(), pytest.raises(LocalProtocolError):
        enter(session)
    autocommit = table.connect().execution_options(isolation_level="AUTOCOMMIT")
    with autocommit as connection, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        enter(connection)
    for wrong in (table, None):
        with pytest.raises(ConfigurationError, match="session"):
            enter(wrong)
    assert (rows_of(table), records_of(kafka_without_2pc.bootstrap, orders)) == (Counter(), Counter())


def test_two_processes_never_share_an_id_and_commands_know_them(
    kafka_without_2pc: Broker,
    table: Engine,
    database: str,
    topic: Callable[..., str],
    start: Callable[..., DualWrite],
    transactional_id: str,
) -> None:
    orders = topic(broker=kafka_without_2pc)
    first, second = start(kafka_without_2pc, ids_max=4), start(kafka_without_2pc, ids_max=4)
    with pytest.raises(ConfigurationError, match="held by another process"):
        start(kafka_without_2pc, ids_max=4)
    for number in range(4):
        write((first, second)[number % 2], table, orders, str(number))
    sides: dict[str, Any] = {"kafka": {"bootstrap.servers": kafka_without_2pc.bootstrap}, "database": database}
    shown = status(**sides, match=f"{transactional_id}-*")
    assert [report.transactional_id for report in shown.sinks] == [
        f"{transactional_id}-{number}" for number in range(4)
    ]
    assert all(report.driver is not None and report.driver.alive for report in shown.sinks)
    wait_until(lambda: statuses_of(table) == Counter(done=4), what="every state row is done")
    # A command leaves a service alone that lives.
    report = recover(transactional_id=f"{transactional_id}-0", **sides)
    assert report.driver is not None
    assert report.driver.alive
    first.close()
    start(kafka_without_2pc, ids_max=4)
    assert rows_of(table) == records_of(kafka_without_2pc.bootstrap, orders) == Counter("0123")


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


async def write_async(dual: AsyncDualWrite, engine: AsyncEngine, topic: str, name: str) -> None:
    async with AsyncSession(engine) as session, dual.transaction(session) as tx:
        session.add(Order(id=name))
        tx.send(topic, name, name)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_each_driver_has_both_sides_or_none(
    kafka_without_2pc: Broker,
    engine: AsyncEngine,
    table: Engine,
    topic: Callable[..., str],
    options: dict[str, Any],
) -> None:
    orders = topic(broker=kafka_without_2pc)
    names = [f"order-{number}" for number in range(10)]
    async with AsyncDualWrite(**options) as dual:
        await asyncio.gather(*(write_async(dual, engine, orders, name) for name in names))
        with pytest.raises(DBAPIError):
            await write_async(dual, engine, orders, names[0])
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
        await write_async(dual, engine, orders, "whole")
        for step in ("send", "committed"):
            with monkeypatch.context() as patch:
                cancelling(patch, step)
                running.append(asyncio.ensure_future(write_async(dual, engine, orders, f"cancelled at {step}")))
                with pytest.raises(asyncio.CancelledError):
                    await running[-1]
        await write_async(dual, engine, orders, "afterwards")
    expected = Counter(["whole", "cancelled at committed", "afterwards"])
    assert rows_of(table) == records_of(kafka_without_2pc.bootstrap, orders) == expected
