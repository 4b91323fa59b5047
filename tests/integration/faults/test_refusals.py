"""What is refused, and that a refusal changes nothing; what operators do, and whether what they are told works.

Each test does what docs/planned-work.md, docs/after-a-crash.md and the messages say, and nothing else.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from sqlalchemy import make_url

from spark_2pc_sink.cli import output
from spark_2pc_sink.errors import HaltCause
from tests.harness.damage import HISTORY, STATE, Backup, lose_row
from tests.harness.driver_job import LARGE_INPUT, Job, make_rows
from tests.harness.providers import Broker, Database
from tests.harness.sql import end_sessions
from tests.integration.faults.conftest import MakeJob, Run
from tests.integration.state.state_stores import role

BATCH = 1
ADOPT = "adopt=True"
WHY = ("--reason", "looked it up")
#: What a person does about it -> the options of a command, none without one, and of the job.
WAYS: dict[str, tuple[tuple[str, ...] | None, dict[str, Any]]] = {
    "restart": (None, {}),
    "recover": ((), {}),
    "recover --adopt": (("--adopt",), {}),
    "adopt=True": (None, {"adopt": True}),
}


# --- whose row it is -----------------------------------------------------------------------------------------------


def test_another_query_does_not_harm_the_one_that_runs(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A10, B21: a second job with the same transactional id, while the first is in the middle of a batch.

    Also where the first holds the row's lock and the second has to wait for it: nobody's session is ended.
    """
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    healthy = job.stop_at("copy", batch=BATCH)
    with job.unchanged():
        job.refused("ClaimRefusedError", "query-1", ADOPT, times=2, query_id="query-2")
    assert job.state("generation", "query_id") == (1, "query-1")
    job.ends_well(healthy)
    assert len(healthy.recoveries) == 1
    assert {event["attempts"] for event in healthy.events("batch")} == {1}


def test_an_id_that_another_application_uses(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A10, B21: a plain transactional producer with the sink's id and an open transaction, which goes on unharmed."""
    job = make_job(kafka_any_version)
    other = Producer({"bootstrap.servers": job.broker.bootstrap, "transactional.id": job.transactional_id})
    other.init_transactions(30)
    other.begin_transaction()
    elsewhere = f"{job.topic}.elsewhere"
    job.broker.create_topic(elsewhere)
    other.produce(elsewhere, b"record")
    other.flush(30)
    job.refused(HaltCause.ID_IN_USE, times=2)
    other.commit_transaction(30)


# --- what was lost -------------------------------------------------------------------------------------------------


def test_the_state_row_is_lost(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """C5, D2: Kafka knows the id, the database does not. Refused, also at the second start; adopting names batches.

    Nothing was open, and no history is left: else see below. Adopted alone the job could write a batch
    that both sides have once more: only a person knows what they have.
    """
    job = make_job(kafka_any_version)
    job.kill_at("step:PLACE", batch=BATCH)
    lose_row(job, history=True)
    described = job.describe()
    job.refused(HaltCause.ID_IN_USE, ADOPT, times=2)
    assert job.describe() == described
    job.refused(HaltCause.DATABASE_BEHIND, "accept_loss='0'", adopt=True)
    job.ends_well(adopt=True, accept_loss="0")


def test_the_checkpoint_is_wiped(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A8: a new query with batch 0 again. Refused by name of the remedy; adopted, its batches are new ones."""
    job = make_job(kafka_any_version)
    job.run()
    shutil.rmtree(job.checkpoint)
    job.checkpoint.mkdir()
    job.query_id = "query-2"
    with job.unchanged():
        job.refused("ClaimRefusedError", ADOPT, times=2)
    written = job.rows()
    for batch in job.input():
        job.write_batch(batch, make_rows(batch + 10, 20))
    job.run(adopt=True)
    job.check({0: written + make_rows(10, 20)})


def test_a_full_refresh_of_a_named_query(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A28: batch 0 again, and the query has the name that it had. No option lets that pass, but a new name does."""
    job = make_job(kafka_any_version)
    job.kill_at("step:NOTE", batch=BATCH)
    for finished in job.checkpoint.iterdir():
        finished.unlink()
    for sink in ({}, {"adopt": True}, {"accept_replay": 0}):
        job.refused(HaltCause.BATCHES_RESTARTED, "a new query_name if the sink has one", **sink)
    job.query_id = "query-2"
    with job.unchanged():
        job.refused("ClaimRefusedError", ADOPT, times=2)
    job.sql(f"TRUNCATE {job.table}")
    job.run(adopt=True)
    rows = job.input()
    job.check({batch: rows[batch] * 2 for batch in (0, BATCH)}, table=[row for batch in rows.values() for row in batch])


def test_a_gap_between_the_batches(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A11, B8: the checkpoint is ahead of the database, and of Kafka. What is left out has to be named."""
    job = make_job(kafka_any_version)
    job.kill_at("step:PLACE", batch=BATCH)
    (job.checkpoint / str(BATCH)).touch()
    for sink in ({}, {"adopt": True}):
        job.refused(HaltCause.GAP, "show no batch that the database lacks", "accept_loss='1'", **sink)
    job.refused("ConfigurationError", "must end with batch 1 or 2", adopt=True, accept_loss="1..3")
    job.run(adopt=True, accept_loss="1")
    job.check({BATCH: []})


@pytest.mark.parametrize("place", ["step:NOTE", "step:DECIDE"])
def test_the_database_is_restored_from_a_backup(place: str, kafka_any_version: Broker, make_job: MakeJob) -> None:
    """C5: the row and the table are older than what Kafka has. Nothing is sent again, or passed over, by itself.

    A commit of a pair that it does not know shows it, or the log behind the row's own. Batch 2 has no records, so the
    logs show two batches of three.
    """
    job = make_job(kafka_any_version)
    job.kill_at(place, batch=0)
    backup = Backup.make(job, batches=1)
    job.ends_well()
    generation = job.state("generation")
    backup.restore()
    assert job.state("generation") < generation
    # One that is new to both sides.
    job.add_batch()
    described = job.describe()
    said = ("at least 2 batches that the database lacks", "batch 1: 20 records of", f"{job.topic}-0 ")
    for sink in ({}, {"adopt": True}):
        outcome = job.refused(HaltCause.DATABASE_BEHIND, *said, **sink)
        assert "compare topic and table" in outcome.text.partition("What to do:")[2].splitlines()[2]
    assert job.describe() == described
    job.refused("ConfigurationError", "must begin with batch 1", adopt=True, accept_loss="2..3")
    assert job.run(adopt=True, accept_loss="1..3").placements == [(4, "RUN")]
    # Kafka has every batch once, and the table all but those that were named as lost.
    job.check(table=job.rows(but=range(1, 4)))


def test_the_replayed_batch_itself_is_what_the_database_lost(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """C5: the row is right before the batch that Spark replays, and a recovery has taken a new pair since.

    Nothing but the log shows that Kafka has that batch, which would else be written to it a second time.
    """
    job = make_job(kafka_any_version)
    job.kill_at("step:NOTE", batch=0)
    backup = Backup.make(job, batches=1)
    job.kill_at("step:NOTE", batch=BATCH)
    job.terminate()
    backup.restore()
    (job.checkpoint / "0").touch()
    job.refused(HaltCause.DATABASE_BEHIND, "batch 1: 20 records")
    assert job.run(adopt=True, accept_loss="1").placements[0] == (BATCH, "SKIP")
    job.check(table=job.rows(but=[BATCH]))


# --- the state row is lost while Kafka has a transaction open -------------------------------------------------------


def killed_and_lost(make_job: MakeJob, broker: Broker, place: str, *, history: bool = False) -> Job:
    """A job whose driver was killed at ``place``, and whose row was deleted; with ``history``, its lines too."""
    # Without the key nothing but the product keeps rows from being there twice.
    job = make_job(broker, primary_key=False)
    job.kill_at(place, batch=BATCH)
    lose_row(job, history=history)
    return job


@pytest.mark.parametrize(("place", "way"), [*(("step:DECIDE", way) for way in WAYS), ("step:COMPLETE", "restart")])
def test_a_row_that_is_lost_is_made_again(
    place: str, way: str, kafka_any_version: Broker, make_job: MakeJob, run: Run
) -> None:
    """C13: adopt aborted a decided transaction, and the batch was in the table twice. A dry run only says what is."""
    job = killed_and_lost(make_job, kafka_any_version, place)
    recovering, sink = WAYS[way]
    if recovering is not None:
        with job.unchanged():
            dry = run(job, output.EXIT_IN_DOUBT, "recover", "--dry-run")
        assert f"no state row; batch {BATCH}, decided" in dry
        settled = run(job, output.EXIT_SETTLED, "recover", "--take-over", *recovering)
        assert "rebuilt the lost state row from line" in settled
    job.ends_well(**sink)


@pytest.mark.parametrize(("place", "word"), [("step:DECIDE", "commit"), ("step:PREPARE", "abort")])
def test_row_and_history_are_lost(
    place: str, word: str, kafka_any_version: Broker, make_job: MakeJob, run: Run
) -> None:
    """C14: nobody but a person, who looks into the table, can tell what the database has decided."""
    job = killed_and_lost(make_job, kafka_any_version, place, history=True)
    described = job.describe()
    job.refused(HaltCause.ID_IN_USE)
    decided = f"has decided {described.producer}"
    job.refused(HaltCause.OPEN_TRANSACTION, decided, f"{job.topic}-0 from offset", times=2, adopt=True)
    text = run(job, output.EXIT_IN_DOUBT, "recover", "--take-over", "--adopt")
    assert re.search(rf"--transactional-id {job.transactional_id} .* --adopt --open-transaction {word}", text), text
    assert job.describe() == described
    words = ("--take-over", "--adopt", "--open-transaction", word, *WHY)
    batch = ("--batch", str(BATCH)) if word == "commit" else ()
    for _ in range(2):
        run(job, output.EXIT_SETTLED, "recover", *words, *batch)
    # Nothing but the person knows that the batch before is on both sides.
    named: dict[str, Any] = {"adopt": True, "accept_loss": "0"} if word == "abort" else {}
    restarted = job.ends_well(**named)
    assert restarted.placements[0] == (BATCH, "SKIP" if word == "commit" else "RUN")


# --- the database -------------------------------------------------------------------------------------------------


def test_the_database_moves_while_the_job_is_stopped(
    kafka: Broker, make_job: MakeJob, postgres: Database, request: pytest.FixtureRequest
) -> None:
    """D6: table and state row go together, so the copy settles what was in doubt."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    copy = f"{make_url(job.database).database}_moved"
    end_sessions(job.database)
    admin = job.on(kafka, database=postgres.url)
    admin.sql(f'CREATE DATABASE "{copy}" TEMPLATE "{make_url(job.database).database}"')
    request.addfinalizer(lambda: admin.sql(f'DROP DATABASE "{copy}" WITH (FORCE)'))
    job.database = postgres.database_url(copy)
    job.ends_well()


def test_the_state_table_moves_to_another_schema(kafka: Broker, make_job: MakeJob, run: Run) -> None:
    """D2: a job and an operator who look in the old place are told to look where it is."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    job.sql("CREATE SCHEMA ops")
    for table in (STATE, HISTORY):
        job.sql(f"ALTER TABLE {table} SET SCHEMA ops")
    job.refused("HaltError", "change transactional_id, state_schema, state_table or database back", times=2)
    assert "state_schema" in run(job, output.EXIT_IN_DOUBT, "recover", "--take-over")
    looked = run(job, output.EXIT_IN_DOUBT, "status", "--state-schema", "ops")
    assert "recovery will commit Kafka transaction" in looked
    job.ends_well(state_schema="ops")


def test_a_password_is_changed_under_a_running_job(kafka: Broker, make_job: MakeJob) -> None:
    """A new connection is refused, which the log says; a start with the new password goes on."""
    job = make_job(kafka)
    with role(job.database) as (name, old):
        job.sql(f"GRANT ALL ON SCHEMA public TO {name}; GRANT ALL ON target TO {name}")
        running = job.stop_at("step:PREPARE", batch=BATCH, database=old, connect_deadline_ms=1_000)
        job.sql(f"ALTER ROLE {name} PASSWORD 'new'")
        end_sessions(job.database, f"usename = '{name}'")
        running.go_on()
        assert running.outcome().event == "error"
        assert "password authentication failed" in running.log()
        job.ends_well(database=make_url(old).set(password="new").render_as_string(hide_password=False))


# --- Kafka --------------------------------------------------------------------------------------------------------


def test_the_topic_gets_more_partitions(kafka: Broker, make_job: MakeJob) -> None:
    """A6: while a batch is in doubt, its records stay where they are, and a replay is the same batch all the same."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_partitions([NewPartitions(job.topic, 5)]).values():
        future.result(30)
    job.ends_well()


def test_the_cluster_is_replaced(kafka: Broker, kafka_without_2pc: Broker, make_job: MakeJob, run: Run) -> None:
    """D6: settled on the old one, adopted on the new one, and then as ever. The topic was mirrored by others."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    kafka_without_2pc.create_topic(job.topic, partitions=3)
    moved = job.on(kafka_without_2pc)
    assert "the state row belongs to Kafka cluster" in run(moved, output.EXIT_NOT_KNOWN, "status")
    moved.refused("ClaimRefusedError", "use the cluster that the state row names")
    moved.refused("ClaimRefusedError", "recover the sink there first", adopt=True)
    run(job, output.EXIT_SETTLED, "recover", "--take-over")
    run(moved, output.EXIT_SETTLED, "recover", "--take-over", "--adopt")
    moved.run()
    table = job.rows()
    moved.check({0: [], BATCH: []}, table=table)


def test_the_cluster_is_gone_with_a_decided_batch(
    kafka: Broker, kafka_without_2pc: Broker, make_job: MakeJob, run: Run
) -> None:
    """D6: by hand, as the refusal says: owed, adopted, and the new cluster gets the batch."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    kafka_without_2pc.create_topic(job.topic, partitions=3)
    moved = job.on(kafka_without_2pc)
    moved.refused("ClaimRefusedError", "'owed' if they must be sent", adopt=True)
    job.sql("UPDATE kafka_transaction_state SET status = 'owed'")
    run(moved, output.EXIT_IN_DOUBT, "recover", "--take-over", "--adopt")
    moved.run()
    table = job.rows()
    moved.check({0: []}, table=table)
    run(moved, output.EXIT_SETTLED, "status")


# --- names --------------------------------------------------------------------------------------------------------


def test_the_transactional_id_is_changed_for_good(kafka: Broker, make_job: MakeJob, run: Run) -> None:
    """Settled first, then the row takes the new id along, and with it what is known of the last batch."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    run(job, output.EXIT_SETTLED, "recover", "--take-over")
    renamed = replace(job, transactional_id=f"{job.transactional_id}-renamed")
    for table in (STATE, HISTORY):
        job.sql(f"UPDATE {table} SET transactional_id = %s", renamed.transactional_id)
    renamed.ends_well()
