"""Disks under a broker, the coordinator and PostgreSQL that are full, or cannot sync (EIO of fsync).

A server that cannot write ends, or refuses; the driver waits for it, or ends in the server's own words. What is in the
table is in the topic afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from spark_2pc_sink.testing import (
    DeadlineError,
    KafkaBroker,
    PostgresServer,
    ReferenceCoordinator,
    read_topic,
    wait_until,
)
from spark_2pc_sink.testing.kafka_broker import LocalBroker
from spark_2pc_sink.testing.postgres import run_as
from tests.conftest import or_skip
from tests.harness.driver_job import Job
from tests.harness.driver_process import DriverProcess
from tests.harness.machines import FailingSync, SmallDisk
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.java]

BATCH = 1
MIB = 1 << 20
#: The second batch has about 5 MiB of records, takes about 8 MiB in the table, and more in PostgreSQL's log.
SIZES = (10, 16_000, 10)
ENOUGH_BYTES = 512 * MIB
BROKER_ROOM_BYTES, TABLE_DISK_BYTES, WAL_ROOM_BYTES = MIB, 2 * MIB, 2 * MIB
UNCOMPRESSED: dict[str, Any] = {"compression.type": "none"}
BROKERS: dict[str, Callable[..., LocalBroker]] = {
    "kafka": partial(KafkaBroker, properties={"log.flush.interval.messages": "1"}),
    "reference": ReferenceCoordinator,
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def sync(pytestconfig: pytest.Config, stack: ExitStack) -> FailingSync:
    return stack.enter_context(or_skip(pytestconfig, FailingSync))


@pytest.fixture(params=sorted(BROKERS))
def broker(request: pytest.FixtureRequest, pytestconfig: pytest.Config, stack: ExitStack) -> LocalBroker:
    """A broker of the test's own that is not started yet."""
    made: LocalBroker = or_skip(pytestconfig, lambda: BROKERS[request.param](two_phase_commit=False))
    stack.callback(made.close)
    return made


@pytest.fixture
def make_server(pytestconfig: pytest.Config, stack: ExitStack) -> Callable[..., PostgresServer]:
    """Makes servers of the test's own, which are not started yet and end before their disks are removed."""

    def make(**options: Any) -> PostgresServer:
        made = or_skip(pytestconfig, lambda: PostgresServer(**options))
        stack.callback(made.close)
        return made

    return make


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
    def logged() -> bool:
        return text in (server._directory / "server.log").read_text(errors="replace")

    try:
        wait_until(logged, what=f"the server to say {text!r}")
    except DeadlineError:
        pytest.fail(f"{server.log_tail()}\n{driver.log_tail()}")


def until_ended(server: PostgresServer, text: str, driver: DriverProcess) -> None:
    """Wait until PostgreSQL has ended by itself, and has said why."""
    wait_until(lambda: not server.running, what=f"PostgreSQL to end: {server.log_tail()}")
    until_logged(server, text, driver)


def start_again(server: LocalBroker | PostgresServer) -> None:
    """Start a server that has ended by itself, or can no longer write."""
    if server.started:
        server.kill()
    server.start()


def make(make_job: MakeJob, broker: LocalBroker) -> Job:
    return make_job(cast("Broker", broker), sizes=SIZES, primary_key=False)


def make_on(server: PostgresServer, make_job: MakeJob, broker: Broker) -> Job:
    return make_job(broker, sizes=SIZES, primary_key=False, database=server.create_database("job"))


# --- of a broker ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
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
    disk.resize(disk.used_bytes + BROKER_ROOM_BYTES)
    driver.go_on()
    until_logged(broker, "No space left on device", driver)
    disk.resize(ENOUGH_BYTES)
    start_again(broker)
    job.ends_well(driver)


@pytest.mark.thorough
def test_the_disk_of_the_broker_cannot_sync(
    broker: LocalBroker, sync: FailingSync, stack: ExitStack, make_job: MakeJob
) -> None:
    """B32: what a broker has not made durable it has not acknowledged; so also with the end of a transaction."""
    stack.callback(broker.close)
    with sync.preloaded():
        broker.start()
    job = make(make_job, broker)
    driver = job.stop_at("step:PREPARE", batch=BATCH)
    sync.fail()
    driver.go_on()
    until_logged(broker, "Input/output error", driver)
    sync.work()
    start_again(broker)
    job.ends_well(driver)


# --- of the database -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_disk_of_the_database_cannot_sync(
    kafka_without_2pc: Broker, sync: FailingSync, make_server: Callable[..., PostgresServer], make_job: MakeJob
) -> None:
    """C19: PostgreSQL ends of it, and never tries again to sync what may be gone; a claim finds what it has kept."""
    server = make_server(settings={"fsync": "on", "restart_after_crash": "off"})
    with sync.preloaded():
        server.start()
    job = make_on(server, make_job, kafka_without_2pc)
    driver = job.stop_at("commit", batch=BATCH)
    sync.fail()
    driver.go_on()
    until_ended(server, "PANIC:  could not f", driver)
    sync.work()
    start_again(server)
    job.ends_well(driver)


def test_the_disk_of_the_table_is_full(
    kafka_without_2pc: Broker,
    pytestconfig: pytest.Config,
    stack: ExitStack,
    make_server: Callable[..., PostgresServer],
    make_job: MakeJob,
) -> None:
    """C7: a resource error (53100) is tried again, and then ends the job; the transaction in Kafka is aborted."""
    disk = stack.enter_context(or_skip(pytestconfig, lambda: SmallDisk(TABLE_DISK_BYTES, owner=run_as())))
    server = make_server()
    server.start()
    job = make_on(server, make_job, kafka_without_2pc)
    job.sql(f"CREATE TABLESPACE small LOCATION '{disk.path}'")
    job.sql("ALTER TABLE target SET TABLESPACE small")
    job.refused("BatchAttemptsExhaustedError", "No space left on device", "SQLSTATE 53100")
    # Both sides have the batch before, and nothing of this one.
    assert job.sql("SELECT count(*) FROM target") == [(SIZES[0],)]
    assert len(read_topic(job.broker.bootstrap, job.topic)) == SIZES[0]
    assert job.state("status", "batch_id") == ("done", 0)
    assert job.describe().state != "Ongoing"
    disk.resize(ENOUGH_BYTES)
    job.ends_well()


def test_the_disk_of_the_log_is_full(
    kafka_without_2pc: Broker,
    pytestconfig: pytest.Config,
    stack: ExitStack,
    make_server: Callable[..., PostgresServer],
    make_job: MakeJob,
) -> None:
    """C1, C11: the whole server dies of it, and is started again when there is room; the driver has waited for it."""
    disk = stack.enter_context(or_skip(pytestconfig, lambda: SmallDisk(ENOUGH_BYTES, owner=run_as())))
    server = make_server(
        # Left to itself it would start again, and, without room for a checkpoint, most often end.
        settings={"wal_recycle": "off", "restart_after_crash": "off"},
        initdb_options=[f"--waldir={disk.path / 'pg_wal'}", "--wal-segsize=1"],
    )
    server.start()
    job = make_on(server, make_job, kafka_without_2pc)
    driver = job.stop_at("step:PREPARE", batch=BATCH)
    server.execute("CHECKPOINT")
    disk.resize(disk.used_bytes + WAL_ROOM_BYTES)
    driver.go_on()
    until_ended(server, "PANIC:  could not write to file", driver)
    until_logged(server, "No space left on device", driver)
    disk.resize(ENOUGH_BYTES)
    start_again(server)
    job.ends_well(driver)
    assert "aborted the open transaction" in driver.actions
