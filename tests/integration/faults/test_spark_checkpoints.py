"""What happens to Spark's checkpoint, in streaming queries of this process: entries lost, all of it lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.testing import read_topic
from tests.harness.driver_job import Job
from tests.harness.driver_spark import start_query
from tests.harness.providers import Broker
from tests.integration.faults.conftest import MakeJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A query takes seconds; this is for a machine that is busy with something else.
QUERY_S = 150

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run_query(spark: SparkSession, job: Job, *, slash: str = "", **sink: Any) -> None:
    """Run the job's query in this process to the end of its input."""
    options = DualWriteSink(**job.sink(**sink))
    query = start_query(spark, str(job.folder / "input"), f"{job.checkpoint}{slash}", options)
    try:
        assert query.awaitTermination(QUERY_S)
    finally:
        query.stop()


def forget_last_commit(checkpoint: Path) -> int:
    """Delete the newest file of Spark's commit log, as if the driver had died before it was written."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


def test_replay_of_a_batch_that_is_done(spark: SparkSession, kafka_without_2pc: Broker, make_job: MakeJob) -> None:
    """A1, A6, A9: the last entry of the commit log is lost: nothing is written again, not even to be aborted.

    The checkpoint's path is spelt with a slash at its end the second time: the query is the same.
    """
    job = make_job(kafka_without_2pc, sizes=(30, 30, 30), spark=True)
    run_query(spark, job)
    job.check()
    everything = read_topic(job.broker.bootstrap, job.topic, isolation="read_uncommitted")
    row = job.state("status", "batch_id", "prepared_transaction_state", "settled")
    assert forget_last_commit(job.checkpoint) == 2
    run_query(spark, job, slash="/")
    assert (job.checkpoint / "commits" / "2").exists()
    assert read_topic(job.broker.bootstrap, job.topic, isolation="read_uncommitted") == everything
    assert job.state("status", "batch_id", "prepared_transaction_state", "settled") == row
    job.check()
