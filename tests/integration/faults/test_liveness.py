"""Whether a driver lives, as `spark-2pc` sees it: by its sessions, and not by the age of its state row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_2pc_sink.cli import exits
from spark_2pc_sink.testing import wait_until
from tests.harness.driver_job import LARGE_INPUT, Job
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob, Run

BATCH = 1
ROW = ("status", "prepared_transaction_state", "settled", "batch_id", "generation")
OLD = "UPDATE kafka_transaction_state SET {} = {} - interval '1 hour' WHERE {} IS NOT NULL"


def age(job: Job) -> None:
    """Let the row look as if nobody had touched it for an hour, as in a batch that takes so long."""
    for column in ("claimed_at", "decided_at", "settled_at"):
        job.sql(OLD.format(column, column, column))


@pytest.mark.parametrize("place", ["step:PREPARE", "copy"])
def test_a_driver_in_a_long_batch_is_left_alone(
    kafka_without_2pc: Broker, make_job: MakeJob, run: Run, place: str
) -> None:
    """D10: before it has a transaction of the database, and within it. It goes on where it was."""
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    driver = job.stop_at(place, batch=BATCH)
    age(job)
    before = job.state(*ROW), job.describe()
    code, text = run(job, "recover")
    assert code == exits.EXIT_IN_DOUBT
    assert "its driver is running (pid " in text
    assert "from 127.0.0.1, role postgres; claim 1, made at " in text
    assert f"spark-2pc recover --transactional-id {job.transactional_id} " in text
    assert " --take-over  # stop the driver from here" in text
    assert (job.state(*ROW), job.describe()) == before
    driver.go_on()
    job.finished(driver)
    job.check()


def test_a_driver_that_was_killed_is_not_waited_for(kafka_without_2pc: Broker, make_job: MakeJob, run: Run) -> None:
    """D10: however young its row is."""
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    job.kill_at("copy", batch=BATCH)
    code, text = run(job, "recover")
    assert code == exits.EXIT_SETTLED
    assert "aborted the open transaction" in text
    job.run()
    job.check()


def test_status_says_whether_the_driver_lives(kafka_without_2pc: Broker, make_job: MakeJob, run: Run) -> None:
    """D10: in text and in JSON; before, while and after."""

    def shown() -> Any:
        (report,) = read_output(run(job, "status", "--json")[1])["sinks"]
        return report["driver"]

    job = make_job(kafka_without_2pc)
    assert shown() is None
    driver = job.stop_at("step:PREPARE", batch=BATCH)
    seen = shown()
    assert (seen["alive"], seen["host"], seen["claim"]) == (True, "127.0.0.1", 1)
    assert seen["pid"]
    assert "  driver:   running (pid " in run(job, "status")[1]
    driver.close()
    wait_until(lambda: shown()["alive"] is False, deadline_s=30, what="the driver to be gone")
    assert "  driver:   no driver is running (no database session of claim 1)" in run(job, "status")[1]
    run(job, "recover")
    assert (shown()["alive"], shown()["claim"], shown()["pid"]) == (False, 2, None)


def test_behind_a_pooler_the_age_of_the_row_decides(
    kafka_without_2pc: Broker, make_job: MakeJob, run: Run, database: str, pooled: Callable[..., str]
) -> None:
    """C6, D10: in transaction mode. It is said that it does, and what to do about a row that is young."""
    job = make_job(kafka_without_2pc, database=database)
    pooler = pooled(database, "transaction")
    job.kill_at("step:DECIDE", batch=BATCH, database=pooler)
    code, text = run(job, "recover", database=pooler)
    assert code == exits.EXIT_IN_DOUBT
    assert "it is unknown whether its driver is running (behind a pooler" in text
    assert "so it may" in text
    age(job)
    assert run(job, "recover", database=pooler)[0] == exits.EXIT_SETTLED
    job.run(database=pooler)
    job.check()


@pytest.mark.parametrize(
    ("mode", "upsert"), [("session", False), ("transaction", True)], ids=["session-append", "transaction-upsert"]
)
def test_a_job_works_behind_a_pooler(
    kafka_without_2pc: Broker, make_job: MakeJob, database: str, pooled: Callable[..., str], mode: str, upsert: bool
) -> None:
    """C6: also where a killed driver has left its transaction to the pooler."""
    keyed: dict[str, Any] = {"mode": "upsert", "upsert_keys": ["id"]} if upsert else {}
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT, database=database)
    pooler = pooled(database, mode)
    job.kill_at("copy", batch=BATCH, database=pooler, **keyed)
    job.run(database=pooler, **keyed)
    job.check()
