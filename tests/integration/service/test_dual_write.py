"""A service on real servers: one decision for a session and Kafka, and the uses that would break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from spark_2pc_sink import DualWrite, recover, status
from spark_2pc_sink.errors import ConfigurationError, LocalProtocolError, UnknownTopicError
from spark_2pc_sink.testing import wait_until
from tests.harness.providers import Broker
from tests.integration.service.services import Order, records_of, rows_of, statuses_of


@pytest.fixture
def start(database: str, transactional_id: str) -> Iterator[Callable[..., DualWrite]]:
    """Starts services, and closes them."""
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
    wait_until(lambda: statuses_of(table) == Counter(done=2), deadline_s=20, what="every state row is done")


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
    wait_until(lambda: statuses_of(table) == Counter(done=4), deadline_s=20, what="every state row is done")
    # A command leaves a service alone that lives.
    report = recover(transactional_id=f"{transactional_id}-0", **sides)
    assert report.driver is not None
    assert report.driver.alive
    first.close()
    start(kafka_without_2pc, ids_max=4)
    assert rows_of(table) == records_of(kafka_without_2pc.bootstrap, orders) == Counter("0123")
