"""Disks under a broker, the coordinator, PostgreSQL and Spark that are full, or cannot sync (EIO of fsync).

A server that cannot write ends, or refuses; the driver waits for it. What is in the table is in the topic afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from spark_2pc_sink.testing import DeadlineError, KafkaBroker, PostgresServer, ReferenceCoordinator, wait_until
from spark_2pc_sink.testing.local_broker import LocalBroker
from tests.conftest import or_skip
from tests.harness.driver_job import Job
from tests.harness.driver_process import DriverProcess
from tests.harness.memory_group import SmallDisk
from tests.harness.moved_clock import FailingSync
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.java, pytest.mark.thorough]

BATCH = 1
MIB = 1 << 20
#: The second batch has about 5 MiB of records.
SIZES = (10, 16_000, 10)
ENOUGH_BYTES = 512 * MIB
ROOM_BYTES = MIB
DEADLINE_S = 15.0
UNCOMPRESSED: dict[str, Any] = {"compression.type": "none"}
BROKERS: dict[str, Callable[..., LocalBroker]] = {
    "kafka": partial(KafkaBroker, properties={"log.flush.interval.messages": "1"}),
    "reference": ReferenceCoordinator,
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=sorted(BROKERS))
def broker(request: pytest.FixtureRequest, pytestconfig: pytest.Config, stack: ExitStack) -> LocalBroker:
    """A broker of the test's own that is not started yet."""
    made: LocalBroker = or_skip(pytestconfig, lambda: BROKERS[request.param](two_phase_commit=False))
    stack.callback(made.close)
    return made


def move_data(broker: LocalBroker, place: Path) -> None:
    """Let a broker that has not run keep its data elsewhere."""
    data = broker._directory / "data"
    if isinstance(broker, KafkaBroker):
        broker.format()
        shutil.move(data, place)
    else:
        place.mkdir()
    data.symlink_to(place)


def until_logged(server: LocalBroker | PostgresServer, text: str, driver: DriverProcess) -> None:
    """Wait until the server's log has said so."""
    name = "postgres.log" if isinstance(server, PostgresServer) else "broker.log"

    def logged() -> bool:
        return text in (server._directory / name).read_text(errors="replace")

    try:
        wait_until(logged, deadline_s=DEADLINE_S, what=f"the server to say {text!r}")
    except DeadlineError:
        pytest.fail(f"{server.log_tail()}\n{driver.log_tail()}")


def begin_again(broker: LocalBroker) -> None:
    """Start it, where it has ended by itself or can no longer write."""
    if broker.started:
        broker.kill()
    broker.start()


def make(make_job: MakeJob, broker: LocalBroker) -> Job:
    return make_job(cast("Broker", broker), sizes=SIZES, primary_key=False)


def test_the_disk_of_the_broker_is_full(
    broker: LocalBroker, pytestconfig: pytest.Config, stack: ExitStack, make_job: MakeJob
) -> None:
    """B32: in the middle of a transaction's records; when there is room, the broker is started again."""
    disk = stack.enter_context(or_skip(pytestconfig, lambda: SmallDisk(ENOUGH_BYTES)))
    stack.callback(broker.close)
    move_data(broker, disk.path / "data")
    broker.start()
    job = make(make_job, broker)
    driver = job.stop_at("step:BEGIN", batch=BATCH, kafka=UNCOMPRESSED)
    disk.resize(disk.used_bytes + ROOM_BYTES)
    driver.go_on()
    until_logged(broker, "No space left on device", driver)
    disk.resize(ENOUGH_BYTES)
    begin_again(broker)
    job.finished(driver)
    job.check()


def test_the_disk_of_the_broker_cannot_sync(
    broker: LocalBroker, pytestconfig: pytest.Config, stack: ExitStack, make_job: MakeJob
) -> None:
    """B32: what a broker has not made durable it has not acknowledged; so also with the end of a transaction."""
    sync = stack.enter_context(or_skip(pytestconfig, FailingSync))
    stack.callback(broker.close)
    with sync.preloaded():
        broker.start()
    job = make(make_job, broker)
    driver = job.stop_at("step:PREPARE", batch=BATCH)
    sync.fail()
    driver.go_on()
    until_logged(broker, "Input/output error", driver)
    sync.work()
    begin_again(broker)
    job.finished(driver)
    job.check()


def test_the_disk_of_the_database_cannot_sync(
    kafka_without_2pc: Broker, pytestconfig: pytest.Config, stack: ExitStack, make_job: MakeJob
) -> None:
    """C19: PostgreSQL ends of it, and never tries again to sync what may be gone; a claim finds what it has kept."""
    sync = stack.enter_context(or_skip(pytestconfig, FailingSync))
    settings = {"fsync": "on", "restart_after_crash": "off"}
    server = or_skip(pytestconfig, lambda: PostgresServer(settings=settings))
    stack.callback(server.close)
    with sync.preloaded():
        server.start()
    job = make_job(kafka_without_2pc, sizes=SIZES, primary_key=False, database=server.create_database("job"))
    driver = job.stop_at("commit", batch=BATCH)
    sync.fail()
    driver.go_on()
    wait_until(lambda: not server.running, deadline_s=DEADLINE_S, what=f"PostgreSQL to end: {server.log_tail()}")
    until_logged(server, "PANIC:  could not f", driver)
    sync.work()
    server.kill()
    server.start()
    job.finished(driver)
    job.check()
