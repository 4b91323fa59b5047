"""The topic is deleted, or deleted and made anew: its records are gone, and nothing of what is left may end green.

The batch in question is always the second one. Each test ends with both sides compared, minus what was in the topic.
"""

from __future__ import annotations

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from spark_2pc_sink import OperatorDecision
from spark_2pc_sink.errors import HaltCause
from tests.harness.damage import delete_records, delete_topic, remake_topic
from tests.harness.driver_job import Job
from tests.harness.halts import halts
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

BATCH = 1


def check_behind(job: Job, *, dropped: bool) -> None:
    """The table has everything; the topic what came after it was made anew, the batch too unless it was given up."""
    first_kept = BATCH + 1 if dropped else BATCH
    kept = {batch: rows if batch >= first_kept else [] for batch, rows in job.input().items()}
    job.check(kept, table=job.rows())


def settle(job: Job) -> None:
    """What the refusal says: a person decides, and the job goes on. The other decision is in test_resend.py."""
    assert job.state("status", "batch_id") == ("decided", BATCH)
    assert not job.recover(decision=OperatorDecision.ACCEPT_REPLAY, batch=BATCH).settled
    assert job.state("status", "batch_id") == ("owed", BATCH)
    assert job.run().placements[0] == (BATCH, "RESEND")
    check_behind(job, dropped=False)


# --- made anew ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["step:DECIDE", "step:COMPLETE"])
def test_the_topic_is_made_anew_behind_a_driver_that_died(
    place: str, kafka_any_version: Broker, make_job: MakeJob
) -> None:
    """B18: recovery tells it by the topic's id, before the commit and after it, at every start, and changes nothing."""
    job = make_job(kafka_any_version)
    job.kill_at(place, batch=BATCH)
    (ids,) = job.state("topic_ids")
    remake_topic(job)
    with job.unchanged("status, batch_id"):
        said = (job.topic, ids[job.topic], "batch 1", "offsets", "--accept-replay", "--drop")
        job.refused(HaltCause.TOPIC_REMADE, *said)
        with halts(HaltCause.TOPIC_REMADE, match="was deleted and created again"):
            job.recover()
    settle(job)


def test_the_topic_is_made_anew_under_a_driver_that_lives(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """B18: it looks at the topic before it notes the batch as done, and stops."""
    job = make_job(kafka_without_2pc)
    driver = job.stop_at("step:DECIDE", batch=BATCH)
    remake_topic(job)
    driver.go_on()
    assert driver.outcome().cause == HaltCause.TOPIC_REMADE
    settle(job)


def test_the_topic_is_made_anew_behind_a_batch_that_is_done(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B18: readers could have it; what its topic loses later is the history of the topic, and nothing is in doubt."""
    job = make_job(kafka_any_version)
    job.kill_at("step:NOTE", batch=BATCH)
    remake_topic(job)
    assert job.recover().settled
    assert job.run().placements[0] == (BATCH, "SKIP")
    check_behind(job, dropped=True)


def test_the_row_has_the_id_of_the_topic(kafka: Broker, make_job: MakeJob) -> None:
    """B18, KIP-516: the text that Kafka's own tools print; a restart of the job changes nothing about it."""
    job = make_job(kafka)
    job.kill_at("step:NOTE", batch=0)
    (ids,) = job.state("topic_ids")
    admin = AdminClient({"bootstrap.servers": job.broker.bootstrap})
    described = admin.describe_topics(TopicCollection([job.topic]))[job.topic].result(30)
    # librdkafka prints it in the other alphabet of Base64.
    assert ids == {job.topic: str(described.topic_id).translate(str.maketrans("+/", "-_"))}
    assert ids[job.topic]
    job.run()
    assert job.state("topic_ids") == (ids,)


# --- the log --------------------------------------------------------------------------------------------------------


def test_the_log_begins_behind_records_that_no_reader_has_seen(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B18: retention, or a person, deletes from the start of a log what is prepared and not yet committed."""
    job = make_job(kafka_any_version)
    job.kill_at("step:DECIDE", batch=BATCH)
    (offsets,) = job.state("kafka_offsets")
    ends = {int(name.rpartition("-")[2]): last + 1 for name, (_, last) in offsets.items()}
    delete_records(job.broker, job.topic, ends)
    job.refused(HaltCause.TOPIC_REMADE, "deleted before any reader could see them")
    settle(job)


# --- deleted ------------------------------------------------------------------------------------------------------


def test_the_topic_is_deleted_while_a_batch_is_in_doubt(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B18: the job stops and names the topic, and so does recovery: made anew later it would be another topic."""
    job = make_job(kafka_any_version)
    job.kill_at("step:DECIDE", batch=BATCH)
    delete_topic(job)
    first = f"create {job.topic} first, with as many partitions as before"
    job.refused(HaltCause.TOPIC_REMADE, f"topic '{job.topic}' was deleted", first)
    with halts(HaltCause.TOPIC_REMADE):
        job.recover()
    job.broker.create_topic(job.topic, partitions=3)
    settle(job)
