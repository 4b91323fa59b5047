"""Limits that others have set: of the server on a role or a database, and of the operating system on the driver.

A limit that the job meets in the middle of a batch is waited out, or ends it with a sentence that names the limit; the
next start completes what was begun.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.testing.processes import children
from tests.conftest import or_skip
from tests.harness.driver_config import STOP, Fault
from tests.harness.driver_job import LARGE_INPUT, Job
from tests.harness.driver_process import SPARK_DEADLINE_S, DriverProcess
from tests.harness.memory_group import MemoryGroup, prefer
from tests.harness.providers import Broker
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
    """The driver's Python."""
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
