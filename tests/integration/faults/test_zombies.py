"""A driver is stopped with SIGSTOP, a new one takes over and finishes, and the old one is continued.

The old one must not do anything any more that either side would show, and must end with SupersededError. The new one
must not wait for it: not for its locks, not for its transaction.
"""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortableError, FencedError
from spark_2pc_sink.ids import PreparedTxnState
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
from spark_2pc_sink.testing import wait_until
from tests.harness.driver_job import LARGE_INPUT, Job, make_rows
from tests.harness.driver_process import DriverProcess
from tests.harness.driver_rows import RowsWork
from tests.harness.providers import Broker
from tests.harness.sql import sessions
from tests.integration.faults.conftest import MakeJob

#: What a new driver may take for everything, on a busy machine. All time-outs that it has are longer, so that none of
#: its waits can have ended by one: but that of the claim for the row's lock, after which it ends the older session.
TAKEN_OVER_S = 45.0
BATCH = 1
#: The deciding transactions that are open.
DECIDING = "application_name LIKE '2pc:%' AND xact_start IS NOT NULL"


def taken_over(job: Job, zombie: DriverProcess) -> DriverProcess:
    """Run a new driver to the end beside the stopped one, then continue that; returns the new one."""
    new = job.run(deadline_s=TAKEN_OVER_S)
    job.check()
    assert zombie.stopped
    job.superseded(zombie)
    job.check()
    return new


def test_stopped_after_prepare(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A12, B12, D1: the new driver aborts the prepared transaction; the old one comes too late to decide it."""
    job = make_job(kafka_any_version, primary_key=False)
    zombie = job.stop_at("step:PREPARE", batch=BATCH)
    new = taken_over(job, zombie)
    assert "aborted the open transaction" in new.actions
    assert ("DECIDE", BATCH) not in [(event["step"], event["batch"]) for event in zombie.events("step")]


def test_stopped_inside_copy(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """C2, D1: the old driver's session holds rows with the keys that the new one is about to write; it is ended."""
    job = make_job(kafka_any_version, sizes=LARGE_INPUT)
    zombie = job.stop_at("copy", batch=BATCH)
    wait_until(lambda: sessions(job.database, DECIDING), deadline_s=30, what="the stopped driver's transaction")
    (held,) = job.sql(
        "SELECT count(*) FROM pg_locks WHERE relation = 'target'::regclass AND mode = 'RowExclusiveLock' AND granted"
    )
    assert held[0] == 1
    new = taken_over(job, zombie)
    assert "aborted the open transaction" in new.actions
    assert sessions(job.database, DECIDING) == []


def test_stopped_before_end_of_transaction(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """B5, B12, D1: decided and not completed. The new driver commits; the old one's EndTxn must not end another one."""
    job = make_job(kafka_any_version)
    zombie = job.stop_at("end", batch=BATCH)
    new = taken_over(job, zombie)
    assert "committed" in new.actions


def test_stopped_before_end_while_the_new_one_has_a_transaction_open(
    kafka_any_version: Broker, make_job: MakeJob
) -> None:
    """B5: the old driver's EndTxn(commit) comes while the next transaction of the id is open, and must not end that."""
    job = make_job(kafka_any_version)
    zombie = job.stop_at("end", batch=0)
    new = job.stop_at("step:PRODUCE", batch=BATCH)
    job.superseded(zombie)
    assert job.describe().state == "Ongoing"
    job.ends_well(new)


def test_stopped_before_init_producer_id_that_aborts_a_decided_transaction(
    kafka_any_version: Broker, make_job: MakeJob
) -> None:
    """B12, B28, D1: the old driver's InitProducerId aborts what the new one has decided a moment ago.

    The claim cannot prevent it, because Kafka does not know of claims. The batch is owed, and sent again.
    """
    job = make_job(kafka_any_version)
    job.kill_at("step:PRODUCE", batch=BATCH)
    zombie = job.stop_at("init", batch=BATCH)
    new = job.stop_at("step:DECIDE", batch=BATCH)
    job.superseded(zombie)
    job.ends_well(new)
    assert "noted that Kafka is owed batch 1" in new.actions


@pytest.mark.parametrize("reached", [pytest.param("BEGIN", marks=pytest.mark.thorough), "PRODUCE"])
def test_a_task_that_outlives_its_driver(reached: str, kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A4, B5, B12: a dead driver's task still has its pair, and has not sent anything yet.

    Kafka shows nothing open then, so it is only the new pair of every recovery that keeps the task's records out of
    the new driver's transaction: it must be refused before and after the new one has written to the partitions.
    """
    job = make_job(kafka_any_version)
    job.kill_at("step:BEGIN", batch=BATCH)
    orphans_pair = job.describe().producer
    assert orphans_pair is not None
    new = job.stop_at(f"step:{reached}", batch=BATCH)
    ticket = TransactionTicket(
        transactional_id=job.transactional_id,
        producer=orphans_pair,
        transaction_version=kafka_any_version.transaction_version,
        generation=1,
        transaction=BATCH + 1,
        kafka_only=True,
    )
    orphan = RowsWork(SinkOptions.parse(**job.sink()), make_rows(BATCH, 20), half_copied=lambda: None)
    with pytest.raises((FencedError, AbortableError)):
        orphan.produce(ticket, _no_database)
    job.ends_well(new)


def _no_database() -> Connection:
    raise AssertionError("a task has no part in the deciding transaction")


def test_several_drivers_at_once(kafka_any_version: Broker, make_job: MakeJob) -> None:
    """A12, C3: the very first start of a sink, three times at once: one table, one row, one driver that is the last.

    The others are superseded, or find that the checkpoint which they read is behind the row; whatever they did before
    is part of the result.
    """
    job = make_job(kafka_any_version, sizes=(20,) * 6, primary_key=False)
    drivers = [job.start() for _ in range(3)]
    outcomes = [driver.outcome() for driver in drivers]
    assert {outcome.error for outcome in outcomes} <= {"", "SupersededError", "HaltError"}, outcomes
    job.ends_well()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_late_end_of_one_transaction_leaves_the_next_alone(
    kafka_each_version: Broker, make_job: MakeJob, commit: bool
) -> None:
    """B5, B36: a batch has an epoch of its own at each transaction.version, so the pair before it names nothing."""
    job = make_job(kafka_each_version)
    driver = job.stop_at("step:PREPARE", batch=BATCH)
    before = PreparedTxnState(job.state("prepared_transaction_state")[0]).producer
    assert before is not None
    with job.coordinator() as client:
        opened = client.describe()
        assert opened.state == "Ongoing"
        answer = client.end(before, commit=commit)
        assert answer.code != Code.NONE
        assert client.describe() == opened
    job.ends_well(driver)
