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
from tests.harness.driver_job import Job
from tests.harness.json_contract import read_output
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob, Run

STATE = ("kafka_transaction_state", "kafka_transaction_state_history")


def killed_at(job: Job, place: str, batch: int) -> None:
    """A driver that comes to this batch, and no further."""
    job.batches = batch + 1
    job.kill_at(place, batch=batch)


def decided_and_aborted(job: Job, batch: int) -> None:
    killed_at(job, "step:DECIDE", batch)
    job.terminate()


def lose_batch(job: Job, batch: int) -> None:
    """The database is set back to before this batch, which Kafka has."""
    for table in STATE:
        job.sql(f"CREATE TABLE backup_{table} AS SELECT * FROM {table}")
    job.batches = batch + 1
    job.run()
    for table in STATE:
        job.sql(f"DELETE FROM {table}")
        job.sql(f"INSERT INTO {table} SELECT * FROM backup_{table}")
    job.sql(f"DELETE FROM {job.table} WHERE id >= {batch * 100_000}")


def force_terminate(job: Job, reason: str) -> int:
    words = ["transactions", "force-terminate", "--bootstrap-server", job.broker.bootstrap]
    words += ["--transactional-id", job.transactional_id, "--database", job.database, "--reason", reason]
    return cli.main(words)


def actions_of(job: Job, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    words = ["history", "--database", job.database, "--transactional-id", job.transactional_id]
    assert cli.main([*words, "--actions-only", "--last", "1000", "--json"]) == exits.EXIT_SETTLED
    found: list[dict[str, Any]] = read_output(capsys.readouterr().out)["entries"]
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
def test_everything_is_named_with_who_when_and_why(
    kafka_without_2pc: Broker, make_job: MakeJob, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """D2, C5: claim, recovery, adopt, drop, accept-replay, accept-loss, open-transaction and force-terminate."""
    job = make_job(kafka_without_2pc, sizes=(5,) * 8, primary_key=False)

    def recover(reason: str, *options: str) -> int:
        return run(job, "recover", *options, "--reason", reason)[0]

    killed_at(job, "step:DECIDE", 0)
    assert run(job, "recover")[0] == exits.EXIT_SETTLED
    decided_and_aborted(job, 1)
    assert run(job, "recover", "--drop")[0] == exits.EXIT_USAGE
    assert recover("the topic is rebuilt anyway", "--drop") == exits.EXIT_SETTLED
    decided_and_aborted(job, 2)
    assert recover("the source was corrected", "--accept-replay") == exits.EXIT_IN_DOUBT
    job.run()
    lose_batch(job, 3)
    assert recover("restored from last night", "--adopt", "--accept-loss", "3") == exits.EXIT_SETTLED
    killed_at(job, "step:DECIDE", 4)
    for table in STATE:
        job.sql(f"DELETE FROM {table}")
    words = ("--adopt", "--open-transaction", "commit", "--batch", "4")
    assert recover("its rows are in the table", *words) == exits.EXIT_SETTLED
    job.batches = 6
    job.run(adopt=True, reason="moved to the new Spark")
    killed_at(job, "step:PREPARE", 6)
    assert force_terminate(job, "readers stand still") == exits.EXIT_SETTLED

    check_actions(job, actions_of(job, capsys))
    merged = history(database=job.database, transactional_id=job.transactional_id, last=1_000).entries
    assert [entry.at for entry in merged] == sorted(entry.at for entry in merged)
    capsys.readouterr()
    assert cli.main(["history", "--database", job.database, "--last", "3"]) == exits.EXIT_SETTLED
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["Time", "What"]
    assert header.split()[-3:] == ["Who", "Reason", "Detail"]
    assert len(lines) == 3
    assert f"{getpass.getuser()}@{socket.gethostname()} by " in lines[-1]
    assert "readers stand still" in lines[-1]
