"""What operators do to a job that is well or stopped, and whether what they are told then works as it is written.

Each test does what docs/planned-work.md, docs/after-a-crash.md and the messages say, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from sqlalchemy import make_url

from spark_2pc_sink.cli import exits
from tests.harness.damage import HISTORY, STATE
from tests.harness.providers import Broker, Database
from tests.harness.sql import end_sessions
from tests.integration.faults.conftest import MakeJob, Run
from tests.integration.state.state_stores import role

BATCH = 1


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
    assert "state_schema" in run(job, exits.EXIT_IN_DOUBT, "recover", "--take-over")
    looked = run(job, exits.EXIT_IN_DOUBT, "status", "--state-schema", "ops")
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
    assert "the state row belongs to Kafka cluster" in run(moved, exits.EXIT_NOT_KNOWN, "status")
    moved.refused("ClaimRefusedError", "use the cluster that the state row names")
    moved.refused("ClaimRefusedError", "recover the sink there first", adopt=True)
    run(job, exits.EXIT_SETTLED, "recover", "--take-over")
    run(moved, exits.EXIT_SETTLED, "recover", "--take-over", "--adopt")
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
    run(moved, exits.EXIT_IN_DOUBT, "recover", "--take-over", "--adopt")
    moved.run()
    table = job.rows()
    moved.check({0: []}, table=table)
    run(moved, exits.EXIT_SETTLED, "status")


# --- names --------------------------------------------------------------------------------------------------------


def test_the_transactional_id_is_changed_for_good(kafka: Broker, make_job: MakeJob, run: Run) -> None:
    """Settled first, then the row takes the new id along, and with it what is known of the last batch."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    run(job, exits.EXIT_SETTLED, "recover", "--take-over")
    renamed = replace(job, transactional_id=f"{job.transactional_id}-renamed")
    for table in (STATE, HISTORY):
        job.sql(f"UPDATE {table} SET transactional_id = %s", renamed.transactional_id)
    renamed.ends_well()
