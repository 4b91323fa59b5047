"""The job has as much memory as a container's limit allows, and the kernel kills one of its processes for more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.processes import children
from tests.conftest import or_skip
from tests.harness.driver_config import STOP, Fault
from tests.harness.driver_job import Job
from tests.harness.driver_process import SPARK_DEADLINE_S, DriverProcess
from tests.harness.memory_group import MemoryGroup, prefer
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

BATCH = 1
#: The second batch needs much more memory than the first has taken. Tasks write both.
SIZES = (30_000, 150_000)
FREE_BYTES = 4 << 20


def program_is(pid: int, name: str) -> bool:
    return name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def driver_of(driver: DriverProcess) -> list[int]:
    """The driver's Python."""
    return [driver.pid]


def machine_of(driver: DriverProcess) -> list[int]:
    """Spark's virtual machine, which is its driver and its executor."""
    return [pid for pid in children(driver.pid) if program_is(pid, "java")]


def workers_of(driver: DriverProcess) -> list[int]:
    """The Python of its tasks, without the process that forks them."""
    daemons = [pid for machine in machine_of(driver) for pid in children(machine) if program_is(pid, "pyspark.daemon")]
    return [pid for daemon in daemons for pid in children(daemon)]


def stopped_in(group: MemoryGroup, job: Job) -> DriverProcess:
    """A driver that stands still in the batch; what it and its children have taken counts in the group."""
    driver = job.start(Fault(at="step:BEGIN", batch=BATCH, do=STOP))
    group.add(driver.pid)  # long before it starts Spark
    driver.wait_for_fault()
    assert set(driver.session()) <= group.processes
    return driver


@pytest.mark.thorough
@pytest.mark.parametrize("processes_of", [driver_of, workers_of], ids=["driver", "worker"])
def test_the_kernel_kills_for_want_of_memory(
    processes_of: Callable[[DriverProcess], list[int]],
    kafka_without_2pc: Broker,
    make_job: MakeJob,
    pytestconfig: pytest.Config,
) -> None:
    """D16: in the middle of a batch. However the driver ends, the next start, without the limit, completes it."""
    with ExitStack() as stack:
        group = stack.enter_context(or_skip(pytestconfig, MemoryGroup))
        job = make_job(kafka_without_2pc, sizes=SIZES, primary_key=False, spark=True)
        stack.callback(job.close)
        driver = stopped_in(group, job)
        victims = processes_of(driver)
        assert victims
        for pid in victims:
            prefer(pid)
        assert group.kills == 0
        group.leave(FREE_BYTES)
        driver.go_on()
        wait_until(lambda: group.kills > 0, deadline_s=SPARK_DEADLINE_S, what=f"a kill: {driver.log_tail()}")
        assert [event["batch"] for event in driver.events("batch")] == [0]
        wait_until(lambda: not driver.running, deadline_s=SPARK_DEADLINE_S, what=f"its end: {driver.log_tail()}")
        assert not set(victims) & group.processes, "none of those that the kernel should have killed first is gone"
        job.run()
        job.check()
