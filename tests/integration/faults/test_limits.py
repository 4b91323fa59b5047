"""Limits that others have set: of the server on a role or a database, and of the operating system on the driver.

A limit that the job meets in the middle of a batch is waited out, or ends it with a sentence that names the limit; the
next start completes what was begun.
"""

from __future__ import annotations

import resource
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from sqlalchemy import make_url

from spark_2pc_sink.testing import wait_until
from tests.harness.driver_job import LARGE_INPUT, Job
from tests.harness.driver_process import DriverProcess
from tests.harness.providers import Broker, Database
from tests.integration.faults.conftest import MakeJob

BATCH = 1
#: Rows of two batches that the driver leaves to tasks.
FOR_TASKS = (30_000, 30_000)
#: Of a server that a test fills.
CONNECTIONS = 20
DEADLINE_S = 60.0
#: Steps of a batch after which a limit begins to hold: before, while and after the two sides are written.
PLACES = ["step:PLACE", "step:BEGIN", "step:PREPARE", "step:DECIDE"]
#: The last of them is enough for every change.
FEW_PLACES = [pytest.param(place, marks=() if place == PLACES[-1] else pytest.mark.thorough) for place in PLACES]


def until_told(driver: DriverProcess, text: str) -> None:
    """Wait until the driver says so, and goes on trying."""
    wait_until(lambda: text in driver.log_tail(), deadline_s=DEADLINE_S, what=f"the driver to say {text!r}")
    assert driver.running


# --- of the server ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("spark", [False, True], ids=["driver", "spark"])
# What is set on a role, here for one database so that the shared server keeps its own, goes before what a database has.
@pytest.mark.parametrize("of", ["DATABASE", "ROLE CURRENT_USER IN DATABASE"], ids=["database", "role"])
def test_time_outs_of_the_server_are_not_those_of_the_job(
    of: str, spark: bool, kafka_without_2pc: Broker, make_job: MakeJob
) -> None:
    """C12: all that the server has, shorter than a COPY takes, set by its administrator on database or role."""
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT, spark=spark)
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
        job.sql(f"ALTER {of} {make_url(job.database).database} SET {name} = '{value}'")
    driver = job.run()
    assert spark or [driver.attempts(batch) for batch in range(len(LARGE_INPUT))] == [1, 1, 1]
    job.check()


@pytest.fixture
def limited(kafka_without_2pc: Broker, make_job: MakeJob) -> Iterator[tuple[Job, str]]:
    """A job, and the role as which it connects."""
    job = make_job(kafka_without_2pc)
    admin = job.database
    role = f"limited_{secrets.token_hex(4)}"
    job.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'of-the-role'; GRANT ALL ON SCHEMA public TO {role}")
    job.sql(f"ALTER TABLE target OWNER TO {role}")
    job.database = make_url(admin).set(username=role, password="of-the-role").render_as_string(hide_password=False)
    yield job, admin
    job.close()
    job.database = admin
    job.sql(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")


def no_connections(job: Job, admin: str, *, but: int) -> None:
    """Let the role have so many, and end those that it has."""
    role, job.database = make_url(job.database).username, admin
    job.sql(f"ALTER ROLE {role} CONNECTION LIMIT {but}")
    if but == 0:
        job.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", role)


@pytest.mark.parametrize("place", FEW_PLACES)
def test_no_connection_is_left_for_a_while(place: str, limited: tuple[Job, str]) -> None:
    """C11: the connections of the job are ended, and there is none for it until others have gone."""
    job, admin = limited
    own = job.database
    driver = job.stop_at(place, batch=BATCH)
    no_connections(job, admin, but=0)
    driver.go_on()
    until_told(driver, "too many connections for role")
    job.database = own
    no_connections(job, admin, but=-1)
    job.finished(driver)
    job.check()
    job.database = own


#: Short, where a limit is to be told and not waited out; long enough for the batch before it on a busy machine.
HASTY: dict[str, Any] = dict.fromkeys(("connect_deadline_ms", "settle_deadline_ms", "claim_deadline_ms"), 4_000)


@pytest.mark.parametrize("place", ["start", *FEW_PLACES])
def test_no_connection_is_left(place: str, limited: tuple[Job, str]) -> None:
    """C11: not within connect_deadline_ms. The limit is named, and the next start completes what was begun."""
    job, admin = limited
    own = job.database
    driver = None if place == "start" else job.stop_at(place, batch=BATCH, **HASTY)
    no_connections(job, admin, but=0)
    job.database = own
    driver = job.start(**HASTY) if driver is None else driver
    driver.go_on()
    outcome = driver.outcome()
    assert outcome.event == "error", driver.log_tail()
    assert "too many connections for role" in f"{outcome}{driver.log_tail()}"
    no_connections(job, admin, but=-1)
    job.database = own
    job.run()
    job.check()


@contextmanager
def every_connection(url: str) -> Iterator[None]:
    """End the connections of others, and take all that the server gives."""
    with ExitStack() as taken:
        first = taken.enter_context(closing(connected(url)))
        first.cursor().execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        for _ in range(CONNECTIONS - 1):
            taken.enter_context(closing(connected(url)))
        with pytest.raises(psycopg2.OperationalError, match="too many clients already"):
            connected(url)
        yield


def connected(url: str) -> Any:
    return psycopg2.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))


@pytest.mark.thorough  # to the job it is as the limit of its role
@pytest.mark.parametrize("place", PLACES)
def test_the_server_has_no_connection_left_for_a_while(
    place: str, kafka_without_2pc: Broker, start_postgres: Callable[..., Database], make_job: MakeJob
) -> None:
    """C11: max_connections, which is one number for everybody."""
    server = start_postgres(max_connections=str(CONNECTIONS))
    job = make_job(kafka_without_2pc, database=server.create_database("crowded"))
    driver = job.stop_at(place, batch=BATCH)
    with every_connection(job.database):
        driver.go_on()
        until_told(driver, "too many clients already")
    job.finished(driver)
    job.check()


# --- of the operating system -----------------------------------------------------------------------------------------


def without_files(job: Job, driver: DriverProcess) -> int:
    """Let a stopped driver open no more files, and end its connections; what it could open before."""
    _, most = resource.prlimit(driver.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(driver.pid, resource.RLIMIT_NOFILE, (3, most))
    job.sql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()"
    )
    return most


@pytest.mark.parametrize("place", FEW_PLACES)
def test_the_driver_has_no_file_descriptor_left(place: str, kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """D16: its connections are cut, and it may make no other until it is given more."""
    job = make_job(kafka_without_2pc)
    driver = job.stop_at(place, batch=BATCH)
    most = without_files(job, driver)
    driver.go_on()
    until_told(driver, "Too many open files")
    resource.prlimit(driver.pid, resource.RLIMIT_NOFILE, (most, most))
    job.finished(driver)
    job.check()


@pytest.mark.parametrize("place", FEW_PLACES)
def test_the_driver_never_gets_a_file_descriptor(place: str, kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """D16: what is missing is named within the deadlines, and the next start completes what was begun."""
    job = make_job(kafka_without_2pc)
    driver = job.stop_at(place, batch=BATCH, kafka={"max.block.ms": 4_000, "delivery.timeout.ms": 11_000}, **HASTY)
    without_files(job, driver)
    driver.go_on()
    outcome = driver.outcome()
    assert outcome.event == "error", driver.log_tail()
    assert "Too many open files" in f"{outcome}{driver.log_tail()}"
    job.run()
    job.check()


@pytest.mark.thorough
@pytest.mark.parametrize("place", PLACES)
def test_the_driver_has_no_memory_left(place: str, kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """D16: what asks for more gets none. However the driver ends, the next start completes what was begun.

    Where a cgroup has none left, the kernel kills instead: `test_memory_group`.
    """
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    driver = job.stop_at(place, batch=BATCH)
    [size] = [
        line.split()[1] for line in Path(f"/proc/{driver.pid}/status").read_text().splitlines() if "VmSize" in line
    ]
    resource.prlimit(driver.pid, resource.RLIMIT_AS, (int(size) * 1024, int(size) * 1024))
    resource.prlimit(driver.pid, resource.RLIMIT_DATA, (0, 0))
    driver.go_on()
    wait_until(lambda: not driver.running, deadline_s=DEADLINE_S, what=f"the driver to end: {driver.log_tail()}")
    job.run()
    job.check()


def workers(driver: DriverProcess) -> list[int]:
    """The processes of its tasks' Python, and the one that forks them."""
    return [pid for pid in driver.session() if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.thorough
def test_the_workers_have_no_file_descriptor_left(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """D16: from the second batch on. Spark starts others, which have no such limit, and the next attempt writes it.

    A worker that the kernel ends for want of memory is in `test_memory_group`.
    """
    job = make_job(kafka_without_2pc, sizes=FOR_TASKS, spark=True)
    driver = job.stop_at("step:BEGIN", batch=BATCH)
    limited = workers(driver)
    assert limited
    for pid in limited:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))
    driver.go_on()
    job.finished(driver)
    assert "Too many open files" in driver.log_tail()
    job.check()
