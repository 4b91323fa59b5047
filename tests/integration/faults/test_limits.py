"""Limits that others have set: of the server on a role or a database, and of the operating system on the driver.

A limit that the job meets in the middle of a batch is waited out, or ends it with a sentence that names the limit; the
next start completes what was begun.
"""

from __future__ import annotations

import resource
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.testing import wait_until
from tests.harness.driver_job import LARGE_INPUT, Job
from tests.harness.driver_process import DriverProcess
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

BATCH = 1
DEADLINE_S = 60.0
PLACE = "step:DECIDE"


def until_told(driver: DriverProcess, text: str) -> None:
    """Wait until the driver says so, and goes on trying."""
    wait_until(lambda: text in driver.log_tail(), deadline_s=DEADLINE_S, what=f"the driver to say {text!r}")
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


def test_no_connection_is_left_for_a_while(limited: tuple[Job, str]) -> None:
    """C11: the connections of the job are ended, and there is none for it until others have gone."""
    job, admin = limited
    own = job.database
    driver = job.stop_at(PLACE, batch=BATCH)
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


def test_no_connection_is_left(limited: tuple[Job, str]) -> None:
    """C11: not within connect_deadline_ms. The limit is named, and the next start completes what was begun."""
    job, admin = limited
    own = job.database
    driver = job.stop_at(PLACE, batch=BATCH, **HASTY)
    no_connections(job, admin, but=0)
    job.database = own
    driver.go_on()
    outcome = driver.outcome()
    assert outcome.event == "error", driver.log_tail()
    assert "too many connections for role" in f"{outcome}{driver.log_tail()}"
    no_connections(job, admin, but=-1)
    job.database = own
    job.run()
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


def test_the_driver_has_no_file_descriptor_left(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """D16: its connections are cut, and it may make no other until it is given more."""
    job = make_job(kafka_without_2pc)
    driver = job.stop_at(PLACE, batch=BATCH)
    most = without_files(job, driver)
    driver.go_on()
    until_told(driver, "Too many open files")
    resource.prlimit(driver.pid, resource.RLIMIT_NOFILE, (most, most))
    job.finished(driver)
    job.check()
