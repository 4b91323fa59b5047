"""What is refused, and that a refusal changes nothing: wrong owners, lost state, sides that do not belong together."""

from __future__ import annotations

import shutil

import pytest
from confluent_kafka import Producer

from spark_2pc_sink.errors import HaltCause
from tests.integration.faults.conftest import MakeJob
from tests.support.driver_job import LARGE_INPUT, Job, make_rows
from tests.support.providers import Broker

BATCH = 1
ADOPT = "adopt=True"
ROW = ("status", "prepared_transaction_state", "settled", "batch_id", "query_id", "cluster_id")


def refused(job: Job, error: str, *texts: str, **sink: object) -> None:
    """A start that must fail with ``error`` and these texts, twice, and leave Kafka and the row as they are."""
    described, row = job.describe(), job.state(*ROW)
    for _ in range(2):
        outcome = job.fail(**sink)
        assert outcome.error == error, outcome
        for text in texts:
            assert text in outcome.text
    assert job.describe() == described
    assert job.state(*ROW) == row


# --- whose row it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["step:PREPARE", "copy", "commit", "end"])
def test_another_query_does_not_harm_the_one_that_runs(
    place: str, kafka_without_2pc: Broker, make_job: MakeJob
) -> None:
    """A10, B21: a second job with the same transactional id, while the first is in the middle of a batch.

    Also where the first holds the row's lock and the second has to wait for it: nobody's session is ended.
    """
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    healthy = job.stop_at(place, batch=BATCH)
    described = job.describe()
    for _ in range(2):
        outcome = job.fail(query_id="query-2")
        assert outcome.error == "ClaimRefusedError"
        assert "query-1" in outcome.text
        assert ADOPT in outcome.text
    assert job.describe() == described
    assert job.state("generation", "query_id") == (1, "query-1")
    healthy.go_on()
    job.finished(healthy)
    assert len(healthy.recoveries) == 1
    assert {event["attempts"] for event in healthy.events("batch")} == {1}
    job.check()


def test_another_cluster(kafka: Broker, kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """D6: pairs of another cluster mean other transactions. A decided row is not even adopted."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    kafka_without_2pc.create_topic(job.topic, partitions=3)
    moved = {"kafka": {"bootstrap.servers": kafka_without_2pc.bootstrap}}
    refused(job, "ClaimRefusedError", "Kafka cluster", **moved)
    refused(job, "ClaimRefusedError", "is not settled", adopt=True, **moved)
    job.run()
    job.check()


def test_an_id_that_another_application_uses(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """A10, B21: a plain transactional producer with the sink's id and an open transaction, which goes on unharmed."""
    job = make_job(kafka_each_version)
    other = Producer({"bootstrap.servers": job.broker.bootstrap, "transactional.id": job.transactional_id})
    other.init_transactions(30)
    other.begin_transaction()
    elsewhere = f"{job.topic}.elsewhere"
    job.broker.create_topic(elsewhere)
    other.produce(elsewhere, b"record")
    other.flush(30)
    for _ in range(2):
        outcome = job.fail()
        assert outcome.cause == HaltCause.ID_IN_USE
    other.commit_transaction(30)


# --- what was lost -------------------------------------------------------------------------------------------------


def test_the_state_row_is_lost(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """C5, D2: Kafka knows the id, the database does not. Refused, also at the second start; adopting goes on.

    Nothing was open, and no history is left: else see test_lost_rows.py.
    """
    job = make_job(kafka_each_version)
    job.kill_at("step:PLACE", batch=BATCH)
    job.sql("DELETE FROM kafka_transaction_state")
    job.sql("DELETE FROM kafka_transaction_state_history")
    described = job.describe()
    for _ in range(2):
        outcome = job.fail()
        assert outcome.cause == HaltCause.ID_IN_USE
        assert ADOPT in outcome.text
        assert job.describe() == described
    job.run(adopt=True)
    job.check()


def test_the_checkpoint_is_wiped(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """A8: a new query with batch 0 again. Refused by name of the remedy; adopted, its batches are new ones."""
    job = make_job(kafka_each_version)
    job.run()
    shutil.rmtree(job.checkpoint)
    job.checkpoint.mkdir()
    job.query_id = "query-2"
    refused(job, "ClaimRefusedError", ADOPT)
    before = job.input()
    for batch in before:
        job.write_batch(batch, make_rows(batch + 10, 20))
    job.run(adopt=True)
    job.check({0: [row for rows in before.values() for row in rows] + make_rows(10, 20)})


def test_a_gap_between_the_batches(kafka_each_version: Broker, make_job: MakeJob) -> None:
    """A11, B8: the checkpoint is ahead of the database."""
    job = make_job(kafka_each_version)
    job.kill_at("step:PLACE", batch=BATCH)
    (job.checkpoint / str(BATCH)).touch()
    outcome = job.fail()
    assert outcome.cause == HaltCause.GAP
    assert ADOPT in outcome.text
    job.run(adopt=True)
    job.check({BATCH: []})


def test_a_first_batch_that_is_not_the_first(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A8, C5: an empty database and an old checkpoint."""
    job = make_job(kafka_without_2pc)
    (job.checkpoint / "0").touch()
    outcome = job.fail()
    assert outcome.cause == HaltCause.NOT_THE_FIRST_BATCH


@pytest.mark.parametrize("status", ["done", "decided"])
def test_the_database_is_restored_from_a_backup(status: str, kafka_each_version: Broker, make_job: MakeJob) -> None:
    """C5: the row and the table are older than what Kafka has committed. Nothing is sent again by itself.

    A commit of a pair that it does not know shows it at once. Below transaction.version 2 a decided row is settled
    from the log, as it could be true; then the checkpoint's next batch leaves a gap.
    """
    at_once = status == "done" or kafka_each_version.transaction_version == 2
    job = make_job(kafka_each_version)
    job.kill_at("step:NOTE" if status == "done" else "step:DECIDE", batch=0)
    job.sql("CREATE TABLE backup AS SELECT * FROM kafka_transaction_state")
    job.run()
    job.check()
    generation = job.state("generation")
    job.sql("DELETE FROM kafka_transaction_state")
    job.sql("INSERT INTO kafka_transaction_state SELECT * FROM backup")
    job.sql(f"DELETE FROM {job.table} WHERE id >= 100000")
    assert job.state("generation") < generation
    job.write_batch(4, make_rows(4, 20))
    job.batches = 5
    described = job.describe()
    for _ in range(2):
        outcome = job.fail()
        assert outcome.cause == (HaltCause.DATABASE_BEHIND if at_once else HaltCause.GAP)
    if at_once:
        assert job.describe() == described
    # What the refusal says: repair the table by hand, and adopt.
    for batch in range(1, 4):
        for row in job.input()[batch]:
            job.sql(f"INSERT INTO {job.table} VALUES (%s, %s)", *row)
    job.run(adopt=True)
    job.check()
