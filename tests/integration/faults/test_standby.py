"""PostgreSQL with a standby: COMMIT that waits for one that stands still, and failovers that keep or lose a COMMIT.

A primary and a standby with real streaming replication. With synchronous replication the primary has committed, for
itself, what it does not answer yet; a failover may keep that or lose it, and either is right, as long as Kafka follows.
With asynchronous replication a failover may lose what was answered: then the two sides cannot agree, and it is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.testing import PostgresServer, wait_until
from tests.conftest import or_skip
from tests.harness.driver_config import KILL, STOP, Fault
from tests.harness.driver_job import Job
from tests.harness.driver_process import DriverProcess
from tests.harness.postgres_standby import PostgresStandby
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

pytestmark = pytest.mark.postgres

BATCH = 1
_NAME = "job"


@dataclass
class Pair:
    """A primary and its standby."""

    primary: PostgresServer
    standby: PostgresStandby

    @property
    def url(self) -> str:
        """Of the job's database on whichever of the two takes writes, as libpq finds it."""
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        user = f"postgres:{self.primary.password}"
        return f"postgresql+psycopg2://{user}@/{_NAME}?{hosts}&target_session_attrs=read-write"

    def waiting_for_the_standby(self) -> int:
        """How many sessions of the primary have committed and wait for the standby."""
        ((count,),) = self.primary.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        return int(count)

    def wait_for_hanging_commit(self) -> None:
        wait_until(lambda: self.waiting_for_the_standby() > 0, what="COMMIT to hang")

    def fail_over(self) -> None:
        """The primary dies by SIGKILL, and the standby takes writes."""
        self.primary.kill()
        if not self.standby.started:
            self.standby.start()
        self.standby.promote()


@pytest.fixture
def pair(pytestconfig: pytest.Config) -> Iterator[Pair]:
    """A primary with the job's database, and a standby that has it too."""
    with ExitStack() as stack:
        primary = or_skip(pytestconfig, lambda: stack.enter_context(PostgresServer()))
        primary.create_database(_NAME)
        pair = Pair(primary, stack.enter_context(PostgresStandby(primary)))
        yield pair
        for server in (pair.standby, pair.primary):
            if server.started:
                server.kill()  # a primary whose sessions wait for a standby takes its time to end


def make(make_job: MakeJob, broker: Broker, pair: Pair) -> Job:
    """A job on the primary, without a primary key: nothing but the product keeps rows from being there twice."""
    return make_job(broker, database=pair.primary.database_url(_NAME), primary_key=False)


def promoted(job: Job, pair: Pair) -> Job:
    """The same job on the standby after a failover."""
    return job.on(job.broker, database=pair.standby.database_url(_NAME))


# --- COMMIT waits for a synchronous standby that stands still ----------------------------------------------------


def stopped_in_commit(job: Job, pair: Pair, **sink: int) -> DriverProcess:
    """A driver whose COMMIT of the decision hangs: committed on the primary, not answered."""
    pair.standby.make_synchronous()
    driver = job.stop_at("commit", batch=BATCH, **sink)
    pair.standby.pause()
    driver.go_on()
    pair.wait_for_hanging_commit()
    return driver


def test_the_standby_goes_on(kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair) -> None:
    """C1: COMMIT takes long, and is answered in the end: it was decided once, and nobody had to look again."""
    job = make(make_job, kafka_without_2pc, pair)
    driver = stopped_in_commit(job, pair)
    assert job.describe().state == "Ongoing"
    pair.standby.resume()
    job.ends_well(driver)
    assert (driver.attempts(BATCH), len(driver.recoveries)) == (1, 1)


def test_the_driver_dies_while_commit_hangs(kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair) -> None:
    """C1, C2: the claim ends the session that waits, which has committed by then, and waits for the standby itself.

    So long as it waits Kafka is left alone: what it has read as decided could still be lost by a failover.
    """
    job = make(make_job, kafka_without_2pc, pair)
    stopped_in_commit(job, pair).close()
    new = job.start()
    wait_until(
        # The decision shows when the session is ended that waited with it, the claim only when it has been answered.
        lambda: job.state("status", "generation") == ("decided", 1) and pair.waiting_for_the_standby() == 1,
        what="the claim to wait for the standby",
    )
    assert job.describe().state == "Ongoing"
    pair.standby.resume()
    job.ends_well(new)
    assert "committed" in new.actions


def test_commit_hangs_for_too_long(kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair) -> None:
    """C1: the driver cuts the connection; what COMMIT did is unknown, until a claim gets through and shows it."""
    job = make(make_job, kafka_without_2pc, pair)
    driver = stopped_in_commit(job, pair, commit_timeout_ms=1_000)
    driver.wait_for_log("attempt 1 of 3 failed")
    assert job.describe().state == "Ongoing"
    pair.standby.resume()
    job.ends_well(driver)
    assert "committed" in driver.actions
    assert driver.attempts(BATCH) == 1


@pytest.mark.parametrize("kept", [False, True], ids=["lost", "kept"])
def test_the_primary_dies_while_commit_hangs(
    kept: bool, kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair
) -> None:
    """C1: nobody was told that it was committed, so the standby may have it or not: the driver finds out."""
    job = make(make_job, kafka_without_2pc, pair)
    pair.standby.make_synchronous()
    driver = job.stop_at("commit", batch=BATCH, database=pair.url)
    if kept:
        pair.standby.make_synchronous(and_another=True)
    else:
        pair.standby.stop()
    driver.go_on()
    pair.wait_for_hanging_commit()
    if kept:
        pair.standby.wait_until_caught_up()
    pair.fail_over()
    job.finished(driver)
    assert ("committed" if kept else "aborted the open transaction") in driver.actions
    assert driver.attempts(BATCH) == (1 if kept else 2)
    promoted(job, pair).check()


# --- a failover to an asynchronous standby that lags -------------------------------------------------------------


def stopped_behind_the_standby(job: Job, pair: Pair, fault: Fault) -> DriverProcess:
    """A driver that comes to ``fault`` with the standby stopped since the batch was prepared."""
    driver = job.start(Fault(at="step:PREPARE", batch=BATCH, do=STOP), fault, database=pair.url)
    wait_until(lambda: driver.stopped, what="the driver to prepare")
    pair.standby.wait_until_caught_up()
    pair.standby.stop()
    driver.go_on()
    return driver


def decided(driver: DriverProcess) -> bool:
    return ("DECIDE", BATCH) in [(event["step"], event["batch"]) for event in driver.events("step")]


def test_commits_that_kafka_has_are_lost(kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair) -> None:
    """C5: batches that Kafka shows are gone from the database. They are named, and Kafka is left as it is.

    The job goes on when a person has named them: behind them, with nothing sent again.
    """
    job = make(make_job, kafka_without_2pc, pair)
    driver = job.stop_at("step:NOTE", batch=0)
    pair.standby.wait_until_caught_up()
    pair.standby.stop()
    job.ends_well(driver)
    before = job.describe()
    pair.fail_over()
    behind = promoted(job, pair)
    said = ("at least 2 batches that the database lacks", "batch 1: 20 records of")
    for sink in ({}, {"adopt": True}):
        behind.refused(HaltCause.DATABASE_BEHIND, *said, **sink)
    assert job.describe() == before
    behind.add_batch()
    assert behind.run(adopt=True, accept_loss="1..3").placements == [(4, "RUN")]
    rows = behind.input()
    behind.check(table=[*rows[0], *rows[4]])


def test_a_commit_is_lost_that_kafka_is_about_to_follow(
    kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair
) -> None:
    """C5: the driver lives on, and commits in Kafka what the failover has taken out of the database."""
    job = make(make_job, kafka_without_2pc, pair)
    driver = stopped_behind_the_standby(job, pair, Fault(at="step:DECIDE", batch=BATCH, do=STOP))
    wait_until(lambda: decided(driver) and driver.stopped, what="the driver to decide")
    pair.fail_over()
    driver.go_on()
    outcome = driver.outcome()
    assert outcome.cause == HaltCause.DATABASE_BEHIND, driver.log_tail()
    assert "batch 1: 20 records of" in outcome.text
    new = promoted(job, pair)
    assert new.run(adopt=True, accept_loss="1").placements[0] == (BATCH, "SKIP")
    new.check(table=new.rows(but=[BATCH]))


def test_a_commit_is_lost_that_kafka_has_not_followed(kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair) -> None:
    """C5: the driver died between the two commits, and the failover takes the first back: the batch runs again."""
    job = make(make_job, kafka_without_2pc, pair)
    driver = stopped_behind_the_standby(job, pair, Fault(at="step:DECIDE", batch=BATCH, do=KILL))
    wait_until(lambda: not driver.running, what="the driver to decide and die")
    pair.fail_over()
    assert "aborted the open transaction" in promoted(job, pair).ends_well().actions


def test_a_failover_to_a_decision_that_kafka_has_gone_beyond(
    kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair
) -> None:
    """C5: the standby has a decided batch, and Kafka the batch after it as well, which Spark is about to replay."""
    job = make(make_job, kafka_without_2pc, pair)
    faults = (Fault(at="step:DECIDE", batch=0, do=STOP), Fault(at="step:NOTE", batch=BATCH, do=KILL))
    driver = job.start(*faults, database=pair.url)
    wait_until(lambda: driver.stopped, what="the driver to decide")
    pair.standby.wait_until_caught_up()
    pair.standby.stop()
    driver.go_on()
    wait_until(lambda: not driver.running, what="the driver to finish the next batch and die")
    pair.fail_over()
    new = promoted(job, pair)
    new.refused(HaltCause.DATABASE_BEHIND, "batch 1: 20 records of")
    assert new.run(adopt=True, accept_loss="1").placements[0] == (BATCH, "SKIP")
    new.check(table=new.rows(but=[BATCH]))


# --- which of both is the primary --------------------------------------------------------------------------------


def test_a_url_that_names_the_standby_alone(kafka_without_2pc: Broker, make_job: MakeJob, pair: Pair) -> None:
    """C11: as a name may after a failover. The refusal says what to write instead, and that works."""
    job = make(make_job, kafka_without_2pc, pair)
    job.kill_at("step:DECIDE", batch=BATCH)
    pair.standby.wait_until_caught_up()
    outcome = promoted(job, pair).fail()
    assert "read-only transaction" in outcome.text
    assert "target_session_attrs=read-write" in outcome.text
    job.ends_well(database=pair.url)
