"""Limits of the server and the operating system that others have set, and clocks that somebody sets.

A limit that the job meets in the middle of a batch is waited out, or ends it with a sentence that names the limit; the
next start completes what was begun.

It is the wall clock that is set; the monotonic one goes on. The machine is the driver's, the database's,
Kafka's, or all of them.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from sqlalchemy import make_url

from spark_2pc_sink.testing import read_topic, wait_until
from spark_2pc_sink.testing.processes import children
from tests.conftest import StartKafka, or_skip
from tests.harness.driver_config import STOP, Fault
from tests.harness.driver_job import LARGE_INPUT, Job, make_rows
from tests.harness.driver_process import DRIVER_DEADLINE_S, SPARK_DEADLINE_S, DriverProcess, Nursery
from tests.harness.machines import MemoryGroup, MovedClock, prefer
from tests.harness.providers import Broker, Database
from tests.harness.sql import end_sessions
from tests.integration.faults.conftest import MakeJob
from tests.integration.state.state_stores import role

BATCH = 1
#: The second batch needs much more memory than the first has taken. Tasks write both.
SIZES = (30_000, 150_000)
FREE_BYTES = 4 << 20
PLACE = "step:DECIDE"


def until_told(driver: DriverProcess, text: str) -> None:
    """Wait until the driver says so, and goes on trying."""
    driver.wait_for_log(text)
    assert driver.running


# --- of the server ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_time_outs_of_the_server_are_not_those_of_the_job(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """C12: all that the server has, shorter than a COPY takes, set by its administrator on the database."""
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    job.sql(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.6); RETURN NULL; END'"
    )
    job.sql("CREATE TRIGGER wait AFTER INSERT ON target EXECUTE FUNCTION wait()")
    limits = {
        "statement_timeout": "300ms",
        "lock_timeout": "1ms",
        "idle_in_transaction_session_timeout": "100ms",
        "idle_session_timeout": "400ms",
    }
    if job.sql("SELECT current_setting('server_version_num')::integer >= 170000") == [(True,)]:
        limits["transaction_timeout"] = "350ms"
    for name, value in limits.items():
        job.sql(f"ALTER DATABASE {make_url(job.database).database} SET {name} = '{value}'")
    driver = job.run()
    assert [driver.attempts(batch) for batch in range(len(LARGE_INPUT))] == [1, 1, 1]
    job.check()


#: Short, where a limit is to be told and not waited out; long enough for the batch before it on a busy machine.
HASTY: dict[str, Any] = dict.fromkeys(("connect_deadline_ms", "settle_deadline_ms", "claim_deadline_ms"), 4_000)


@pytest.fixture
def limited(kafka_without_2pc: Broker, make_job: MakeJob) -> Iterator[tuple[Job, str, str]]:
    """A job, the role as which it connects, and the URL with which it does."""
    job = make_job(kafka_without_2pc)
    with role(job.database) as (name, url):
        job.sql(f"GRANT ALL ON SCHEMA public TO {name}; ALTER TABLE target OWNER TO {name}")
        yield job, name, url
        job.close()


def end_connections(job: Job, name: str) -> None:
    """Let the role have none, and end those that it has."""
    job.sql(f"ALTER ROLE {name} CONNECTION LIMIT 0")
    end_sessions(job.database, f"usename = '{name}'")


def test_no_connection_is_left_for_a_while(limited: tuple[Job, str, str]) -> None:
    """C11: the connections of the job are ended, and there is none for it until others have gone."""
    job, name, url = limited
    driver = job.stop_at(PLACE, batch=BATCH, database=url)
    end_connections(job, name)
    driver.go_on()
    until_told(driver, "too many connections for role")
    job.sql(f"ALTER ROLE {name} CONNECTION LIMIT -1")
    job.ends_well(driver)


def test_no_connection_is_left(limited: tuple[Job, str, str]) -> None:
    """C11: not within connect_deadline_ms. The limit is named, and the next start completes what was begun."""
    job, name, url = limited
    driver = job.stop_at(PLACE, batch=BATCH, database=url, **HASTY)
    end_connections(job, name)
    driver.go_on()
    outcome = driver.outcome()
    assert outcome.event == "error", driver.log_tail()
    assert "too many connections for role" in f"{outcome}{driver.log()}"
    job.sql(f"ALTER ROLE {name} CONNECTION LIMIT -1")
    job.ends_well(database=url)


# --- of the operating system -----------------------------------------------------------------------------------------


def test_the_driver_has_no_file_descriptor_left(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """D16: its connections are cut, and it may make no other until it is given more."""
    job = make_job(kafka_without_2pc)
    driver = job.stop_at(PLACE, batch=BATCH)
    _, most = resource.prlimit(driver.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(driver.pid, resource.RLIMIT_NOFILE, (3, most))
    end_sessions(job.database)
    driver.go_on()
    until_told(driver, "Too many open files")
    resource.prlimit(driver.pid, resource.RLIMIT_NOFILE, (most, most))
    job.ends_well(driver)


def program_is(pid: int, name: str) -> bool:
    return name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def driver_of(driver: DriverProcess) -> list[int]:
    return [driver.pid]


def workers_of(driver: DriverProcess) -> list[int]:
    """The Python of its tasks, without the process that forks them."""
    machines = [pid for pid in children(driver.pid) if program_is(pid, "java")]
    daemons = [pid for machine in machines for pid in children(machine) if program_is(pid, "pyspark.daemon")]
    return [pid for daemon in daemons for pid in children(daemon)]


@pytest.mark.thorough
@pytest.mark.parametrize("processes_of", [driver_of, workers_of], ids=["driver", "worker"])
def test_the_kernel_kills_for_want_of_memory(
    processes_of: Callable[[DriverProcess], list[int]],
    kafka_without_2pc: Broker,
    make_job: MakeJob,
    pytestconfig: pytest.Config,
) -> None:
    """D16: in the middle of a batch. However the driver ends, the next start, without the limit, completes it."""
    with ExitStack() as stack:
        group = stack.enter_context(or_skip(pytestconfig, MemoryGroup))
        job = make_job(kafka_without_2pc, sizes=SIZES, primary_key=False, spark=True)
        stack.callback(job.close)
        driver = job.start(Fault(at="step:BEGIN", batch=BATCH, do=STOP))
        group.add(driver.pid)  # long before it starts Spark: what it and its children take counts in the group
        driver.wait_for_fault()
        assert set(driver.session()) <= group.processes
        victims = processes_of(driver)
        assert victims
        for pid in victims:
            prefer(pid)
        assert group.kills == 0
        group.leave(FREE_BYTES)
        driver.go_on()
        wait_until(lambda: group.kills > 0, deadline_s=SPARK_DEADLINE_S, what=f"a kill: {driver.log_tail()}")
        assert [event["batch"] for event in driver.events("batch")] == [0]
        wait_until(lambda: not driver.running, deadline_s=SPARK_DEADLINE_S, what=f"its end: {driver.log_tail()}")
        # A killed process leaves its group when its memory is freed and its parent has noticed.
        wait_until(
            lambda: not set(victims) & group.processes,
            deadline_s=SPARK_DEADLINE_S,
            what="the kernel's first choice to go",
        )
        job.ends_well()


HOUR_S = 3_600
#: A topic whose records have the broker's time.
CLOCK = "clock"
#: In which batch the clock is set, and how far from the real time it is then.
JUMPS = {1: HOUR_S, 2: 0, 3: -HOUR_S}
CLOCKED_SIZES = (20, 20, 20, 20, 20)
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
            job = make_job(broker, sizes=CLOCKED_SIZES, primary_key=False, database=server.create_database("clocks"))
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
    assert [driver.attempts(batch) for batch in range(len(CLOCKED_SIZES))] == [1] * len(CLOCKED_SIZES)
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
    assert [driver.attempts(batch) for batch in range(len(CLOCKED_SIZES))] == [1, 2, 1, 1, 1]
    assert (f"Kafka is owed batch {BATCH}" in driver.actions) == owed, driver.actions
