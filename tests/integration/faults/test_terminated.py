"""SIGTERM, as schedulers and nodes that are drained send it: the batch under way ends, or is left to the next start."""

from __future__ import annotations

import time

import pytest

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.job_end import EXIT_DONE, EXIT_STOPPED
from spark_2pc_sink.testing import wait_until
from tests.harness.driver_config import HOLD, TERMINATE, Fault
from tests.harness.driver_job import Job
from tests.harness.driver_process import SPARK_DEADLINE_S, DriverProcess, Outcome
from tests.harness.driver_spark import GRACE_S
from tests.harness.providers import Broker
from tests.harness.sql import sql_session
from tests.integration.faults.conftest import MakeJob

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Spark's own end, on a busy machine.
STOPPED_S = GRACE_S + 20
LEFT = "stopped: the current batch did not finish. The next start completes or repeats it"


def terminated_at(job: Job, step: Step, batch: int, do: str = TERMINATE) -> DriverProcess:
    """Run a driver that gets SIGTERM after a step; it ends by itself, in time."""
    driver = job.start(Fault(at=f"step:{step.name}", batch=batch, do=do))
    wait_until(lambda: bool(driver.events("fault")), deadline_s=SPARK_DEADLINE_S, what=f"SIGTERM after {step.name}")
    told_s = time.monotonic()
    assert driver.outcome() == Outcome("finished")
    assert time.monotonic() - told_s < STOPPED_S
    assert [event["code"] for event in driver.events("code")] == [EXIT_STOPPED]
    return driver


def test_the_batch_under_way_ends(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A29: the next start goes on behind it; each row is there once."""
    job = make_job(kafka_without_2pc, sizes=(20,) * 13, spark=True)
    driver = terminated_at(job, Step.DECIDE, 0)
    assert "stopped: the current batch finished" in driver.log_tail()
    assert job.state("batch_id")[0] >= 0
    last = job.run()
    assert [event["code"] for event in last.events("code")] == [EXIT_DONE]
    job.check()


def test_a_batch_that_stands_still_at_a_step_is_left_to_the_next_start(
    kafka_without_2pc: Broker, make_job: MakeJob
) -> None:
    """A29: it is decided, and the next start completes it."""
    job = make_job(kafka_without_2pc, sizes=(20, 20), spark=True)
    driver = terminated_at(job, Step.DECIDE, 0, HOLD)
    assert LEFT in driver.log_tail()
    assert job.state("batch_id") == (0,)
    job.ends_well()


def test_a_batch_that_does_not_end_is_left_to_the_next_start(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A29: somebody holds the table; the job ends within its grace period, and says what it leaves."""
    job = make_job(kafka_without_2pc, sizes=(20, 20), spark=True)
    with sql_session(job.database) as session:
        session.connection.autocommit = False
        session.execute(f"LOCK TABLE {job.table} IN ACCESS EXCLUSIVE MODE")
        driver = terminated_at(job, Step.BEGIN, 0)
        assert LEFT in driver.log_tail()
        session.connection.rollback()
    job.ends_well()
