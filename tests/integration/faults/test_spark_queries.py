"""Spark's queries: stopped or ended by SIGTERM in the middle of a batch, and an entry of the checkpoint is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver import step_observer
from spark_2pc_sink.sink.job_end import EXIT_DONE, EXIT_STOPPED
from spark_2pc_sink.testing import read_topic, wait_until
from tests.harness.driver_config import HOLD, TERMINATE, Fault
from tests.harness.driver_job import Job
from tests.harness.driver_process import SPARK_DEADLINE_S, DriverProcess, Outcome
from tests.harness.driver_spark import GRACE_S, start_query
from tests.harness.providers import Broker
from tests.harness.sql import sql_session
from tests.integration.faults.conftest import MakeJob

#: For what takes seconds on an idle machine.
QUERY_S = 250

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
#: Spark's own end, on a busy machine.
STOPPED_S = GRACE_S + 20
LEFT = "stopped: the current batch did not finish. The next start completes or repeats it"


@contextmanager
def query_of(spark: SparkSession, job: Job, *, slash: str = "") -> Iterator[StreamingQuery]:
    """The job's query, running in this process, and stopped in the end."""
    sink = DualWriteSink(**job.sink())
    query = start_query(spark, str(job.folder / "input"), f"{job.checkpoint}{slash}", sink)
    try:
        yield query
    finally:
        query.stop()


def run_query(spark: SparkSession, job: Job, *, slash: str = "") -> None:
    with query_of(spark, job, slash=slash) as query:
        assert query.awaitTermination(QUERY_S)


def test_stopped_in_the_middle_of_a_batch(
    spark: SparkSession, kafka_without_2pc: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A14: stop() has been called, and the Python side has decided a batch; the next start goes on."""
    job = make_job(kafka_without_2pc, sizes=(30, 30), spark=True)
    seen: list[Step] = []
    reached = threading.Event()

    def stand_still(at: Step) -> None:
        """In Spark's call of the sink, in the first batch."""
        seen.append(at)
        if at is Step.DECIDE and not reached.is_set():
            reached.set()
            wait_until(lambda: not query.isActive, deadline_s=QUERY_S, what="stop() to be called")

    monkeypatch.setattr(step_observer, "reached", stand_still)
    with query_of(spark, job) as query:
        assert reached.wait(QUERY_S)
    # Spark cancels the jobs that run; what the Python side does without one it may still finish.
    assert job.state("batch_id") == (0,)
    assert seen.count(Step.BEGIN) == 1, "another attempt was begun after stop()"
    run_query(spark, job)
    assert job.state("status", "batch_id") == ("done", 1)
    job.check()


def test_replay_of_a_batch_that_is_done(spark: SparkSession, kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A1, A6, A9: the last entry of the commit log is lost: nothing is written again, not even to be aborted.

    The checkpoint's path is spelt with a slash at its end the second time: the query is the same.
    """
    job = make_job(kafka_without_2pc, sizes=(30, 30, 30), spark=True)
    run_query(spark, job)
    job.check()
    everything = read_topic(job.broker.bootstrap, job.topic, isolation="read_uncommitted")
    row = job.state("status", "batch_id", "prepared_transaction_state", "settled")
    # As if the driver had died before Spark wrote it.
    commits = job.checkpoint / "commits"
    assert max(int(path.name) for path in commits.iterdir() if path.name.isdigit()) == 2
    for name in ("2", ".2.crc"):
        (commits / name).unlink(missing_ok=True)
    run_query(spark, job, slash="/")
    assert (commits / "2").exists()
    assert read_topic(job.broker.bootstrap, job.topic, isolation="read_uncommitted") == everything
    assert job.state("status", "batch_id", "prepared_transaction_state", "settled") == row
    job.check()


def terminated_at(job: Job, step: Step, batch: int, do: str = TERMINATE) -> DriverProcess:
    """Run a driver that gets SIGTERM after a step; it ends by itself, in time."""
    driver = job.start(Fault(at=f"step:{step.name}", batch=batch, do=do))
    wait_until(lambda: bool(driver.events("fault")), deadline_s=SPARK_DEADLINE_S, what=f"SIGTERM after {step.name}")
    told_s = time.monotonic()
    assert driver.outcome() == Outcome("finished")
    assert time.monotonic() - told_s < STOPPED_S
    assert [event["code"] for event in driver.events("code")] == [EXIT_STOPPED]
    return driver


def test_the_batch_under_way_ends(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A29: the next start goes on behind it; each row is there once."""
    job = make_job(kafka_without_2pc, sizes=(20,) * 13, spark=True)
    driver = terminated_at(job, Step.DECIDE, 0)
    assert "stopped: the current batch finished" in driver.log()
    assert job.state("batch_id")[0] >= 0
    last = job.run()
    assert [event["code"] for event in last.events("code")] == [EXIT_DONE]
    job.check()


def test_a_batch_that_stands_still_at_a_step_is_left_to_the_next_start(
    kafka_without_2pc: Broker, make_job: MakeJob
) -> None:
    """A29: it is decided, and the next start completes it."""
    job = make_job(kafka_without_2pc, sizes=(20, 20), spark=True)
    driver = terminated_at(job, Step.DECIDE, 0, HOLD)
    assert LEFT in driver.log()
    assert job.state("batch_id") == (0,)
    job.ends_well()


def test_a_batch_that_does_not_end_is_left_to_the_next_start(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A29: somebody holds the table; the job ends within its grace period, and says what it leaves."""
    job = make_job(kafka_without_2pc, sizes=(20, 20), spark=True)
    with sql_session(job.database) as session:
        session.connection.autocommit = False
        session.execute(f"LOCK TABLE {job.table} IN ACCESS EXCLUSIVE MODE")
        driver = terminated_at(job, Step.BEGIN, 0)
        assert LEFT in driver.log()
        session.connection.rollback()
    job.ends_well()
