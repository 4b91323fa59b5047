"""What operators do to a job that is well or stopped, and whether what they are told then works as it is written.

Each test does what docs/planned-work.md, docs/after-a-crash.md and the messages say, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from sqlalchemy import make_url

from spark_2pc_sink.cli import exits
from tests.harness.driver_job import Job
from tests.harness.driver_process import Outcome
from tests.harness.providers import Broker, Database
from tests.integration.faults.conftest import MakeJob, Run

BATCH = 1


def refused(job: Job, error: str, *texts: str, **sink: Any) -> Outcome:
    """A start that fails with this error, whose text has all of these."""
    outcome = job.fail(**sink)
    assert outcome.error == error, outcome
    for text in texts:
        assert text in outcome.text, outcome.text
    return outcome


# --- the database -------------------------------------------------------------------------------------------------


def test_the_database_moves_while_the_job_is_stopped(
    kafka: Broker, make_job: MakeJob, postgres: Database, request: pytest.FixtureRequest
) -> None:
    """D6: table and state row go together, so the copy settles what was in doubt."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    copy = f"{make_url(job.database).database}_moved"
    job.sql(
        "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()"
    )
    admin = job.on(kafka, database=postgres.url)
    admin.sql(f'CREATE DATABASE "{copy}" TEMPLATE "{make_url(job.database).database}"')
    request.addfinalizer(lambda: admin.sql(f'DROP DATABASE "{copy}" WITH (FORCE)'))
    job.database = postgres.database_url(copy)
    job.run()
    job.check()


def test_the_state_table_moves_to_another_schema(kafka: Broker, make_job: MakeJob, run: Run) -> None:
    """D2: a job and an operator who look in the old place are told to look where it is."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    job.sql("CREATE SCHEMA ops")
    for table in ("kafka_transaction_state", "kafka_transaction_state_history"):
        job.sql(f"ALTER TABLE {table} SET SCHEMA ops")
    refused(job, "HaltError", "change transactional_id, state_schema, state_table or database back")
    refused(job, "HaltError", "change transactional_id, state_schema, state_table or database back")
    code, text = run(job, "recover", "--take-over")
    assert code == exits.EXIT_IN_DOUBT
    assert "state_schema" in text
    code, text = run(job, "status", "--state-schema", "ops")
    assert code == exits.EXIT_IN_DOUBT
    assert "recovery will commit Kafka transaction" in text
    job.run(state_schema="ops")
    job.check()


def test_a_password_is_changed_under_a_running_job(kafka: Broker, make_job: MakeJob) -> None:
    """A new connection is refused, which the log says; a start with the new password goes on."""
    job = make_job(kafka)
    role = f"{make_url(job.database).database}_role"
    job.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'old'")
    job.sql(f"GRANT ALL ON SCHEMA public TO {role}")
    job.sql(f"GRANT ALL ON target TO {role}")
    url = make_url(job.database)
    old, new = (url.set(username=role, password=word).render_as_string(hide_password=False) for word in ("old", "new"))
    running = job.stop_at("step:PREPARE", batch=BATCH, database=old, connect_deadline_ms=1_000)
    job.sql(f"ALTER ROLE {role} PASSWORD 'new'")
    job.sql("SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE usename = %s", role)
    running.go_on()
    assert running.outcome().event == "error"
    assert "password authentication failed" in running.log_tail()
    job.run(database=new)
    job.check()
    job.sql(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
    job.sql(f"DROP OWNED BY {role}")
    job.sql(f"DROP ROLE {role}")


# --- Kafka --------------------------------------------------------------------------------------------------------


def test_the_topic_gets_more_partitions(kafka: Broker, make_job: MakeJob) -> None:
    """A6: while a batch is in doubt, its records stay where they are, and a replay is the same batch all the same."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_partitions([NewPartitions(job.topic, 5)]).values():
        future.result(30)
    job.run()
    job.check()


def test_the_cluster_is_replaced(kafka: Broker, kafka_without_2pc: Broker, make_job: MakeJob, run: Run) -> None:
    """D6: settled on the old one, adopted on the new one, and then as ever. The topic was mirrored by others."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    kafka_without_2pc.create_topic(job.topic, partitions=3)
    moved = job.on(kafka_without_2pc)
    code, text = run(moved, "status")
    assert code == exits.EXIT_NOT_KNOWN
    assert "the state row belongs to Kafka cluster" in text
    refused(moved, "ClaimRefusedError", "use the cluster that the state row names")
    refused(moved, "ClaimRefusedError", "recover the sink there first", adopt=True)
    assert run(job, "recover", "--take-over")[0] == exits.EXIT_SETTLED
    assert run(moved, "recover", "--take-over", "--adopt")[0] == exits.EXIT_SETTLED
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
    refused(moved, "ClaimRefusedError", "'owed' if they must be sent", adopt=True)
    job.sql("UPDATE kafka_transaction_state SET status = 'owed'")
    code, text = run(moved, "recover", "--take-over", "--adopt")
    assert code == exits.EXIT_IN_DOUBT, text
    moved.run()
    table = job.rows()
    moved.check({0: []}, table=table)
    assert run(moved, "status")[0] == exits.EXIT_SETTLED


# --- names --------------------------------------------------------------------------------------------------------


def test_the_transactional_id_is_changed_for_good(kafka: Broker, make_job: MakeJob, run: Run) -> None:
    """Settled first, then the row takes the new id along, and with it what is known of the last batch."""
    job = make_job(kafka)
    job.kill_at("step:DECIDE", batch=BATCH)
    assert run(job, "recover", "--take-over")[0] == exits.EXIT_SETTLED
    renamed = replace(job, transactional_id=f"{job.transactional_id}-renamed")
    for table in ("kafka_transaction_state", "kafka_transaction_state_history"):
        job.sql(
            f"UPDATE {table} SET transactional_id = %s WHERE transactional_id = %s",
            renamed.transactional_id,
            job.transactional_id,
        )
    renamed.run()
    renamed.check()


# --- the checkpoint -----------------------------------------------------------------------------------------------
