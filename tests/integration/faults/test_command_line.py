"""``spark-2pc`` against real servers: what it says, what it changes, and its exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink import recover
from spark_2pc_sink.cli import exits
from spark_2pc_sink.errors import TakeOverRefusedError
from tests.harness.driver_job import Job
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob, Run

BATCH = 1
ROW = ("status", "prepared_transaction_state", "settled", "batch_id", "generation", "claimed_at", "settled_at")


@pytest.fixture
def decided(kafka_without_2pc: Broker, make_job: MakeJob) -> Job:
    """A job whose driver was killed right after its decision."""
    job = make_job(kafka_without_2pc)
    job.kill_at("step:DECIDE", batch=BATCH)
    return job


def sides(job: Job) -> Any:
    """All that a command could change."""
    return job.state(*ROW), job.describe()


def test_status_and_dry_run_change_nothing(decided: Job, run: Run) -> None:
    """Looking never claims, also many times. 3 says that something is in doubt."""
    before = sides(decided)
    for options in (("status",), ("recover", "--dry-run"), ("recover", "--dry-run", "--take-over")):
        code, text = run(decided, *options)
        assert code == exits.EXIT_IN_DOUBT
        assert "IN DOUBT" in text
        assert "recovery will commit Kafka transaction" in text
    assert sides(decided) == before


def test_json(decided: Job, run: Run) -> None:
    """Both commands print an object of the documented form, with the same fields of a sink, whatever they found."""
    code, text = run(decided, "status", "--json", named=False)
    (report,) = read_output(text)["sinks"]
    assert (code, report["settled"], report["transactional_id"]) == (3, False, decided.transactional_id)
    code, text = run(decided, "recover", "--take-over", "--json")
    (report,) = read_output(text)["sinks"]
    assert (code, report["settled"]) == (0, True)
    assert (report["before"]["status"], report["row"]["status"]) == ("decided", "done")
    assert (report["row"]["batch_id"], report["next_batch"]) == (BATCH, BATCH + 1)
    assert sorted(report["row"]["kafka_offsets"]) == [f"{decided.topic}-{number}" for number in range(3)]
    assert (report["kafka"]["state"], report["actions"]) == ("Ongoing", ["commit"])


def test_an_owed_batch_stays_in_doubt_until_it_is_sent_or_dropped(decided: Job, run: Run) -> None:
    """B28: settled is what the job has sent again, or a person has dropped; the exit code says so."""
    decided.terminate()
    for options in (("recover", "--take-over"), ("status",), ("recover", "--take-over")):
        code, text = run(decided, *options)
        assert code == exits.EXIT_IN_DOUBT
        assert "owed" in text
    assert decided.state("status") == ("owed",)
    assert run(decided, "recover", "--take-over", "--drop", "--reason", "given up")[0] == exits.EXIT_SETTLED
    assert run(decided, "status")[0] == exits.EXIT_SETTLED
    table = decided.rows()
    decided.run()
    decided.check({BATCH: []}, table=table)


def test_recover_stops_a_job_that_runs(kafka_any_version: Broker, make_job: MakeJob, run: Run) -> None:
    """A12, D1: with --take-over the running driver is superseded; started again it goes on where it was."""
    job = make_job(kafka_any_version)
    running = job.stop_at("step:PREPARE", batch=BATCH)
    before = sides(job)
    code, text = run(job, "recover")
    assert code == exits.EXIT_IN_DOUBT
    assert "was left alone: its driver is running (pid " in text
    code, text = run(job, "recover", "--json")
    (report,) = read_output(text[: text.index("\n}\n") + 3])["sinks"]
    assert (code, report["settled"], report["driver"]["alive"]) == (exits.EXIT_IN_DOUBT, False, True)
    assert sides(job) == before
    code, text = run(job, "recover", "--take-over")
    assert code == exits.EXIT_SETTLED
    assert "aborted the open transaction" in text
    job.superseded(running)
    job.run()
    job.check()


def test_recover_in_python_asks_first_too(kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A12, D10: nothing is claimed under a driver that lives, and the error says where it is and what to pass."""
    job = make_job(kafka_without_2pc)
    running = job.stop_at("step:PREPARE", batch=BATCH)
    before = sides(job)
    with pytest.raises(TakeOverRefusedError, match=r"pid .* from .*; claim 1, made at ") as refused:
        recover(**job.sides)
    assert "take_over=True" in refused.value.remedies[-1]
    assert refused.value.report.driver.alive
    assert sides(job) == before
    assert [action.kind for action in job.recover().actions] == ["abort"]
    job.superseded(running)
    job.run()
    job.check()
