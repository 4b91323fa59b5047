"""Transactions of a service: `DualWrite` beside a plain COMMIT, and beside an outbox table with a poller.

Threads of one process insert a row by an ORM session, and each transaction tells one record. The four ways take turns
on the same servers:

* ``commit``: the row alone, which is the floor.
* ``outbox``: the row and a row of an outbox, by one COMMIT. A poller in a process of its own reads the outbox in order,
  sends by an idempotent producer (librdkafka), and deletes. Its transactions are told when the poller has sent them,
  after the caller is gone; and again, where it dies between sending and deleting.
* ``before_return``, ``in_background``: `DualWrite`, by its option ``kafka_commit``.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import Producer
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.figures import Spread, quantile
from spark_2pc_sink import DualWrite
from spark_2pc_sink.testing import KafkaBroker, PostgresServer, ReferenceCoordinator, read_topic, wait_until

if TYPE_CHECKING:
    from benchmarks.scale import Scale
    from spark_2pc_sink.testing.local_broker import LocalBroker

THREADS: Final = 16
VALUE: Final = "v" * 200
FULL_SECONDS, QUICK_SECONDS = 10.0, 3.0
FULL_ROUNDS, QUICK_ROUNDS = 5, 2
POLLED_ROWS_MAX: Final = 500
POLL_PAUSE_S: Final = 0.005
TOPIC: Final = "service"
DRAIN_DEADLINE_S: Final = 120

BROKERS: Final[dict[str, Callable[[], LocalBroker]]] = {
    "kafka": lambda: KafkaBroker(two_phase_commit=False),
    "keeps_prepared": ReferenceCoordinator,
}
#: Runs one transaction.
Transaction: TypeAlias = Callable[[], None]


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
    found: dict[str, Any] = {"threads": THREADS, "seconds": seconds}
    for name, make in BROKERS.items():
        with make() as broker, PostgresServer() as postgres:
            broker.create_topic(TOPIC, partitions=8)
            found[name] = _measure_on(broker, postgres.create_database("shop"), seconds, rounds)
        for way, figures in found[name].items():
            print(_line(name, way, figures), flush=True)
    return found


def _measure_on(broker: LocalBroker, url: str, seconds: float, rounds: int) -> dict[str, Any]:
    engine = create_engine(url, pool_size=THREADS)
    Base.metadata.create_all(engine)
    per_s: dict[str, list[float]] = {}
    times_ms: dict[str, list[float]] = {}
    ways = {"commit": _commit, "outbox": _outbox, "before_return": _dual, "in_background": _in_background}
    # One turn more, which is not counted: connections, plans of statements and the virtual machine become warm.
    for turn in range(rounds + 1):
        for name, way in ways.items():
            with way(engine, url, broker) as transaction:
                taken_ms = _run(transaction, 1.0 if not turn else seconds)
            if turn:
                per_s.setdefault(name, []).append(len(taken_ms) / seconds)
                times_ms.setdefault(name, []).extend(taken_ms)
    _check(engine, broker)
    engine.dispose()
    floor = median(per_s["commit"])
    floor_p99 = quantile(times_ms["commit"], 0.99)
    return {
        name: {
            "per_s": Spread.of(rates).json(),
            "of_commit": median(rates) / floor,
            "p50_ms": quantile(times_ms[name], 0.5),
            "p99_ms": quantile(times_ms[name], 0.99),
            "p99_beyond_commit_ms": quantile(times_ms[name], 0.99) - floor_p99,
        }
        for name, rates in per_s.items()
    }


def _run(transaction: Transaction, seconds: float) -> list[float]:
    """Milliseconds of each transaction of all threads."""
    end_s = time.perf_counter() + seconds
    taken_ms: list[float] = []

    def serve() -> None:
        while (begun_s := time.perf_counter()) < end_s:
            transaction()
            taken_ms.append((time.perf_counter() - begun_s) * 1000)

    threads = [threading.Thread(target=serve) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return taken_ms


@contextmanager
def _commit(engine: Engine, url: str, broker: LocalBroker) -> Iterator[Transaction]:
    del url, broker

    def transaction() -> None:
        with Session(engine) as session:
            session.add(Order(value="alone"))
            session.commit()

    yield transaction


@contextmanager
def _outbox(engine: Engine, url: str, broker: LocalBroker) -> Iterator[Transaction]:
    def transaction() -> None:
        with Session(engine) as session:
            session.add(Order(value=VALUE))
            session.add(Told(value=VALUE))
            session.commit()

    poller = multiprocessing.get_context("spawn").Process(target=_poll, args=(url, broker.bootstrap), daemon=True)
    poller.start()
    try:
        yield transaction
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
    """The poller: the oldest rows, sent and acknowledged, then deleted."""
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
    engine: Engine, url: str, broker: LocalBroker, *, kafka_commit: Any = "before_return"
) -> Iterator[Transaction]:
    kafka = {"bootstrap.servers": broker.bootstrap}
    with DualWrite(
        transactional_id="service", kafka=kafka, database=url, ids=THREADS, kafka_commit=kafka_commit
    ) as dual:

        def transaction() -> None:
            with Session(engine) as session, dual.transaction(session) as tx:
                order = Order(value=VALUE)
                session.add(order)
                session.flush()
                tx.send(TOPIC, str(order.id), VALUE)

        yield transaction


def _in_background(engine: Engine, url: str, broker: LocalBroker) -> Any:
    return _dual(engine, url, broker, kafka_commit="in_background")


def _check(engine: Engine, broker: LocalBroker) -> None:
    """What was told is what was written: a wrong figure is worse than none."""
    with engine.connect() as connection:
        rows = connection.scalar(text("SELECT count(*) FROM orders WHERE value <> 'alone'"))
    records = len(read_topic(broker.bootstrap, TOPIC))
    if rows != records:
        message = f"{rows} rows and {records} records"
        raise SystemExit(message)


def _line(broker: str, way: str, figures: dict[str, Any]) -> str:
    return (
        f"{broker:15} {way:14} {figures['per_s']['median']:7.0f}/s ({figures['of_commit']:.2f} of a COMMIT)  "
        f"p50 {figures['p50_ms']:6.1f} ms  p99 {figures['p99_ms']:6.1f} ms ({figures['p99_beyond_commit_ms']:+.1f} ms)"
    )
