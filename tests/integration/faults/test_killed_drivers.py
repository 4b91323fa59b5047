"""The driver is killed with SIGKILL after each step; after a restart both sides hold the input, each row once."""

from __future__ import annotations

import pytest

from spark_2pc_sink.recipe.steps import Step
from tests.harness.driver_job import Job, make_rows
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

#: The batch that is killed: not the first, so that there is a done batch before it and an empty one after it.
BATCH = 1
EACH_STEP = pytest.mark.parametrize("step", list(Step), ids=lambda step: step.name)


def killed_and_restarted(job: Job, step: Step) -> None:
    """Kill a driver after ``step`` of the batch, restart it, and compare both sides with the input."""
    if step is Step.RECOVER:
        job.kill_at("step:NOTE", batch=0)  # so that the one that is killed in recovery has something behind it
    killed = job.kill_at(f"step:{step.name}", batch=0 if step is Step.RECOVER else BATCH)
    assert killed.events()[-1]["event"] == "fault"
    decided = step >= Step.DECIDE
    assert job.state("status", "batch_id") == (
        ("done", 0) if not decided else ("done" if step is Step.NOTE else "decided", BATCH)
    )
    restarted = job.run()
    if step is Step.RECOVER:
        assert restarted.placements[0] == (0, "SKIP")
    else:
        assert restarted.placements[0] == (BATCH, "SKIP" if decided else "RUN")
    job.check()


@EACH_STEP
def test_killed_after_a_step(step: Step, kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A1, A15, A16, B3, B6, B8: any step, on transaction.version 0, 1 and 2, without two-phase commit.

    KIP-939, "Recovery recipe": a decided transaction is committed, any other one is aborted. An empty batch follows.
    """
    killed_and_restarted(make_job(kafka_any_version, primary_key=False), step)


@pytest.mark.parametrize("step", [Step.PREPARE, Step.DECIDE, Step.COMPLETE], ids=lambda step: step.name)
def test_killed_after_a_step_with_two_phase_commit(step: Step, kafka: Broker, make_job: MakeJob) -> None:
    """A1, A15, B1, B3, B6, B8: the same where the broker grants enable2Pc (KIP-939)."""
    job = make_job(kafka, primary_key=False)
    killed_and_restarted(job, step)
    assert all(recovered["two_phase_commit"] for driver in job.drivers for recovered in driver.recoveries)


def test_killed_at_every_step_in_turn(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A1, B8, B11: one batch dies at every step, one start after the other; no start undoes what another did."""
    job = make_job(kafka_without_2pc, primary_key=False)
    for step in Step:
        # Once it is decided, the next start finishes the batch by itself: what remains to be killed is the next one.
        batch = {Step.COMPLETE: 1, Step.NOTE: 3}.get(step, 0)
        job.kill_at(f"step:{step.name}", batch=batch)
    job.run()
    job.check()


@pytest.mark.parametrize("step", [Step.BEGIN, Step.PRODUCE], ids=lambda step: step.name)
def test_killed_in_an_empty_batch_that_is_the_last(step: Step, kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A16, B16: below transaction.version 2 its partitions were added, so that Kafka has a transaction to be ended.

    It must not stay open when the input ends: the sink would seem to be in doubt, until it times out.
    """
    job = make_job(kafka_any_version, sizes=(20, 0))
    job.kill_at(f"step:{step.name}", batch=1)
    job.run()
    assert job.state("status", "batch_id", "row_count") == ("done", 1, 0)
    job.check()
    job.write_batch(2, make_rows(2, 20))
    job.batches = 3
    job.run()
    job.check()
