"""Kafka has lost a topic or a decided transaction, or does not show it any more: nothing may end green and wrong.

A topic's batch in question is always the second one; each such test ends with both sides compared, minus what was in
the topic. A transaction is lost by transaction.timeout.ms on a broker that does not grant two-phase commit, or by
somebody's InitProducerId (an operator's force-terminate, another application) on any broker: the batch is owed, and its
Kafka half is sent again. Where the coordinator does not tell how it ended, its control marker in the log does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from spark_2pc_sink import OperatorDecision
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import PreparedTxnState
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import read_topic
from tests.conftest import StartKafka
from tests.harness.damage import delete_log, delete_records, delete_topic, remake_topic
from tests.harness.driver_config import Row
from tests.harness.driver_job import Job, make_rows
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
    """What the refusal says: a person decides, and the job goes on. The other decision is below."""
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


#: Long enough for a batch on a busy machine, short enough to wait for.
TIMEOUT_MS = 6_000
SOON: dict[str, Any] = {"kafka": {"transaction.timeout.ms": TIMEOUT_MS}, "decision_margin_ms": 100}
#: How often the coordinator looks for transactions that have timed out; 10 s by default.
CLEANUP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
OWED = "noted that Kafka is owed batch 1"
CHANGED = make_rows(BATCH, 19)
#: After how long the coordinator forgets a transactional id: a week, by default.
EXPIRATION = {
    "transactional.id.expiration.ms": "4000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}


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


# --- the coordinator does not show the transaction any more, the log does ------------------------------------------
# Each case begins with a decided row whose driver is dead, and somebody who has used the transactional id since.


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
    restarted = job.ends_well()
    assert "is ABORT" in restarted.actions
    assert restarted.placements[0] == (BATCH, "RESEND")


def test_completed_by_the_driver_and_replaced(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """A15, B6: the driver dies between EndTxn and its note, and somebody uses the id before the restart."""
    job = make_job(kafka_each_version)
    job.kill_at("step:COMPLETE", batch=BATCH)
    job.terminate()
    assert "is COMMIT" in job.ends_well().actions


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
