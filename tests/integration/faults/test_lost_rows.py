"""The state row is deleted while Kafka has a transaction open: every way on ends with each row once, on both sides."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from spark_2pc_sink import cli
from spark_2pc_sink.cli import exits
from spark_2pc_sink.errors import HaltCause
from tests.harness.driver_job import Job
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob, Run

BATCH = 1
WHY = ("--reason", "looked it up")


def killed_and_lost(make_job: MakeJob, broker: Broker, place: str, *, history: bool = True) -> Job:
    """A job whose driver was killed at ``place``, and whose row was deleted; without ``history``, its lines too."""
    # Without the key nothing but the product keeps rows from being there twice.
    job = make_job(broker, primary_key=False)
    job.kill_at(place, batch=BATCH)
    job.sql("DELETE FROM kafka_transaction_state")
    if not history:
        job.sql("DELETE FROM kafka_transaction_state_history")
    return job


def restart(job: Job, run: Run, **sink: Any) -> None:
    del run
    job.run(**sink)


def recover_first(job: Job, run: Run, *options: str) -> None:
    code, text = run(job, "recover", "--take-over", *options)
    assert code == exits.EXIT_SETTLED, text
    assert "rebuilt the lost state row from line" in text
    job.run()


WAYS: dict[str, Callable[[Job, Run], None]] = {
    "restart": restart,
    "recover": recover_first,
    "recover --adopt": lambda job, run: recover_first(job, run, "--adopt"),
    "adopt=True": lambda job, run: restart(job, run, adopt=True),
}


@pytest.mark.parametrize(
    ("place", "way"),
    [
        *(("step:DECIDE", way) for way in WAYS),
        ("step:COMPLETE", "restart"),
    ],
)
def test_a_row_that_is_lost_is_made_again(
    place: str, way: str, kafka_any_version: Broker, make_job: MakeJob, run: Run
) -> None:
    """C13: adopt aborted a decided transaction, and the batch was in the table twice."""
    job = killed_and_lost(make_job, kafka_any_version, place)
    WAYS[way](job, run)
    job.check()


def test_a_row_that_is_lost_is_shown_as_lost(kafka: Broker, make_job: MakeJob, run: Run) -> None:
    """D2: and looking at it changes nothing. Its driver is dead, so recovery makes it again and settles it."""
    job = killed_and_lost(make_job, kafka, "step:DECIDE")
    described = job.describe()
    for command in (["status"], ["recover", "--dry-run"]):
        code, text = run(job, *command)
        assert code == exits.EXIT_IN_DOUBT
        assert f"no state row; batch {BATCH}, decided" in text
    every = ["status", "--bootstrap-server", job.broker.bootstrap, "--database", job.database]
    assert cli.main(every) == exits.EXIT_IN_DOUBT
    assert job.sql("SELECT count(*) FROM kafka_transaction_state") == [(0,)]
    assert job.describe() == described
    code, text = run(job, "recover")
    assert code == exits.EXIT_SETTLED
    assert "rebuilt the lost state row" in text
    job.run()
    job.check()


@pytest.mark.parametrize(("place", "word"), [("step:DECIDE", "commit"), ("step:PREPARE", "abort")])
def test_row_and_history_are_lost(
    place: str, word: str, kafka_any_version: Broker, make_job: MakeJob, run: Run
) -> None:
    """C14: nobody but a person, who looks into the table, can tell what the database has decided."""
    job = killed_and_lost(make_job, kafka_any_version, place, history=False)
    described = job.describe()
    assert job.fail().cause == HaltCause.ID_IN_USE
    for _ in range(2):
        outcome = job.fail(adopt=True)
        assert outcome.cause == HaltCause.OPEN_TRANSACTION
        assert f"has decided {described.producer}" in outcome.text
        assert f"{job.topic}-0 from offset" in outcome.text
    code, text = run(job, "recover", "--take-over", "--adopt")
    assert code == exits.EXIT_IN_DOUBT
    assert re.search(rf"--transactional-id {job.transactional_id} .* --adopt --open-transaction {word}", text), text
    assert job.describe() == described
    batch = ("--batch", str(BATCH)) if word == "commit" else ()
    for _ in range(2):
        code, text = run(job, "recover", "--take-over", "--adopt", "--open-transaction", word, *batch, *WHY)
        assert code == exits.EXIT_SETTLED, text
    # Nothing but the person knows that the batch before is on both sides.
    named: dict[str, Any] = {"adopt": True, "accept_loss": "0"} if word == "abort" else {}
    restarted = job.run(**named)
    assert restarted.placements[0] == (BATCH, "SKIP" if word == "commit" else "RUN")
    job.check()
