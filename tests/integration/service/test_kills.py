"""A service that is killed after each step, by SIGKILL, and started again: rows are records, each once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from spark_2pc_sink import recover, status
from spark_2pc_sink.testing import ReferenceCoordinator, read_topic, wait_until
from tests.harness import ROOT
from tests.harness.providers import Broker
from tests.integration.service.conftest import records_of, rows_of, statuses_of
from tests.integration.service.killed_service import STEPS, ServiceRun, run_to_its_end

#: Orders after which the example is killed.
ENOUGH = 20
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@pytest.mark.parametrize(
    ("broker", "commit"), [("stock", "in_background"), ("keeping", "before_return")], indirect=["broker"]
)
def test_after_each_step(
    broker: Any, commit: str, table: Engine, database: str, transactional_id: str, topic: Callable[..., str]
) -> None:
    orders = topic(partitions=2, broker=broker)
    kafka = {"bootstrap.servers": broker.bootstrap}
    options = {"transactional_id": transactional_id, "kafka": kafka, "database": database, "ids": 1}
    options["kafka_commit"] = commit
    expected: Counter[str] = Counter()
    for step, decided in STEPS.items():
        names = (f"before {step}", f"killed after {step}")
        run_to_its_end(ServiceRun(options, database, orders, names, dies_after=step))
        expected += Counter(names if decided else names[:1])
        assert rows_of(table) == expected
    run_to_its_end(ServiceRun(options, database, orders, ("last",)))
    expected += Counter(["last"])
    assert rows_of(table) == records_of(broker.bootstrap, orders) == expected
    assert statuses_of(table) == Counter(done=1)


@pytest.fixture
def impatient() -> Iterator[ReferenceCoordinator]:
    """A stock broker that soon aborts what lasts too long."""
    with ReferenceCoordinator(two_phase_commit=False, properties=SOON) as running:
        yield running


def test_what_kafka_has_aborted_after_the_decision_is_sent_again(
    impatient: ReferenceCoordinator, table: Engine, database: str, transactional_id: str, topic: Callable[..., str]
) -> None:
    orders = topic(broker=impatient)
    kafka = {"bootstrap.servers": impatient.bootstrap, "transaction.timeout.ms": 1_000}
    options = {"transactional_id": transactional_id, "kafka": kafka, "database": database, "ids": 1}
    sides: dict[str, Any] = {"kafka": kafka, "database": database, "transactional_id": f"{transactional_id}-0"}

    def aborted() -> bool:
        (found,) = status(**sides).sinks
        return found.kafka is not None and found.kafka.state == "CompleteAbort"

    for name in ("settled by a command", "settled by the next start"):
        run_to_its_end(ServiceRun(options, database, orders, (name,), dies_after="commit"))
        wait_until(aborted, what="Kafka has aborted the decided transaction")
        if name == "settled by a command":
            report = recover(**sides)
            assert [action.kind for action in report.actions] == ["note_owed", "resend"]
            assert (report.settled, recover(**sides).actions) == (True, ())
    run_to_its_end(ServiceRun(options, database, orders, ("last",)))
    expected = Counter(["settled by a command", "settled by the next start", "last"])
    assert rows_of(table) == records_of(impatient.bootstrap, orders) == expected


def test_the_example_has_the_same_orders_in_table_and_topic(
    kafka_without_2pc: Broker, database: str, topic: Callable[..., str]
) -> None:
    """examples/service.py: killed while it takes orders, and started again."""
    orders = topic(partitions=2, broker=kafka_without_2pc)
    command = [sys.executable, str(ROOT / "examples" / "service.py"), "--topic", orders]
    command += ["--bootstrap", kafka_without_2pc.bootstrap, "--database", database, "--threads", "4"]
    engine = create_engine(database)

    def rows() -> Counter[str]:
        with engine.connect() as connection:
            there = connection.scalar(text("SELECT to_regclass('service_orders') IS NOT NULL"))
            return Counter(connection.scalars(text("SELECT id FROM service_orders")) if there else [])

    killed = subprocess.Popen([*command, "--orders", "1000000"], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: rows().total() > ENOUGH, what="the service takes orders")
    finally:
        killed.kill()
        killed.wait()
    done = subprocess.run([*command, "--orders", "10"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "10 orders are in the table and in the topic\n"), done.stderr
    records = Counter(
        json.loads(record.value or b"")["id"] for record in read_topic(kafka_without_2pc.bootstrap, orders)
    )
    found = rows()
    engine.dispose()
    assert found == records
