"""The coordinator does not show the decided transaction any more: its control marker in the log does.

Each case begins with a decided row whose driver is dead, and somebody who has used the transactional id since.
"""

from __future__ import annotations

import pytest

from spark_2pc_sink import OperatorDecision
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import PreparedTxnState
from spark_2pc_sink.testing import read_topic
from tests.conftest import StartKafka
from tests.harness.damage import delete_log
from tests.harness.driver_job import Job
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

BATCH = 1
#: After how long the coordinator forgets a transactional id: a week, by default.
EXPIRATION = {
    "transactional.id.expiration.ms": "4000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}


def commit_as_somebody_else(job: Job) -> None:
    """End the decided transaction with COMMIT, as an operator could by the pair in the state row."""
    producer = PreparedTxnState(job.state("prepared_transaction_state")[0]).producer
    assert producer is not None
    with job.coordinator() as client:
        assert client.end(producer, commit=True).code == 0


def test_aborted_and_replaced(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """B7, B28: used twice since: aborted by someone's InitProducerId, and the state replaced: the marker is ABORT."""
    job = make_job(kafka_each_version)
    job.kill_at("step:DECIDE", batch=BATCH)
    for _ in range(2):
        job.terminate()
    restarted = job.run()
    assert "is ABORT" in restarted.actions
    assert restarted.placements[0] == (BATCH, "RESEND")
    job.check()


def test_completed_by_the_driver_and_replaced(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """A15, B6: the driver dies between EndTxn and its note, and somebody uses the id before the restart."""
    job = make_job(kafka_each_version)
    job.kill_at("step:COMPLETE", batch=BATCH)
    job.terminate()
    assert "is COMMIT" in job.run().actions
    job.check()


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_one_partition_that_has_its_log_is_enough(outcome: str, kafka_each_version: Broker, make_job: MakeJob) -> None:
    """B7, B15: the logs of the first partitions were deleted; a transaction ends in all of them in the same way."""
    job = make_job(kafka_each_version)
    job.kill_at("step:DECIDE", batch=BATCH)
    if outcome == "COMMIT":
        commit_as_somebody_else(job)
    job.terminate()
    delete_log(job, [0, 1])
    restarted = job.run()
    assert f"{job.topic}-2 after offset" in restarted.actions
    assert f"is {outcome}" in restarted.actions
    assert restarted.placements[0] == (BATCH, "SKIP" if outcome == "COMMIT" else "RESEND")


@pytest.mark.parametrize("decision", list(OperatorDecision), ids=lambda decision: decision.name)
def test_the_log_is_deleted(decision: OperatorDecision, kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A11, B7, B15: nothing tells any more how it ended. No guess: halt, change nothing, until a person decides."""
    job = make_job(kafka_any_version)
    job.kill_at("step:DECIDE", batch=BATCH)
    job.terminate()
    delete_log(job)
    with job.unchanged("status, prepared_transaction_state, settled, batch_id"):
        job.refused(HaltCause.OUTCOME_LOST, "deleted or compacted", "--accept-replay", "--drop", times=2)
    job.recover(decision=decision, batch=BATCH)
    restarted = job.run()
    sent_again = decision is OperatorDecision.ACCEPT_REPLAY
    assert restarted.placements[0] == (BATCH, "RESEND" if sent_again else "SKIP")
    # The topic's first batch was deleted with the log.
    first_kept = BATCH if sent_again else BATCH + 1
    rows = {batch: rows if batch >= first_kept else [] for batch, rows in job.input().items()}
    job.check(rows, table=job.rows())
    assert read_topic(job.broker.bootstrap, job.topic)


# --- the id is forgotten: the job was down for longer than the coordinator keeps it --------------------------------


@pytest.mark.slow
def test_the_coordinator_forgets_the_id(start_kafka: StartKafka, make_job: MakeJob) -> None:
    """B9: decided, and unknown to Kafka. The log tells how it ended, and a new producer id is taken."""
    job = make_job(start_kafka(properties=EXPIRATION))
    job.kill_at("step:COMPLETE", batch=BATCH)
    before = job.describe().producer
    assert before is not None
    job.wait_for_state("Unknown")
    restarted = job.ends_well()
    assert "is COMMIT" in restarted.actions
    assert restarted.placements[0] == (BATCH, "SKIP")
    after = job.describe().producer
    assert after is None or after.producer_id != before.producer_id


@pytest.mark.slow
def test_the_coordinator_aborts_the_decided_batch_and_forgets_the_id(
    start_kafka: StartKafka, make_job: MakeJob
) -> None:
    """B1, B9: a pause of a week without two-phase commit. The log tells of the abort, and the batch is sent again."""
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200", **EXPIRATION}
    job = make_job(start_kafka(two_phase_commit=False, properties=soon))
    job.kill_at("step:DECIDE", batch=BATCH, kafka={"transaction.timeout.ms": 2_000}, decision_margin_ms=100)
    job.wait_for_state("Unknown")
    restarted = job.ends_well()
    assert "is ABORT" in restarted.actions
    assert restarted.placements[0] == (BATCH, "RESEND")
