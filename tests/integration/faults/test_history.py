"""``spark-2pc history``: whatever a person or a driver did to a sink is told with who, when and why."""

from __future__ import annotations

import getpass
import socket
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from spark_2pc_sink import cli, history
from spark_2pc_sink.cli import exits
from tests.harness.damage import HISTORY, STATE, lose_row
from tests.harness.driver_job import Job
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob, Run


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
    text = run(job, exits.EXIT_SETTLED, "history", "--actions-only", "--last", "1000", "--json")
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
    run(job, exits.EXIT_SETTLED, "recover")
    decided_and_aborted(job, 1)
    run(job, exits.EXIT_USAGE, "recover", "--drop")
    recover(exits.EXIT_SETTLED, "the topic is rebuilt anyway", "--drop")
    decided_and_aborted(job, 2)
    recover(exits.EXIT_IN_DOUBT, "the source was corrected", "--accept-replay")
    job.run()
    lose_batch(job, 3)
    recover(exits.EXIT_SETTLED, "restored from last night", "--adopt", "--accept-loss", "3")
    killed_at(job, "step:DECIDE", 4)
    lose_row(job, history=True)
    words = ("--adopt", "--open-transaction", "commit", "--batch", "4")
    recover(exits.EXIT_SETTLED, "its rows are in the table", *words)
    job.batches = 6
    job.run(adopt=True, reason="moved to the new Spark")
    killed_at(job, "step:PREPARE", 6)
    ending = ("transactions", "force-terminate", "--database", job.database, "--reason", "readers stand still")
    sides = ("--bootstrap-server", job.broker.bootstrap, "--transactional-id", job.transactional_id)
    assert cli.main([*ending, *sides]) == exits.EXIT_SETTLED

    check_actions(job, actions_of(run, job))
    merged = history(database=job.database, transactional_id=job.transactional_id, last=1_000).entries
    assert [entry.at for entry in merged] == sorted(entry.at for entry in merged)
