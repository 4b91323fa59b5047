"""``spark-2pc`` beside a job: what it sees, leaves alone and changes; and its history of what anybody did."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from spark_2pc_sink import cli, history, recover
from spark_2pc_sink.cli import output
from spark_2pc_sink.errors import TakeOverRefusedError
from tests.harness.damage import HISTORY, STATE, lose_row
from tests.harness.driver_job import LARGE_INPUT, Job
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob, Run

BATCH = 1
OLD = "UPDATE kafka_transaction_state SET {0} = {0} - interval '1 hour' WHERE {0} IS NOT NULL"


def age(job: Job) -> None:
    """Let the row look as if nobody had touched it for an hour, as in a batch that takes so long."""
    for column in ("claimed_at", "decided_at", "settled_at"):
        job.sql(OLD.format(column))


@pytest.fixture
def decided(kafka_without_2pc: Broker, make_job: MakeJob) -> Job:
    """A job whose driver was killed right after its decision."""
    job = make_job(kafka_without_2pc)
    job.kill_at("step:DECIDE", batch=BATCH)
    return job


def test_status_and_dry_run_change_nothing(decided: Job, run: Run) -> None:
    """Looking never claims, also many times. 3 says that something is in doubt."""
    with decided.unchanged():
        for options in (("status",), ("recover", "--dry-run"), ("recover", "--dry-run", "--take-over")):
            text = run(decided, output.EXIT_IN_DOUBT, *options)
            assert "IN DOUBT" in text
            assert "recovery will commit Kafka transaction" in text


def test_an_owed_batch_stays_in_doubt_until_it_is_sent_or_dropped(decided: Job, run: Run) -> None:
    """B28: settled is what the job has sent again, or a person has dropped; the exit code says so."""
    decided.terminate()
    for options in (("recover", "--take-over"), ("status",), ("recover", "--take-over")):
        assert "owed" in run(decided, output.EXIT_IN_DOUBT, *options)
    assert decided.state("status") == ("owed",)
    run(decided, output.EXIT_SETTLED, "recover", "--take-over", "--drop", "--reason", "given up")
    run(decided, output.EXIT_SETTLED, "status")
    table = decided.rows()
    decided.run()
    decided.check({BATCH: []}, table=table)


# --- a driver that runs --------------------------------------------------------------------------------------------


def test_recover_stops_a_job_that_runs(kafka_any_version: Broker, make_job: MakeJob, run: Run) -> None:
    """A12, D1, D10: only when told to, in Python too; the job goes on where it was when it is started again."""
    job = make_job(kafka_any_version)
    running = job.stop_at("step:PREPARE", batch=BATCH)
    with job.unchanged():
        assert "was left alone: its driver is running (pid " in run(job, output.EXIT_IN_DOUBT, "recover")
        with pytest.raises(TakeOverRefusedError, match=r"pid .* from .*; claim 1, made at ") as refused:
            recover(**job.sides)
    assert "take_over=True" in refused.value.remedies[-1]
    assert refused.value.report.driver.alive
    assert "aborted the open transaction" in run(job, output.EXIT_SETTLED, "recover", "--take-over")
    job.superseded(running)
    job.ends_well()


@pytest.mark.parametrize("place", ["step:PREPARE", "copy"])
def test_a_driver_in_a_long_batch_is_left_alone(
    kafka_without_2pc: Broker, make_job: MakeJob, run: Run, place: str
) -> None:
    """D10: before it has a transaction of the database, and within it. It goes on where it was."""
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    driver = job.stop_at(place, batch=BATCH)
    age(job)
    with job.unchanged():
        text = run(job, output.EXIT_IN_DOUBT, "recover")
    assert "its driver is running (pid " in text
    assert "from 127.0.0.1, role postgres; claim 1, made at " in text
    assert f"spark-2pc recover --transactional-id {job.transactional_id} " in text
    assert " --take-over  # stop the driver from here" in text
    job.ends_well(driver)


def test_a_driver_that_was_killed_is_not_waited_for(kafka_without_2pc: Broker, make_job: MakeJob, run: Run) -> None:
    """D10: however young its row is."""
    job = make_job(kafka_without_2pc, sizes=LARGE_INPUT)
    job.kill_at("copy", batch=BATCH)
    assert "  driver:   no driver is running (no database session of claim 1)" in run(
        job, output.EXIT_IN_DOUBT, "status"
    )
    assert "aborted the open transaction" in run(job, output.EXIT_SETTLED, "recover")
    job.ends_well()


# --- behind a pooler -----------------------------------------------------------------------------------------------


def test_behind_a_pooler_the_age_of_the_row_decides(
    kafka_without_2pc: Broker, make_job: MakeJob, run: Run, database: str, pooled: Callable[..., str]
) -> None:
    """C6, D10: in transaction mode. It is said that it does, and what to do about a row that is young."""
    job = make_job(kafka_without_2pc, database=database)
    pooler = pooled(database, "transaction")
    job.kill_at("step:DECIDE", batch=BATCH, database=pooler)
    text = run(job, output.EXIT_IN_DOUBT, "recover", database=pooler)
    assert "it is unknown whether its driver is running (behind a pooler" in text
    assert "so it may" in text
    age(job)
    run(job, output.EXIT_SETTLED, "recover", database=pooler)
    job.ends_well(database=pooler)


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
    job.ends_well(database=pooler, **keyed)


def killed_at(job: Job, place: str, batch: int) -> None:
    """A driver that comes to this batch, and no further."""
    job.batches = batch + 1
    job.kill_at(place, batch=batch)


def decided_and_aborted(job: Job, batch: int) -> None:
    killed_at(job, "step:DECIDE", batch)
    job.terminate()


def lose_batch(job: Job, batch: int) -> None:
    """The database is set back to before this batch, which Kafka has."""
    for table in (STATE, HISTORY):
        job.sql(f"CREATE TABLE backup_{table} AS SELECT * FROM {table}")
    job.batches = batch + 1
    job.run()
    for table in (STATE, HISTORY):
        job.sql(f"DELETE FROM {table}")
        job.sql(f"INSERT INTO {table} SELECT * FROM backup_{table}")
    job.sql(f"DELETE FROM {job.table} WHERE id >= {batch * 100_000}")


def actions_of(run: Run, job: Job) -> list[dict[str, Any]]:
    text = run(job, output.EXIT_SETTLED, "history", "--actions-only", "--last", "1000", "--json")
    found: list[dict[str, Any]] = read_output(text)["entries"]
    return found


def check_actions(job: Job, found: list[dict[str, Any]]) -> None:
    by_people = [(each["action"], each["batch_id"], each["reason"]) for each in found if each["reason"]]
    assert by_people == [
        ("claim", 1, "the topic is rebuilt anyway"),
        ("note_owed", 1, "the topic is rebuilt anyway"),
        ("drop", 1, "the topic is rebuilt anyway"),
        ("claim", 2, "the source was corrected"),
        ("note_owed", 2, "the source was corrected"),
        ("accept_replay", 2, "the source was corrected"),
        ("adopt", 2, "restored from last night"),
        ("accept_loss", 3, "restored from last night"),
        ("adopt", None, "its rows are in the table"),
        ("open_transaction", 4, "its rows are in the table"),
        ("commit", 4, "its rows are in the table"),
        ("adopt", 4, "moved to the new Spark"),
        ("force_terminate", None, "readers stand still"),
        ("force_terminate", None, "readers stand still"),
    ]
    [(role,)] = job.sql("SELECT session_user")
    assert {(each["os_user"], each["host"], each["role"]) for each in found} == {
        (getpass.getuser(), socket.gethostname(), role)
    }
    times = [datetime.fromisoformat(each["at"].replace("Z", "+00:00")) for each in found]
    assert all(before <= after for before, after in pairwise(times))
    first = found[0]
    assert (first["action"], first["program"], first["generation"]) == ("claim", "job", 1)
    assert first["detail"]["layout"]["table"] == job.table
    assert {each["program"] for each in found if each["action"] in ("drop", "commit", "force_terminate")} != {"job"}
    settled = [each["detail"]["did"] for each in found if each["action"] == "commit"]
    assert settled[0].startswith("committed ")
    assert [each["detail"]["outcome"] for each in found[-2:]] == ["asked", "done"]
    accepted = next(each for each in found if each["action"] == "accept_loss")
    assert accepted["detail"]["batches"] == "3"


@pytest.mark.slow
def test_everything_is_named_with_who_when_and_why(kafka_without_2pc: Broker, make_job: MakeJob, run: Run) -> None:
    """D2, C5: claim, recovery, adopt, drop, accept-replay, accept-loss, open-transaction and force-terminate."""
    job = make_job(kafka_without_2pc, sizes=(5,) * 8, primary_key=False)

    def recover(code: int, reason: str, *options: str) -> None:
        run(job, code, "recover", *options, "--reason", reason)

    killed_at(job, "step:DECIDE", 0)
    run(job, output.EXIT_SETTLED, "recover")
    decided_and_aborted(job, 1)
    run(job, output.EXIT_USAGE, "recover", "--drop")
    recover(output.EXIT_SETTLED, "the topic is rebuilt anyway", "--drop")
    decided_and_aborted(job, 2)
    recover(output.EXIT_IN_DOUBT, "the source was corrected", "--accept-replay")
    job.run()
    lose_batch(job, 3)
    recover(output.EXIT_SETTLED, "restored from last night", "--adopt", "--accept-loss", "3")
    killed_at(job, "step:DECIDE", 4)
    lose_row(job, history=True)
    words = ("--adopt", "--open-transaction", "commit", "--batch", "4")
    recover(output.EXIT_SETTLED, "its rows are in the table", *words)
    job.batches = 6
    job.run(adopt=True, reason="moved to the new Spark")
    killed_at(job, "step:PREPARE", 6)
    ending = ("transactions", "force-terminate", "--database", job.database, "--reason", "readers stand still")
    sides = ("--bootstrap-server", job.broker.bootstrap, "--transactional-id", job.transactional_id)
    assert cli.main([*ending, *sides]) == output.EXIT_SETTLED

    check_actions(job, actions_of(run, job))
    merged = history(database=job.database, transactional_id=job.transactional_id, last=1_000).entries
    assert [entry.at for entry in merged] == sorted(entry.at for entry in merged)
