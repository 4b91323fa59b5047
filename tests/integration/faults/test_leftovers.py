"""What a sink leaves on both sides after it was killed at every step: what one run leaves, and no more."""

from __future__ import annotations

from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.transactions import TransactionTool
from tests.harness.driver_job import Job
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob


def sessions(job: Job) -> list[tuple[str]]:
    """Who else is connected to the database."""
    return job.sql(
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )


def test_kills_leave_nothing_behind(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B19, B20, C4: one transactional id, one producer of each partition, nothing open, nothing prepared."""
    job = make_job(kafka_any_version)
    for step in (Step.PRODUCE, Step.PREPARE, Step.DECIDE):
        job.kill_at(f"step:{step.name}", batch=0)
    job.run()
    job.check()
    with TransactionTool(kafka={"bootstrap.servers": job.broker.bootstrap}) as tool:
        ids = [row for row in tool.list_transactions() if row.transactional_id.startswith(job.transactional_id)]
        producers = [tool.describe_producers(job.topic, partition) for partition in range(3)]
    (only,) = ids
    assert only.state in {"Empty", "CompleteCommit"}
    for found in producers:
        assert [(each.producer_id, each.start_offset) for each in found] == [(only.producer_id, None)]
    assert job.sql("SELECT relname FROM pg_stat_user_tables ORDER BY relname") == [
        ("kafka_transaction_state",),
        ("kafka_transaction_state_actions",),
        ("kafka_transaction_state_history",),
        ("target",),
    ]
    assert job.sql("SELECT count(*) FROM kafka_transaction_state") == [(1,)]
    assert job.sql("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [(0,)]
    # A backend ends a moment after its client: those of the queries above, too.
    wait_until(lambda: sessions(job) == [], deadline_s=30, what="every session to end")
