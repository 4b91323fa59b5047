"""The topic is deleted: its records are gone, and nothing of what is left may hang or be doubled."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from spark_2pc_sink import OperatorDecision, recover
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.testing import read_topic, wait_until
from tests.integration.faults.conftest import MakeJob
from tests.support.driver_job import Job
from tests.support.halts import halts
from tests.support.providers import Broker

BATCH = 1


def delete_topic(job: Job) -> None:
    """Delete the job's topic, and wait until no broker knows it."""
    admin = AdminClient({"bootstrap.servers": job.broker.bootstrap})
    for future in admin.delete_topics([job.topic]).values():
        future.result(30)
    wait_until(
        lambda: job.topic not in admin.list_topics(timeout=10).topics, deadline_s=60, what="the topic to be gone"
    )


def test_the_topic_is_deleted_while_a_batch_is_in_doubt(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """B18: recovery settles what is in doubt, the job stops and names the topic, and goes on when it is made anew."""
    job = make_job(kafka_each_version)
    job.kill_at("step:DECIDE", batch=BATCH)
    delete_topic(job)
    refused = job.fail()
    assert job.topic in refused.text
    report = recover(
        transactional_id=job.transactional_id, kafka={"bootstrap.servers": job.broker.bootstrap}, database=job.database
    )
    assert report.settled
    assert job.state("status", "batch_id") == ("done", BATCH)
    job.broker.create_topic(job.topic, partitions=3)
    job.run()
    # What was in the topic is gone with it; the table has everything.
    job.check({0: [], BATCH: []}, table=[row for rows in job.input().values() for row in rows])
    assert read_topic(job.broker.bootstrap, job.topic)


@pytest.mark.parametrize("decision", list(OperatorDecision), ids=lambda decision: decision.name)
def test_the_topic_is_deleted_and_nothing_tells_how_the_batch_ended(
    decision: OperatorDecision, kafka_each_version: Broker, make_job: MakeJob
) -> None:
    """B7, B18: a halt that names the topic, until a person decides; what was decided is carried out without it."""
    job = make_job(kafka_each_version)
    job.kill_at("step:DECIDE", batch=BATCH)
    job.terminate()
    delete_topic(job)
    sides: dict[str, Any] = {
        "transactional_id": job.transactional_id,
        "kafka": {"bootstrap.servers": job.broker.bootstrap},
        "database": job.database,
    }
    with halts(HaltCause.OUTCOME_LOST, match=f"{job.topic}-0 cannot be read: .*UNKNOWN_TOPIC"):
        recover(**sides)
    assert job.state("status", "batch_id") == ("decided", BATCH)
    report = recover(decision=decision, **sides)
    dropped = decision is OperatorDecision.DROP
    assert report.settled is dropped
    assert job.state("status", "batch_id") == ("done" if dropped else "owed", BATCH)
    job.broker.create_topic(job.topic, partitions=3)
    assert job.run().placements[0] == (BATCH, "SKIP" if dropped else "RESEND")
    first_kept = BATCH + 1 if dropped else BATCH
    kept = {batch: rows if batch >= first_kept else [] for batch, rows in job.input().items()}
    job.check(kept, table=[row for rows in job.input().values() for row in rows])
