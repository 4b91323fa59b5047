"""on_decide in the driver: once for each batch that is decided, with what is decided, and never for a replay."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.errors import BatchAttemptsExhaustedError, BatchRetryError
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver.on_decide import DecidingBatch
from tests.unit.sink.driver.batch_jobs import ID, Job


class Hook:
    """Writes a statement for each call; fails at will."""

    def __init__(self) -> None:
        self.batches: list[DecidingBatch] = []
        self.fail: list[Exception] = []

    def __call__(self, connection: Any, batch: DecidingBatch) -> None:
        self.batches.append(batch)
        connection.execute("hook")
        if self.fail:
            raise self.fail.pop(0)


@pytest.fixture
def hook() -> Hook:
    return Hook()


@pytest.fixture
def job(hook: Hook) -> Job:
    job = Job(on_decide=hook)
    job.driver.recover()
    return job


def committed(job: Job) -> list[object]:
    return [statement for statement, _ in job.store.committed]


def test_it_comes_behind_the_rows_and_before_the_state_row(job: Job, hook: Hook) -> None:
    job.driver.write(0, job.work(records=1, left_out=2))
    assert committed(job) == ["copy", "hook", "decide"]
    assert hook.batches == [DecidingBatch(transactional_id=ID, batch_id=0, prepared="0:0", row_count=3, record_count=1)]


def test_a_batch_that_is_skipped_is_not_decided_again(job: Job, hook: Hook) -> None:
    job.driver.write(0, job.work())
    restarted = Job(sides=job, run_id="again", on_decide=hook)
    restarted.driver.recover()
    assert restarted.driver.write(0, restarted.work()).placement is Placement.SKIP
    assert len(hook.batches) == 1


def test_a_batch_that_is_only_sent_again_is_not_decided_again(job: Job, hook: Hook) -> None:
    """Kafka has aborted its transaction behind the decision."""
    times = iter([job.kafka.time_out])
    job.on_step = lambda step: next(times, lambda: None)() if step is Step.DECIDE else None
    work = job.work()
    assert job.driver.write(0, work).attempts == 2
    assert [ticket.kafka_only for ticket in work.tickets] == [False, True]
    assert committed(job) == ["copy", "hook", "decide", "decide"]


def test_an_attempt_that_it_fails_leaves_nothing(job: Job, hook: Hook) -> None:
    hook.fail = [BatchRetryError(reason="not now")]
    assert job.driver.write(0, job.work()).attempts == 2
    assert committed(job) == ["copy", "hook", "decide"]
    assert [batch.prepared for batch in hook.batches] == ["0:0", "0:2"]
    hook.fail = [BatchRetryError(reason=f"never, {number}") for number in range(3)]
    with pytest.raises(BatchAttemptsExhaustedError, match="never, 2"):
        job.driver.write(1, job.work())
    assert committed(job) == ["copy", "hook", "decide"]
    assert len(job.kafka.committed) == 1
