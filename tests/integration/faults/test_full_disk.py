"""PostgreSQL's disk is full: the batch fails in the database's own words, neither side has it, and more room is enough.

The table is on one small file system, or the write-ahead log is. In the first case a statement fails; in the second
the whole server stops (PANIC), and cannot start before there is room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

import pytest

from spark_2pc_sink.testing import PostgresServer, read_topic, wait_until
from spark_2pc_sink.testing.postgres import run_as
from tests.conftest import or_skip
from tests.harness.driver_job import Job
from tests.harness.memory_group import SmallDisk
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

pytestmark = pytest.mark.postgres

BATCH = 1
MIB = 1 << 20
#: The second batch takes about 8 MiB in the table, and more in the log.
SIZES = (10, 16_000, 10)
TABLE_DISK_BYTES = 2 * MIB
WAL_ROOM_BYTES = 2 * MIB
ENOUGH_BYTES = 256 * MIB
DEADLINE_S = 60.0


@pytest.fixture
def disk(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[SmallDisk]:
    """A small file system that PostgreSQL may write to, of the size that the test's parameter says."""
    size_bytes: int = request.param
    with or_skip(pytestconfig, lambda: SmallDisk(size_bytes, owner=run_as())) as disk:
        yield disk


class StartSmall(Protocol):
    """The type of the fixture start_small."""

    def __call__(
        self, *, settings: Mapping[str, str] | None = None, initdb_options: Sequence[str] = ()
    ) -> PostgresServer:
        """Start a server that belongs to the test."""


@pytest.fixture
def start_small(pytestconfig: pytest.Config) -> Iterator[StartSmall]:
    """Starts local servers of the test's own; they end before their disk is removed."""
    with ExitStack() as servers:

        def start(*, settings: Mapping[str, str] | None = None, initdb_options: Sequence[str] = ()) -> PostgresServer:
            server = or_skip(pytestconfig, lambda: PostgresServer(settings=settings, initdb_options=initdb_options))
            return servers.enter_context(server)

        yield start


def only_first_batch(job: Job) -> None:
    """Both sides have the batch before the one that failed, and nothing of that."""
    assert job.sql("SELECT count(*) FROM target") == [(SIZES[0],)]
    assert len(read_topic(job.broker.bootstrap, job.topic)) == SIZES[0]
    assert job.state("status", "batch_id") == ("done", 0)
    assert job.describe().state != "Ongoing"


@pytest.mark.parametrize("disk", [TABLE_DISK_BYTES], indirect=True)
def test_the_disk_of_the_table_is_full(
    disk: SmallDisk, kafka_without_2pc: Broker, make_job: MakeJob, start_small: StartSmall
) -> None:
    """C7: a resource error (53100) is tried again, and then ends the job; the transaction in Kafka is aborted."""
    server = start_small()
    job = make_job(kafka_without_2pc, sizes=SIZES, primary_key=False, database=server.create_database("job"))
    job.sql(f"CREATE TABLESPACE small LOCATION '{disk.path}'")
    job.sql("ALTER TABLE target SET TABLESPACE small")
    outcome = job.fail()
    assert outcome.error == "BatchAttemptsExhaustedError"
    assert "No space left on device" in outcome.text
    assert "SQLSTATE 53100" in outcome.text
    only_first_batch(job)
    disk.resize(ENOUGH_BYTES)
    job.run()
    job.check()


@pytest.mark.parametrize("disk", [ENOUGH_BYTES], indirect=True)
def test_the_disk_of_the_log_is_full(
    disk: SmallDisk, kafka_without_2pc: Broker, make_job: MakeJob, start_small: StartSmall
) -> None:
    """C1, C11: the whole server dies of it, and is started again when there is room; the driver has waited for it."""
    server = start_small(
        # Left to itself it would start again, and, without room for a checkpoint, most often end.
        settings={"wal_recycle": "off", "restart_after_crash": "off"},
        initdb_options=[f"--waldir={disk.path / 'pg_wal'}", "--wal-segsize=1"],
    )
    job = make_job(kafka_without_2pc, sizes=SIZES, primary_key=False, database=server.create_database("job"))
    driver = job.stop_at("step:PREPARE", batch=BATCH)
    server.execute("CHECKPOINT")
    disk.resize(disk.used_bytes + WAL_ROOM_BYTES)
    driver.go_on()
    wait_until(lambda: not server.running, deadline_s=DEADLINE_S, what="PostgreSQL to end")
    assert "PANIC:  could not write to file" in server.log_tail()
    assert "No space left on device" in server.log_tail()
    disk.resize(ENOUGH_BYTES)
    server.kill()
    server.start()
    job.finished(driver)
    assert "aborted the open transaction" in driver.actions
    job.check()
