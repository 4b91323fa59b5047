"""Faults of the job without Spark: its driver is one process, and back in a moment."""

from __future__ import annotations

import time

from tests.chaos.jobs import BrokenError, ChaosJob
from tests.chaos.plan import Planned
from tests.chaos.world import World
from tests.harness.driver_process import DriverProcess

#: How long a driver that was stopped may go on before it must have seen that another one has taken over.
SUPERSEDED_DEADLINE_S = 120.0


def kill(world: World, planned: Planned) -> int:
    job = world.rows
    job.kill(job.stop_at(planned.place, planned))
    return 1


def kill_in_recovery(world: World, planned: Planned) -> int:
    """SIGKILL, and once more while the next one recovers."""
    job = world.rows
    job.kill(job.stop_at(planned.place, planned))
    driver = job.start(stop_at=planned.recovery_place)
    job.kill(job.stopped(driver, planned.recovery_place))
    return 2


def pause(world: World, planned: Planned) -> int:
    """SIGSTOP, and SIGCONT a moment later."""
    return pause_driver(world.rows, planned)


def zombie(world: World, planned: Planned) -> int:
    """SIGSTOP, a second driver takes over, SIGCONT: the first must find that it is superseded."""
    job = world.rows
    first = take_over(world, job, planned)
    end = first.end()
    if end is None or end.error != "SupersededError":
        raise BrokenError(f"a superseded driver of {job.name} exited with {end}, not with SupersededError")
    return 0


def pause_driver(job: ChaosJob, planned: Planned) -> int:
    """Stop the driver of a job, wherever the plan says, and continue it."""
    driver = job.stop_at(planned.place, planned)
    time.sleep(planned.hold_s)
    driver.go_on()
    return 0


def take_over(world: World, job: ChaosJob, planned: Planned) -> DriverProcess:
    """Stop the driver, start another one, let that write, and continue the first; returns it when it has ended."""
    first = job.stop_at(planned.place, planned)
    job.strike(first)
    job.start()
    world.wait(
        lambda: job.back, deadline_s=job.back_deadline_s, what=f"the second driver of {job.name} to write batches"
    )
    first.go_on()
    world.wait(
        lambda: not first.running,
        deadline_s=SUPERSEDED_DEADLINE_S,
        what=f"the superseded driver of {job.name} to exit; the end of its log:\n{first.log_tail()}",
    )
    return first
