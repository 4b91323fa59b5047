"""Somebody sets the clock of a machine while the job runs: an hour forward, back again, and another hour back.

It is the wall clock that is set; the monotonic one goes on. The machine is the driver's, the database's,
Kafka's, or all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
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


#: A job on a broker and a database server of its own, and the clock of some of ``driver``, ``postgres`` and ``kafka``.
MakeClocked = Callable[..., tuple[Job, MovedClock]]


@pytest.fixture
def make_clocked(
    pytestconfig: pytest.Config,
    start_kafka: StartKafka,
    start_postgres: Callable[..., Database],
    make_job: MakeJob,
    tmp_path: Path,
) -> Iterator[MakeClocked]:
    """Makes jobs of which some machines have a clock of their own."""
    with ExitStack() as stack:

        def make(machines: Sequence[str], *, properties: Mapping[str, str] = LATER) -> tuple[Job, MovedClock]:
            clock = stack.enter_context(or_skip(pytestconfig, MovedClock))

            def begins(machine: str) -> AbstractContextManager[object]:
                return clock.preloaded() if machine in machines else nullcontext()

            with begins("kafka"):
                broker = start_kafka(properties=properties, two_phase_commit=False)
            with begins("postgres"):
                server = start_postgres()
            broker.create_topic(CLOCK, config={"message.timestamp.type": "LogAppendTime"})
            job = make_job(broker, sizes=SIZES, primary_key=False, database=server.create_database("clocks"))
            with begins("driver"):
                job.nursery = stack.enter_context(Nursery(tmp_path))
            stack.callback(job.close)
            return job, clock

        yield make


def kafka_s(broker: Broker) -> float:
    """The time of day at the broker, which it gives a record that it takes."""
    told: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(CLOCK, b"", on_delivery=lambda _error, record: told.append(record.timestamp()[1]))
    assert producer.flush(DRIVER_DEADLINE_S) == 0
    return told[0] / 1_000


def set_in_mid_batch(job: Job, clock: MovedClock, machines: Sequence[str], driver: DriverProcess, batch: int) -> None:
    """Set the clock while the driver stands still, and let it go on."""

    def stands_still() -> bool:
        assert driver.running, f"it ended with {driver.end()}: {driver.log_tail()}"
        return driver.stopped and driver.events("fault")[-1]["batch"] == batch

    wait_until(stands_still, deadline_s=DRIVER_DEADLINE_S, what=f"batch {batch}: {driver.log_tail()}")
    clock.move(JUMPS[batch])
    database_s = job.sql("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
    for machine, told_s in (("postgres", database_s), ("kafka", kafka_s(job.broker))):
        shift_s = JUMPS[batch] if machine in machines else 0
        assert abs(told_s - time.time() - shift_s) < SAME_S
    driver.go_on()


@pytest.mark.thorough
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "machines", [["driver"], ["postgres"], ["kafka"], ["driver", "postgres", "kafka"]], ids="-".join
)
def test_a_clock_is_set_in_mid_batch(machines: list[str], place: str, make_clocked: MakeClocked) -> None:
    """B33: whoever's clock it is, one attempt writes each batch, and both sides have each row once."""
    job, clock = make_clocked(machines)
    driver = job.start(*(Fault(at=place, batch=batch, do=STOP) for batch in JUMPS))
    for batch in JUMPS:
        set_in_mid_batch(job, clock, machines, driver, batch)
    job.ends_well(driver)
    assert [driver.attempts(batch) for batch in range(len(SIZES))] == [1] * len(SIZES)
    # The clock of the driver was set in earnest: its records tell.
    ahead_s = {
        int(record.key or b"") // 100_000: record.timestamp / 1_000 - time.time()
        for record in read_topic(job.broker.bootstrap, job.topic)
    }
    last = max(JUMPS)
    assert abs(ahead_s[last + 1] - (JUMPS[last] if "driver" in machines else 0)) < SAME_S


@pytest.mark.parametrize(
    ("place", "owed"),
    [
        pytest.param("acknowledged", False, marks=pytest.mark.thorough),
        pytest.param("step:PREPARE", True, marks=pytest.mark.slow),
    ],
)
def test_kafka_takes_an_hour_for_a_time_out(place: str, owed: bool, make_clocked: MakeClocked) -> None:
    """B1, B7, B33: its clock is set forward, and it aborts what is open.

    A batch whose records it refuses then is written again. One that the database decides, as nothing has told the
    driver, is owed, and its records are sent again.
    """
    job, clock = make_clocked(["kafka"], properties=SOON)
    job.write_batch(BATCH, make_rows(BATCH, MANY))
    driver = job.stop_at(place, batch=BATCH, kafka=MANY_BATCHES)
    clock.move(HOUR_S)
    job.wait_for_state("CompleteAbort")
    job.ends_well(driver)
    assert [driver.attempts(batch) for batch in range(len(SIZES))] == [1, 2, 1, 1, 1]
    assert (f"Kafka is owed batch {BATCH}" in driver.actions) == owed, driver.actions
