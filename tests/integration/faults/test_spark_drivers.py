"""The same faults with real streaming queries, each a program with a virtual machine and tasks of its own.

Every case of the other modules runs the batch driver alone, which is much faster. Here a few run end to end.
"""

from __future__ import annotations

import pytest

from tests.harness.driver_job import LARGE_INPUT
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

#: The step after which the driver is killed, and in which batch: once decided, the next start finishes a batch.
KILLS = (("PRODUCE", 0), ("DECIDE", 0), ("COMPLETE", 1), ("NOTE", 2))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.thorough
def test_killed_again_and_again(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A1, A15, B3, B8: driver and virtual machine die by SIGKILL, four times in one input, each time elsewhere."""
    job = make_job(kafka_without_2pc, sizes=(50, 50, 50, 50), spark=True)
    for step, batch in KILLS:
        job.kill_at(f"step:{step}", batch=batch)
    last = job.run()
    assert [event["batch"] for event in last.events("batch")] == [2, 3]
    job.check()


@pytest.mark.thorough  # test_zombies.py stops a driver there without Spark
def test_stopped_inside_copy(kafka: Broker, make_job: MakeJob) -> None:
    """A12, C2, D1: the Python driver stands still inside COPY, and another one runs on the same checkpoint.

    The virtual machine of the one that stands still lives, and so do its tasks.
    """
    job = make_job(kafka, sizes=LARGE_INPUT, spark=True)
    zombie = job.stop_at("copy", batch=1)
    job.run()
    job.check()
    assert zombie.stopped
    job.superseded(zombie)
    job.check()
