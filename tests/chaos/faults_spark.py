"""Faults of a job on Spark: the parts of its driver, and the executors and Python workers that run its tasks."""

from __future__ import annotations

import os
import signal
import time

import psutil

from spark_2pc_sink.testing import wait_until
from tests.chaos.faults_drivers import pause_driver, take_over
from tests.chaos.jobs import GONE_DEADLINE_S, MissedError, kill, send
from tests.chaos.plan import Planned
from tests.chaos.world import World

_BUSY_DEADLINE_S = 120.0
#: Tasks run for about this long after the beginning of a batch.
_TASKS_S = 0.3


def driver_kill(world: World, planned: Planned) -> int:
    """SIGKILL to the driver's process group: Python, and the JVM. Executors are left alone."""
    world.spark_job.kill(world.spark_job.stop_at(planned.place, planned))
    return 1


def python_driver_kill(world: World, planned: Planned) -> int:
    """SIGKILL to Python only: its JVM and tasks run on for a moment, next to those of the following driver."""
    job = world.spark_job
    driver = job.stop_at(planned.place, planned)
    job.strike(driver)
    os.kill(driver.pid, signal.SIGKILL)
    wait_until(lambda: not driver.running, deadline_s=GONE_DEADLINE_S, what="the exit of the killed Python driver")
    return 1


def jvm_kill(world: World, planned: Planned) -> int:
    """SIGKILL to the JVM only: Python finds its calls fail in the middle of a batch."""
    job = world.spark_job
    driver = job.stop_at(planned.place, planned)
    job.strike(driver)
    try:
        kill(job.jvm())
    finally:
        driver.go_on()
    return 1


def driver_pause(world: World, planned: Planned) -> int:
    """SIGSTOP and SIGCONT of the Python driver."""
    return pause_driver(world.spark_job, planned)


def jvm_pause(world: World, planned: Planned) -> int:
    """SIGSTOP and SIGCONT of the driver's JVM."""
    time.sleep(planned.delay_s)
    return _pause(world.spark_job.jvm(), planned)


def zombie(world: World, planned: Planned) -> int:
    """SIGSTOP, a second driver takes over, SIGCONT: the first ends, with Spark's error or with the sink's."""
    take_over(world, world.spark_job, planned)
    return 0


def executor_kill(world: World, planned: Planned) -> int:
    """SIGKILL to one of two executors, while tasks run."""
    _wait_for_tasks(world, planned)
    kill(_one_of(world.spark_cluster.executors()[-2:], planned))
    return 1


def executor_pause(world: World, planned: Planned) -> int:
    """SIGSTOP and SIGCONT of one of two executors, while tasks run."""
    _wait_for_tasks(world, planned)
    return _pause(_one_of(world.spark_cluster.executors()[-2:], planned), planned)


def worker_kill(world: World, planned: Planned) -> int:
    """SIGKILL to a Python worker, while tasks run."""
    _wait_for_tasks(world, planned)
    kill(_one_of(world.spark_job.python_workers(), planned))
    return 1


def _wait_for_tasks(world: World, planned: Planned) -> None:
    """Until a transaction has begun: the tasks of its batch run now."""
    driver = world.spark_job.driver
    begun = _begun(driver.events("step"))
    wait_until(
        lambda: _begun(driver.events("step")) > begun or not driver.running,
        deadline_s=_BUSY_DEADLINE_S,
        what="the job on Spark to begin a transaction",
    )
    time.sleep(planned.chance * _TASKS_S)


def _begun(steps: list[dict[str, object]]) -> int:
    return sum(1 for step in steps if step["step"] == "BEGIN")


def _one_of(processes: list[psutil.Process], planned: Planned) -> psutil.Process:
    if not processes:
        raise MissedError("no matching process is running")
    return processes[int(planned.chance * len(processes))]


def _pause(process: psutil.Process, planned: Planned) -> int:
    send(process, signal.SIGSTOP)
    try:
        time.sleep(planned.hold_s)
    finally:
        send(process, signal.SIGCONT)
    return 0
