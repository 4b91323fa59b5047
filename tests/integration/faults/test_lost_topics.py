"""The topic is deleted: its records are gone, and nothing of what is left may hang or be doubled."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from spark_2pc_sink import recover
from spark_2pc_sink.testing import read_topic, wait_until
from tests.integration.faults.conftest import MakeJob
from tests.support.driver_job import Job
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
