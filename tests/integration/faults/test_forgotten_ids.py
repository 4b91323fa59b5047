"""The coordinator has forgotten the transactional id, because the job was down for longer than it keeps one."""

from __future__ import annotations

import pytest

from spark_2pc_sink.testing import wait_until
from tests.conftest import StartKafka
from tests.integration.faults.conftest import MakeJob

BATCH = 1
#: A week, by default.
EXPIRATION = {
    "transactional.id.expiration.ms": "4000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}


@pytest.mark.slow
def test_the_coordinator_forgets_the_id(start_kafka: StartKafka, make_job: MakeJob) -> None:
    """B9: decided, and unknown to Kafka. The log tells how it ended, and a new producer id is taken."""
    job = make_job(start_kafka(properties=EXPIRATION))
    job.kill_at("step:COMPLETE", batch=BATCH)
    before = job.describe().producer
    assert before is not None
    wait_until(lambda: job.describe().state == "Unknown", deadline_s=60, what="the id to expire", interval_s=0.2)
    restarted = job.run()
    assert "is COMMIT" in restarted.actions
    assert restarted.placements[0] == (BATCH, "SKIP")
    job.check()
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
    wait_until(lambda: job.describe().state == "Unknown", deadline_s=60, what="the id to expire", interval_s=0.2)
    restarted = job.run()
    assert "is ABORT" in restarted.actions
    assert restarted.placements[0] == (BATCH, "RESEND")
    job.check()
