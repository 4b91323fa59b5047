"""`query.stop()` while the sink is in the middle of a batch, in streaming queries of this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.recipe.dual_write import Step
from spark_2pc_sink.sink import observer
from spark_2pc_sink.testing import wait_until
from tests.integration.faults.conftest import MakeJob
from tests.support.driver_job import Job
from tests.support.driver_spark import start_query
from tests.support.providers import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: For what takes seconds on an idle machine.
QUERY_S = 150
BATCH = 1

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    return start_query(spark, str(job.folder / "input"), str(job.checkpoint), DualWriteSink(**job.sink()))


@pytest.mark.parametrize("step", [Step.BEGIN, Step.PREPARE, Step.DECIDE, Step.COMPLETE], ids=lambda step: step.name)
def test_stopped_in_the_middle_of_a_batch(
    step: Step, spark: SparkSession, kafka_without_2pc: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A14: stop() has been called, and the Python side is after this step of a batch; the next start goes on."""
    job = make_job(kafka_without_2pc, sizes=(30, 30, 30), spark=True)
    reached, seen = threading.Event(), []

    def stand_still(at: Step) -> None:
        """In Spark's call of the sink, in the second batch."""
        seen.append(at)
        if seen.count(step) == BATCH + 1 and not reached.is_set():
            reached.set()
            wait_until(lambda: not query.isActive, deadline_s=QUERY_S, what="stop() to be called")

    monkeypatch.setattr(observer, "reached", stand_still)
    query = start(spark, job)
    assert reached.wait(QUERY_S)
    query.stop()
    decided = step >= Step.DECIDE
    assert job.state("batch_id") == (BATCH if decided else BATCH - 1,)
    assert seen.count(Step.BEGIN) == BATCH + 1, "another attempt was begun after stop()"
    again = start(spark, job)
    try:
        assert again.awaitTermination(QUERY_S)
    finally:
        again.stop()
    assert job.state("status", "batch_id") == ("done", 2)
    job.check()
