"""Somebody sets the clock of a machine while the job runs: an hour forward, back again, and another hour back.

It is the wall clock that is set; the monotonic one goes on. The machine is the driver's, the database's,
Kafka's, or all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from spark_2pc_sink.testing import read_topic, wait_until
from tests.conftest import StartKafka, or_skip
from tests.harness.driver_config import STOP, Fault
from tests.harness.driver_job import Job, make_rows
from tests.harness.driver_process import DRIVER_DEADLINE_S, DriverProcess, Nursery
from tests.harness.moved_clock import MovedClock
from tests.harness.providers import Broker, Database
from tests.integration.faults.conftest import MakeJob

HOUR_S = 3_600
#: A topic whose records have the broker's time.
CLOCK = "clock"
#: In which batch the clock is set, and how far from the real time it is then.
JUMPS = {1: HOUR_S, 2: 0, 3: -HOUR_S}
SIZES = (20, 20, 20, 20, 20)
#: Two times of day that are nearer are the same one: a test takes less.
SAME_S = 600.0
PLACES = ["acknowledged", "step:DECIDE"]
#: A batch of many record batches, which do not all travel at once, and which tasks of Spark write.
BATCH, MANY = 1, 4_000
MANY_BATCHES = {"batch.size": 5_000, "max.in.flight.requests.per.connection": 1}
#: When the coordinator looks for transactions that have timed out: not while a test runs; all the time.
LATER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "600000"}
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@dataclass
class Parts:
    """What a job is made of, and whose clock is set.

    Args:
        moved: some of ``driver``, ``postgres`` and ``kafka``.
        clock: theirs.
        stack: ends what is started here.
    """

    moved: frozenset[str]
    clock: MovedClock
    stack: ExitStack
    start_kafka: StartKafka
    start_postgres: Callable[..., Database]
    make_job: MakeJob

    def preload(self, part: str, stack: ExitStack) -> None:
        """Let what starts until the end of ``stack`` have the clock, if it is this part's."""
        if part in self.moved:
            stack.enter_context(self.clock.preloaded())

    def job(
        self,
        folder: Path,
        *,
        properties: Mapping[str, str] = LATER,
        two_phase_commit: bool = False,
    ) -> Job:
        """A job on a broker and a database server of its own."""
        with ExitStack() as starting:
            self.preload("kafka", starting)
            broker = self.start_kafka(properties=properties, two_phase_commit=two_phase_commit)
        with ExitStack() as starting:
            self.preload("postgres", starting)
            server = self.start_postgres()
        broker.create_topic(CLOCK, config={"message.timestamp.type": "LogAppendTime"})
        database = server.create_database("clocks")
        job = self.make_job(broker, sizes=SIZES, primary_key=False, database=database)
        with ExitStack() as starting:
            self.preload("driver", starting)
            job.nursery = self.stack.enter_context(Nursery(folder))
        self.stack.callback(job.close)
        return job

    def shift_s(self, part: str, shift_s: int) -> int:
        """How far from the real time a part is."""
        return shift_s if part in self.moved else 0


@pytest.fixture
def make_parts(
    pytestconfig: pytest.Config,
    start_kafka: StartKafka,
    start_postgres: Callable[..., Database],
    make_job: MakeJob,
) -> Callable[[Sequence[str], ExitStack], Parts]:
    """What a job is made of, with the clock of these machines to be set."""

    def make(machines: Sequence[str], stack: ExitStack) -> Parts:
        clock = stack.enter_context(or_skip(pytestconfig, MovedClock))
        return Parts(frozenset(machines), clock, stack, start_kafka, start_postgres, make_job)

    return make


def kafka_s(broker: Broker) -> float:
    """The time of day at the broker, which it gives a record that it takes."""
    told: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(CLOCK, b"", on_delivery=lambda _error, record: told.append(record.timestamp()[1]))
    assert producer.flush(DRIVER_DEADLINE_S) == 0
    return told[0] / 1_000


def set_in_mid_batch(parts: Parts, job: Job, driver: DriverProcess, batch: int) -> None:
    """Set the clock while the driver stands still, and let it go on."""

    def stands_still() -> bool:
        assert driver.running, f"it ended with {driver.end()}: {driver.log_tail()}"
        return driver.stopped and driver.events("fault")[-1]["batch"] == batch

    wait_until(stands_still, deadline_s=DRIVER_DEADLINE_S, what=f"batch {batch}: {driver.log_tail()}")
    parts.clock.move(JUMPS[batch])
    database_s = job.sql("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
    assert abs(database_s - time.time() - parts.shift_s("postgres", JUMPS[batch])) < SAME_S
    assert abs(kafka_s(job.broker) - time.time() - parts.shift_s("kafka", JUMPS[batch])) < SAME_S
    driver.go_on()


def check_times(parts: Parts, job: Job) -> None:
    """The clock of the driver was set in earnest: its records tell."""
    ahead_s = {
        int(record.key or b"") // 100_000: record.timestamp / 1_000 - time.time()
        for record in read_topic(job.broker.bootstrap, job.topic)
    }
    last = max(JUMPS)
    assert abs(ahead_s[last + 1] - parts.shift_s("driver", JUMPS[last])) < SAME_S


@pytest.mark.thorough
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "machines", [["driver"], ["postgres"], ["kafka"], ["driver", "postgres", "kafka"]], ids="-".join
)
def test_a_clock_is_set_in_mid_batch(
    machines: list[str], place: str, tmp_path: Path, make_parts: Callable[[Sequence[str], ExitStack], Parts]
) -> None:
    """B33: whoever's clock it is, one attempt writes each batch, and both sides have each row once."""
    with ExitStack() as stack:
        parts = make_parts(machines, stack)
        job = parts.job(tmp_path)
        driver = job.start(*(Fault(at=place, batch=batch, do=STOP) for batch in JUMPS))
        for batch in JUMPS:
            set_in_mid_batch(parts, job, driver, batch)
        job.finished(driver)
        assert [driver.attempts(batch) for batch in range(len(SIZES))] == [1] * len(SIZES)
        job.check()
        check_times(parts, job)


@pytest.mark.parametrize(
    ("place", "owed"),
    [
        pytest.param("acknowledged", False, marks=pytest.mark.thorough),
        pytest.param("step:PREPARE", True, marks=pytest.mark.slow),
    ],
)
def test_kafka_takes_an_hour_for_a_time_out(
    place: str, owed: bool, tmp_path: Path, make_parts: Callable[[Sequence[str], ExitStack], Parts]
) -> None:
    """B1, B7, B33: its clock is set forward, and it aborts what is open.

    A batch whose records it refuses then is written again. One that the database decides, as nothing has told the
    driver, is owed, and its records are sent again.
    """
    with ExitStack() as stack:
        parts = make_parts(["kafka"], stack)
        job = parts.job(tmp_path, properties=SOON)
        job.write_batch(BATCH, make_rows(BATCH, MANY))
        driver = job.stop_at(place, batch=BATCH, kafka=MANY_BATCHES)
        parts.clock.move(HOUR_S)
        wait_until(
            lambda: job.describe().state == "CompleteAbort", deadline_s=30, what="the time-out of the transaction"
        )
        driver.go_on()
        job.finished(driver)
        assert [driver.attempts(batch) for batch in range(len(SIZES))] == [1, 2, 1, 1, 1]
        assert (f"Kafka is owed batch {BATCH}" in driver.actions) == owed, driver.actions
        job.check()
