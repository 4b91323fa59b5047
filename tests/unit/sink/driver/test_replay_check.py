"""A batch that comes again: skipped or resent where it is the same, refused where it is another. A1, A7, D2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
from tests.harness.halts import halts
from tests.unit.fakes.batch_work import FakeWork, Results
from tests.unit.sink.driver.batch_jobs import ID, Job, started


@pytest.fixture
def job() -> Job:
    return started()


def test_a_replay_is_skipped_and_its_plan_still_runs(job: Job) -> None:
    """A1, D2: nothing is written twice, and stateful operators advance."""
    job.driver.write(0, job.work())
    work = job.work()
    report = job.driver.write(0, work)
    assert (report.placement, report.attempts, report.row_count, report.record_bytes) == (Placement.SKIP, 0, 0, 0)
    assert report.prepared == "0:0"
    assert work.log == ["recall", "reread"]
    assert len(job.kafka.committed) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [({}, {"digest": "e" * 32}), ({}, {"rows": 0, "records": 0}), ({"rows": 0, "records": 0}, {})],
    ids=["others", "none", "some behind none"],
)
def test_another_batch_under_the_same_id_is_not_skipped(
    job: Job, first: dict[str, Any], second: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A7, D9: a checkpoint that was set back plans the batch anew, with rows that no side has.

    Where accept_replay was left on, the same happens to another batch, and that one halts.
    """
    job.driver.write(0, job.work(**first))
    with halts(HaltCause.REPLAY_DIFFERS):
        job.driver.write(0, job.work(**second))
    accepting = Job(sides=job, run_id="run-2", accept_replay=0)
    accepting.driver.recover()
    assert accepting.driver.write(0, accepting.work(**first)).placement is Placement.SKIP
    assert "accept_replay" not in caplog.text
    assert accepting.driver.write(0, accepting.work(**second)).placement is Placement.SKIP
    assert "orders: accept_replay=0 leaves out batch 0 as it is now" in caplog.text
    assert accepting.driver.write(1, accepting.work(**first)).placement is Placement.RUN
    with halts(HaltCause.REPLAY_DIFFERS) as halted:
        accepting.driver.write(1, accepting.work(**second))
    assert "start the job once with DualWriteSink(…, accept_replay=1)" in str(halted.value)


def test_a_dropped_batch_is_skipped_whatever_spark_has_under_its_id(job: Job) -> None:
    """A person has given its Kafka half up, mostly because the replay is another batch."""
    job.on_step = lambda step: job.kafka.time_out() if step is Step.DECIDE else None
    with halts(HaltCause.RESEND_DIFFERS):
        job.driver.write(0, _changing(job.work()))
    row = job.row()
    job.store.drop_batch(ID, row.generation, row.settled)
    restarted = Job(sides=job, run_id="run-2")
    restarted.driver.recover()
    assert restarted.driver.write(0, restarted.work(digest="f" * 32)).placement is Placement.SKIP


def test_a_resend_that_is_another_batch_halts(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """A7: the digest tells that Spark replays something else; a person decides."""
    job.on_step = lambda step: job.kafka.time_out() if step is Step.DECIDE else None
    with halts(HaltCause.RESEND_DIFFERS) as halted:
        job.driver.write(0, _changing(job.work()))
    assert any("--accept-replay" in remedy for remedy in halted.value.remedies)
    assert any("--drop" in remedy for remedy in halted.value.remedies)
    assert job.row().status == "owed"
    assert job.kafka.committed == []
    accepting = Job(sides=job, run_id="run-2", accept_replay=0)
    accepting.driver.recover()
    assert accepting.driver.write(0, accepting.work(digest="e" * 32)).placement is Placement.RESEND
    assert "orders: accept_replay=0 sends batch 0 to Kafka as it is now" in caplog.text
    assert job.row().status == "done"


@pytest.mark.parametrize(("batch_id", "told"), [(0, True), (1, False)])
def test_a_first_batch_that_differs_may_be_of_a_full_refresh(job: Job, batch_id: int, told: bool) -> None:
    """A28: both sides have batch 0 alone, so its number does not tell a refresh from a replay."""
    for batch in range(batch_id + 1):
        job.driver.write(batch, job.work())
    refreshed = Job(sides=job, run_id="run-2")
    refreshed.driver.recover()
    with halts(HaltCause.REPLAY_DIFFERS) as halted:
        refreshed.driver.write(batch_id, refreshed.work(digest="e" * 32))
    assert ("write everything from the source again" in str(halted.value)) is told


def test_a_checkpoint_that_was_set_back_is_refused_with_adopt_too(job: Job) -> None:
    """D8, D9: the option is meant for one start. Left on, it must not let an older checkpoint write batches again."""
    job.driver.write(0, job.work())
    job.driver.write(1, job.work())
    adopting = Job(sides=job, run_id="run-2", adopt=True)
    adopting.driver.recover()
    with halts(HaltCause.BATCHES_RESTARTED):
        adopting.driver.write(0, adopting.work())
    assert job.row().batch_id == 1


def _changing(work: FakeWork) -> FakeWork:
    original = work.produce

    def changed(ticket: TransactionTicket, open_decision: Callable[[], Any]) -> Results:
        work.digest = "e" * 32 if ticket.kafka_only else "d" * 32
        return original(ticket, open_decision)

    work.produce = changed  # type: ignore[method-assign]
    return work
