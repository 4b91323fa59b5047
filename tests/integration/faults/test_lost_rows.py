"""The state row is deleted while Kafka has a transaction open: every way on ends with each row once, on both sides."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_2pc_sink.cli import exits
from spark_2pc_sink.errors import HaltCause
from tests.harness.damage import lose_row
from tests.harness.driver_job import Job
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob, Run

BATCH = 1
WHY = ("--reason", "looked it up")
#: What a person does about it -> the options of a command, none without one, and of the job.
WAYS: dict[str, tuple[tuple[str, ...] | None, dict[str, Any]]] = {
    "restart": (None, {}),
    "recover": ((), {}),
    "recover --adopt": (("--adopt",), {}),
    "adopt=True": (None, {"adopt": True}),
}


def killed_and_lost(make_job: MakeJob, broker: Broker, place: str, *, history: bool = False) -> Job:
    """A job whose driver was killed at ``place``, and whose row was deleted; with ``history``, its lines too."""
    # Without the key nothing but the product keeps rows from being there twice.
    job = make_job(broker, primary_key=False)
    job.kill_at(place, batch=BATCH)
    lose_row(job, history=history)
    return job


@pytest.mark.parametrize(("place", "way"), [*(("step:DECIDE", way) for way in WAYS), ("step:COMPLETE", "restart")])
def test_a_row_that_is_lost_is_made_again(
    place: str, way: str, kafka_any_version: Broker, make_job: MakeJob, run: Run
) -> None:
    """C13: adopt aborted a decided transaction, and the batch was in the table twice. A dry run only says what is."""
    job = killed_and_lost(make_job, kafka_any_version, place)
    recovering, sink = WAYS[way]
    if recovering is not None:
        with job.unchanged():
            dry = run(job, exits.EXIT_IN_DOUBT, "recover", "--dry-run")
        assert f"no state row; batch {BATCH}, decided" in dry
        settled = run(job, exits.EXIT_SETTLED, "recover", "--take-over", *recovering)
        assert "rebuilt the lost state row from line" in settled
    job.ends_well(**sink)


@pytest.mark.parametrize(("place", "word"), [("step:DECIDE", "commit"), ("step:PREPARE", "abort")])
def test_row_and_history_are_lost(
    place: str, word: str, kafka_any_version: Broker, make_job: MakeJob, run: Run
) -> None:
    """C14: nobody but a person, who looks into the table, can tell what the database has decided."""
    job = killed_and_lost(make_job, kafka_any_version, place, history=True)
    described = job.describe()
    job.refused(HaltCause.ID_IN_USE)
    decided = f"has decided {described.producer}"
    job.refused(HaltCause.OPEN_TRANSACTION, decided, f"{job.topic}-0 from offset", times=2, adopt=True)
    text = run(job, exits.EXIT_IN_DOUBT, "recover", "--take-over", "--adopt")
    assert re.search(rf"--transactional-id {job.transactional_id} .* --adopt --open-transaction {word}", text), text
    assert job.describe() == described
    words = ("--take-over", "--adopt", "--open-transaction", word, *WHY)
    batch = ("--batch", str(BATCH)) if word == "commit" else ()
    for _ in range(2):
        run(job, exits.EXIT_SETTLED, "recover", *words, *batch)
    # Nothing but the person knows that the batch before is on both sides.
    named: dict[str, Any] = {"adopt": True, "accept_loss": "0"} if word == "abort" else {}
    restarted = job.ends_well(**named)
    assert restarted.placements[0] == (BATCH, "SKIP" if word == "commit" else "RUN")
