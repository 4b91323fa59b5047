"""Transactions of a service: `DualWrite` compared with a plain COMMIT and with an outbox table with a poller.

Clients of one process, threads or tasks, insert a row by an ORM session, and each transaction tells one record. The
ways take turns on the same servers, set up as for a job, for each number of clients:

* ``commit``: the row alone, which is the floor.
* ``outbox``: the row and a row of an outbox, by one COMMIT. A poller in a process of its own reads the outbox in order,
  sends by an idempotent producer (librdkafka), and deletes. Its transactions are told when the poller has sent them,
  after the caller is gone; and again, where it dies between sending and deleting.
* ``before_return``, ``in_background``: `DualWrite`, by its option ``kafka_commit``.
* ``psycopg``: as ``before_return``, with an engine of psycopg 3, which prepares statements.
* ``commit_async``, ``async``: the row alone, and `AsyncDualWrite`, by asyncpg on one event loop.

The process of the clients has a core of its own, and the servers share the others, as on a machine of their own. The
threads of one Python process run one at a time: on several cores they wait for each other longer, and on a core that
servers use the one that runs is stopped for them while all others wait.

Beside the times there is the processor's time of the process that has the clients, for 1 000 transactions: on a machine
that others use, too, it says more than the rate. That of the poller is not in it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import Producer
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.figures import Spread, quantile
from benchmarks.workbench import KAFKA_JVM, POSTGRES_SETTINGS
from spark_2pc_sink import AsyncDualWrite, DualWrite
from spark_2pc_sink.testing import KafkaBroker, PostgresServer, ReferenceCoordinator, read_topic, wait_until

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from benchmarks.scale import Scale
    from spark_2pc_sink.testing.kafka_broker import LocalBroker

CLIENTS: Final = (1, 8, 32)
#: Transactional ids for each client: one rests while its end markers are written.
IDS_EACH: Final = 2
VALUE: Final = "v" * 200
FULL_SECONDS, QUICK_SECONDS = 10.0, 3.0
FULL_ROUNDS, QUICK_ROUNDS = 5, 3
#: Of the first turn of each way. The broker's virtual machine compiles for a minute, and needs a processor for it.
FULL_WARM_S, QUICK_WARM_S = 15.0, 8.0
POLLED_ROWS_MAX: Final = 500
POLL_PAUSE_S: Final = 0.005
TOPIC: Final = "service"
SETTINGS: Final = POSTGRES_SETTINGS | {"max_connections": "200"}
DRAIN_DEADLINE_S: Final = 120
CORES: Final = os.sched_getaffinity(0)
CLIENT_CORES: Final = {min(CORES)}
#: Those of the clients, where there are no others.
SERVER_CORES: Final = (CORES - CLIENT_CORES) or CLIENT_CORES

BROKERS: Final[dict[str, Callable[[], LocalBroker]]] = {
    "kafka": lambda: KafkaBroker(two_phase_commit=False, jvm_options=KAFKA_JVM),
    "keeps_prepared": ReferenceCoordinator,
}
#: Runs one transaction, in a thread or as a part of a task.
Transaction: TypeAlias = Callable[[], None]
AsyncTransaction: TypeAlias = Callable[[], Awaitable[None]]
#: Runs transactions for some seconds, and answers with the milliseconds of each.
Run: TypeAlias = Callable[[float], list[float]]


class Base(DeclarativeBase):
    """The tables of the service."""


class Order(Base):
    """A row of each transaction."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[str]


class Told(Base):
    """A row of the outbox."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[str]


def measure(scale: Scale) -> dict[str, Any]:
    """Figures by broker and way."""
    seconds = scale.pick(full=FULL_SECONDS, quick=QUICK_SECONDS)
    rounds = scale.pick(full=FULL_ROUNDS, quick=QUICK_ROUNDS)
    warm_s = scale.pick(full=FULL_WARM_S, quick=QUICK_WARM_S)
    found: dict[str, Any] = {"seconds": seconds}
    for name, make in BROKERS.items():
        with ExitStack() as stack:
            with _on_cores(SERVER_CORES):
                broker = stack.enter_context(make())
                postgres = stack.enter_context(PostgresServer(settings=SETTINGS))
            stack.enter_context(_on_cores(CLIENT_CORES))
            broker.create_topic(TOPIC, partitions=8)
            url = postgres.create_database("shop")
            for clients in CLIENTS:
                figures = found[f"{name}, {clients} clients"] = _measure_on(
                    broker, url, clients, seconds=seconds, rounds=rounds, warm_s=warm_s
                )
                print(f"{name}, {clients} clients, load {os.getloadavg()[0]:.1f}")
                for way, line in figures.items():
                    print(_line(way, line), flush=True)
    return found


@contextmanager
def _on_cores(cores: set[int]) -> Iterator[None]:
    """Run on these cores alone, with all threads and processes that begin meanwhile."""
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)


def _measure_on(
    broker: LocalBroker, url: str, clients: int, *, seconds: float, rounds: int, warm_s: float
) -> dict[str, Any]:
    engine = create_engine(url, pool_size=clients)
    Base.metadata.create_all(engine)
    per_s: dict[str, list[float]] = {}
    cpu_s: dict[str, list[float]] = {}
    times_ms: dict[str, list[float]] = {}
    # One turn more, which is not counted: connections, plans of statements and the virtual machine become warm.
    for turn in range(rounds + 1):
        for name, way in WAYS.items():
            with way(engine, url, broker, clients) as run:
                begun_s = time.process_time()
                taken_ms = run(seconds if turn else warm_s)
                used_s = time.process_time() - begun_s
            if turn:
                per_s.setdefault(name, []).append(len(taken_ms) / seconds)
                cpu_s.setdefault(name, []).append(used_s / len(taken_ms) * 1000)
                times_ms.setdefault(name, []).extend(taken_ms)
    _check(engine, broker)
    engine.dispose()
    floor = median(per_s["commit"])
    floor_p99 = quantile(times_ms["commit"], 0.99)
    return {
        name: {
            "per_s": Spread.of(rates).json(),
            "of_commit": median(rates) / floor,
            "cpu_s_per_1000": median(cpu_s[name]),
            "p50_ms": quantile(times_ms[name], 0.5),
            "p99_ms": quantile(times_ms[name], 0.99),
            "p99_beyond_commit_ms": quantile(times_ms[name], 0.99) - floor_p99,
        }
        for name, rates in per_s.items()
    }


def _in_threads(transaction: Transaction, clients: int, seconds: float) -> list[float]:
    end_s = time.perf_counter() + seconds
    taken_ms: list[float] = []

    def serve() -> None:
        while (begun_s := time.perf_counter()) < end_s:
            transaction()
            taken_ms.append((time.perf_counter() - begun_s) * 1000)

    threads = [threading.Thread(target=serve) for _ in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return taken_ms


async def _in_tasks(transaction: AsyncTransaction, clients: int, seconds: float) -> list[float]:
    end_s = time.perf_counter() + seconds
    taken_ms: list[float] = []

    async def serve() -> None:
        while (begun_s := time.perf_counter()) < end_s:
            await transaction()
            taken_ms.append((time.perf_counter() - begun_s) * 1000)

    await asyncio.gather(*(serve() for _ in range(clients)))
    return taken_ms


@contextmanager
def _commit(engine: Engine, url: str, broker: LocalBroker, clients: int) -> Iterator[Run]:
    del url, broker

    def transaction() -> None:
        with Session(engine) as session:
            session.add(Order(value="alone"))
            session.commit()

    yield partial(_in_threads, transaction, clients)


@contextmanager
def _outbox(engine: Engine, url: str, broker: LocalBroker, clients: int) -> Iterator[Run]:
    def transaction() -> None:
        with Session(engine) as session:
            session.add(Order(value=VALUE))
            session.add(Told(value=VALUE))
            session.commit()

    poller = multiprocessing.get_context("spawn").Process(target=_poll, args=(url, broker.bootstrap), daemon=True)
    poller.start()
    try:
        yield partial(_in_threads, transaction, clients)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            wait_until(
                lambda: not connection.scalar(text("SELECT count(*) FROM outbox")),
                deadline_s=DRAIN_DEADLINE_S,
                what="the poller has sent everything",
            )
    finally:
        poller.terminate()
        poller.join()


def _poll(url: str, bootstrap: str) -> None:
    """The poller: the oldest rows, sent and acknowledged, then deleted. On any core: it is none of the clients."""
    os.sched_setaffinity(0, CORES)
    engine = create_engine(url)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
    while True:
        with engine.begin() as connection:
            oldest = text(f"SELECT id, value FROM outbox ORDER BY id LIMIT {POLLED_ROWS_MAX}")
            rows = connection.execute(oldest).all()
            for row in rows:
                producer.produce(TOPIC, row.value.encode(), str(row.id).encode())
            producer.flush()
            if rows:
                connection.execute(text("DELETE FROM outbox WHERE id = ANY(:ids)"), {"ids": [row.id for row in rows]})
        if not rows:
            time.sleep(POLL_PAUSE_S)


@contextmanager
def _dual(
    engine: Engine, url: str, broker: LocalBroker, clients: int, *, kafka_commit: Any = "before_return"
) -> Iterator[Run]:
    with DualWrite(**_options(url, broker, clients), kafka_commit=kafka_commit) as dual:

        def transaction() -> None:
            with Session(engine) as session, dual.transaction(session) as tx:
                order = Order(value=VALUE)
                session.add(order)
                session.flush()
                tx.send(TOPIC, str(order.id), VALUE)

        yield partial(_in_threads, transaction, clients)


@contextmanager
def _dual_by_psycopg(engine: Engine, url: str, broker: LocalBroker, clients: int) -> Iterator[Run]:
    del engine
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), pool_size=clients)
    try:
        with _dual(engine, url, broker, clients) as run:
            yield run
    finally:
        engine.dispose()


@contextmanager
def _dual_async(engine: Engine, url: str, broker: LocalBroker, clients: int) -> Iterator[Run]:
    del engine
    with _on_event_loop(url, clients) as (loop, engine_of_loop):
        dual = AsyncDualWrite(**_options(url, broker, clients))

        async def transaction() -> None:
            async with AsyncSession(engine_of_loop) as session, dual.transaction(session) as tx:
                order = Order(value=VALUE)
                session.add(order)
                await session.flush()
                tx.send(TOPIC, str(order.id), VALUE)

        loop.run_until_complete(dual.start())
        try:
            yield lambda seconds: loop.run_until_complete(_in_tasks(transaction, clients, seconds))
        finally:
            loop.run_until_complete(dual.close())


@contextmanager
def _commit_async(engine: Engine, url: str, broker: LocalBroker, clients: int) -> Iterator[Run]:
    del engine, broker
    with _on_event_loop(url, clients) as (loop, engine_of_loop):

        async def transaction() -> None:
            async with AsyncSession(engine_of_loop) as session:
                session.add(Order(value="alone"))
                await session.commit()

        yield lambda seconds: loop.run_until_complete(_in_tasks(transaction, clients, seconds))


@contextmanager
def _on_event_loop(url: str, clients: int) -> Iterator[tuple[asyncio.AbstractEventLoop, AsyncEngine]]:
    loop = asyncio.new_event_loop()
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"), pool_size=clients)
    try:
        yield loop, engine
    finally:
        loop.run_until_complete(engine.dispose())
        loop.close()


def _options(url: str, broker: LocalBroker, clients: int) -> dict[str, Any]:
    kafka = {"bootstrap.servers": broker.bootstrap}
    ids = clients * IDS_EACH
    return {"transactional_id": "service", "kafka": kafka, "database": url, "ids": ids, "ids_max": ids}


WAYS: Final[dict[str, Callable[[Engine, str, LocalBroker, int], AbstractContextManager[Run]]]] = {
    "commit": _commit,
    "outbox": _outbox,
    "before_return": _dual,
    "psycopg": _dual_by_psycopg,
    "in_background": partial(_dual, kafka_commit="in_background"),
    "commit_async": _commit_async,
    "async": _dual_async,
}


def _check(engine: Engine, broker: LocalBroker) -> None:
    """What was told is what was written: a wrong figure is worse than none."""
    with engine.connect() as connection:
        rows = connection.scalar(text("SELECT count(*) FROM orders WHERE value <> 'alone'"))
    records = len(read_topic(broker.bootstrap, TOPIC))
    if rows != records:
        message = f"{rows} rows and {records} records"
        raise SystemExit(message)


def _line(way: str, figures: dict[str, Any]) -> str:
    return (
        f"  {way:14} {figures['per_s']['median']:7.0f}/s ({figures['of_commit']:.2f} of a COMMIT)  "
        f"p50 {figures['p50_ms']:6.1f} ms  "
        f"p99 {figures['p99_ms']:6.1f} ms ({figures['p99_beyond_commit_ms']:+.1f} ms)  "
        f"{figures['cpu_s_per_1000']:.2f} CPU s for 1 000"
    )
