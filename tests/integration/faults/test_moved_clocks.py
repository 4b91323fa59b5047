"""Somebody sets the clock of a machine while the job runs: an hour forward, back again, and another hour back.

It is the wall clock that is set; the monotonic one goes on. The machine is the driver's, the database's, or both's.
Not Kafka's and not Spark's: under libfaketime a virtual machine gets so slow that a broker never gets ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_2pc_sink.testing import read_topic, wait_until
from tests.conftest import or_skip
from tests.harness.driver_config import STOP, Fault
from tests.harness.driver_job import Job
from tests.harness.driver_process import DRIVER_DEADLINE_S, DriverProcess, Nursery
from tests.harness.moved_clock import MovedClock
from tests.harness.providers import Broker, Database
from tests.integration.faults.conftest import MakeJob

HOUR_S = 3_600
#: In which batch the clock is set, and how far from the real time it is then.
JUMPS = {1: HOUR_S, 2: 0, 3: -HOUR_S}
SIZES = (20, 20, 20, 20, 20)
#: Two times of day that are nearer are the same one: a test takes less.
SAME_S = 600.0
PLACES = ["step:BEGIN", "step:PREPARE", "step:DECIDE"]
MACHINES = {
    "driver": frozenset({"driver"}),
    "postgres": frozenset({"postgres"}),
    "both": frozenset({"driver", "postgres"}),
}


@dataclass
class Parts:
    """What a job is made of, and whose clock is set.

    Args:
        moved: ``driver``, ``postgres`` or both.
        clock: theirs.
        stack: ends what is started here.
    """

    moved: frozenset[str]
    clock: MovedClock
    stack: ExitStack
    broker: Broker
    start_postgres: Callable[..., Database]
    make_job: MakeJob

    def preload(self, part: str, stack: ExitStack) -> None:
        """Let what starts until the end of ``stack`` have the clock, if it is this part's."""
        if part in self.moved:
            stack.enter_context(self.clock.preloaded())

    def job(self, folder: Path) -> Job:
        """A job on a database server of its own."""
        with ExitStack() as starting:
            self.preload("postgres", starting)
            server = self.start_postgres()
        database = server.create_database("clocks")
        job = self.make_job(self.broker, sizes=SIZES, primary_key=False, database=database)
        with ExitStack() as starting:
            self.preload("driver", starting)
            job.nursery = self.stack.enter_context(Nursery(folder))
        self.stack.callback(job.close)
        return job

    def shift_s(self, part: str, shift_s: int) -> int:
        """How far from the real time a part is."""
        return shift_s if part in self.moved else 0


@pytest.fixture
def make_parts(
    pytestconfig: pytest.Config,
    kafka_without_2pc: Broker,
    start_postgres: Callable[..., Database],
    make_job: MakeJob,
) -> Callable[[str, ExitStack], Parts]:
    """What a job is made of, with the clock of these machines to be set."""

    def make(machines: str, stack: ExitStack) -> Parts:
        clock = stack.enter_context(or_skip(pytestconfig, MovedClock))
        return Parts(MACHINES[machines], clock, stack, kafka_without_2pc, start_postgres, make_job)

    return make


def set_in_mid_batch(parts: Parts, job: Job, driver: DriverProcess, batch: int) -> None:
    """Set the clock while the driver stands still, and let it go on."""

    def stands_still() -> bool:
        assert driver.running, f"it ended with {driver.end()}: {driver.log_tail()}"
        return driver.stopped and driver.events("fault")[-1]["batch"] == batch

    wait_until(stands_still, deadline_s=DRIVER_DEADLINE_S, what=f"batch {batch}: {driver.log_tail()}")
    parts.clock.move(JUMPS[batch])
    database_s = job.sql("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
    assert abs(database_s - time.time() - parts.shift_s("postgres", JUMPS[batch])) < SAME_S
    driver.go_on()


def check_times(parts: Parts, job: Job) -> None:
    """The clock of the driver was set in earnest: its records tell."""
    ahead_s = {
        int(record.key or b"") // 100_000: record.timestamp / 1_000 - time.time()
        for record in read_topic(job.broker.bootstrap, job.topic)
    }
    last = max(JUMPS)
    assert abs(ahead_s[last + 1] - parts.shift_s("driver", JUMPS[last])) < SAME_S


@pytest.mark.thorough
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("machines", MACHINES)
def test_a_clock_is_set_in_mid_batch(
    machines: str, place: str, tmp_path: Path, make_parts: Callable[[str, ExitStack], Parts]
) -> None:
    """B33: whoever's clock it is, one attempt writes each batch, and both sides have each row once."""
    with ExitStack() as stack:
        parts = make_parts(machines, stack)
        job = parts.job(tmp_path)
        driver = job.start(*(Fault(at=place, batch=batch, do=STOP) for batch in JUMPS))
        for batch in JUMPS:
            set_in_mid_batch(parts, job, driver, batch)
        job.finished(driver)
        assert [driver.attempts(batch) for batch in range(len(SIZES))] == [1] * len(SIZES)
        job.check()
        check_times(parts, job)
