"""Kafka has lost a transaction that the database had decided: the batch is owed, and its Kafka half is sent again.

Lost by transaction.timeout.ms on a broker that does not grant two-phase commit, or by somebody's InitProducerId
(an operator's force-terminate, another application) on any broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spark_2pc_sink import OperatorDecision
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recipe.steps import Step
from tests.conftest import StartKafka
from tests.harness.driver_config import Row
from tests.harness.driver_job import Job, make_rows
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

BATCH = 1
#: Long enough for a batch on a busy machine, short enough to wait for.
TIMEOUT_MS = 6_000
SOON: dict[str, Any] = {"kafka": {"transaction.timeout.ms": TIMEOUT_MS}, "decision_margin_ms": 100}
#: How often the coordinator looks for transactions that have timed out; 10 s by default.
CLEANUP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
OWED = "noted that Kafka is owed batch 1"
CHANGED = make_rows(BATCH, 19)


def owe(job: Job) -> None:
    """Kill a driver right after its decision, and end its transaction by InitProducerId."""
    job.kill_at("step:DECIDE", batch=BATCH)
    job.terminate()


@pytest.mark.slow
def test_timed_out_after_the_decision(start_kafka: StartKafka, make_job: MakeJob) -> None:
    """B1, B7: the driver is dead for longer than transaction.timeout.ms."""
    job = make_job(start_kafka(properties=CLEANUP))
    job.kill_at("step:DECIDE", batch=BATCH, **SOON)
    job.wait_for_state("CompleteAbort")
    restarted = job.ends_well()
    assert OWED in restarted.actions
    assert restarted.placements[0] == (BATCH, "RESEND")


@pytest.mark.slow
def test_timed_out_while_the_driver_stood_still(start_kafka: StartKafka, make_job: MakeJob) -> None:
    """A17, B1, B7: between the last look at the clock and COMMIT, and before that look."""
    broker = start_kafka(properties=CLEANUP)
    job = make_job(broker)
    driver = job.stop_at("commit", batch=BATCH, **SOON)
    job.wait_for_state("CompleteAbort")
    job.ends_well(driver)
    assert OWED in driver.actions
    assert driver.attempts(BATCH) == 2

    job.add_batch()
    driver = job.stop_at("step:PREPARE", batch=4, **SOON)
    job.wait_for_state("CompleteAbort")
    driver.go_on()
    assert driver.outcome().error == "TransactionExpiredError"
    assert job.state("status", "batch_id") == ("done", 3)
    job.ends_well()


def test_killed_at_every_step_of_the_resend_in_turn(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B1, B8, B28: the same on each transaction.version, without two-phase commit, and lost twice."""
    job = make_job(kafka_any_version)
    owe(job)
    for step in Step:
        if step <= Step.DECIDE:
            job.kill_at(f"step:{step.name}", batch=BATCH)
    assert job.state("status") == ("decided",)
    job.terminate()
    again = job.kill_at("step:COMPLETE", batch=BATCH)
    assert OWED in again.actions
    job.ends_well()


def test_a_replay_that_differs_is_refused_until_a_person_decides(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A7, B28: a changed input file. The refusal names both ways out, and leaves nothing open in Kafka."""
    job = make_job(kafka_any_version)
    before = job.input()
    owe(job)
    job.write_batch(BATCH, CHANGED)
    sides = f"--transactional-id {job.transactional_id} --bootstrap-server {job.broker.bootstrap} --database postgres"
    ways = (f"spark-2pc recover {sides}", f" --batch {BATCH} --accept-replay", f" --batch {BATCH} --drop")
    for _ in range(2):
        job.refused(HaltCause.RESEND_DIFFERS, *ways)
        assert job.state("status", "batch_id") == ("owed", BATCH)
        assert job.describe().state != "Ongoing"
    # What the database has is put back: no decision is needed any more.
    job.write_batch(BATCH, before[BATCH])
    job.ends_well()


@pytest.mark.parametrize("decision", list(OperatorDecision), ids=lambda decision: decision.name)
def test_a_person_decides_about_an_owed_batch(
    decision: OperatorDecision, kafka_without_2pc: Broker, make_job: MakeJob
) -> None:
    """A7, B28: Kafka gets what Spark has now, or goes without the batch; the table keeps what it has."""
    job = make_job(kafka_without_2pc)
    table = job.rows()
    owe(job)
    job.write_batch(BATCH, CHANGED)
    job.refused(HaltCause.RESEND_DIFFERS)
    report = job.recover(decision=decision)
    assert report.settled == (decision is OperatorDecision.DROP)
    in_kafka: Mapping[int, list[Row]] = {BATCH: CHANGED if decision is OperatorDecision.ACCEPT_REPLAY else []}
    job.run()
    job.check(in_kafka, table=table)
