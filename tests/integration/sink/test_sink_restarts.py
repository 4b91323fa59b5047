"""The sink in a query that is started again: replays, restored checkpoints and databases, other runs."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.halts import halts
from tests.harness.streams import FileStream
from tests.integration.postgres import database_tables
from tests.integration.sink.targets import Target, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_restart_goes_on_where_the_query_was(
    stream: FileStream, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """A9: the identity is Spark's query id, kept in the checkpoint, however the sink object was made.

    It logs no warning: these are for what a person should look at.
    """
    caplog.set_level(logging.INFO, "spark_2pc_sink")
    stream.add(rows_of(0))
    stream.run(target.sink(key="id"))
    stream.add(rows_of(1))
    stream.run(pickle.loads(pickle.dumps(target.sink(key="id"))))  # noqa: S301 - our own bytes
    target.check(rows_of(0) + rows_of(1))
    ours = [record for record in caplog.records if record.name.startswith(("spark_2pc_sink", "jdbc_state"))]
    assert sum("next producer id and epoch" in record.getMessage() for record in ours) == 2
    warnings = [record.getMessage() for record in ours if record.levelno > logging.INFO]
    # Sinks of other tests may still be running in this process.
    assert [each for each in warnings if not each.startswith("tx_") or each.startswith(target.transactional_id)] == []


def test_a_checkpoint_that_was_set_back_by_a_batch_is_refused(stream: FileStream, target: Target) -> None:
    """A7: Spark gives an id again to rows that no side has. Skipped by their id they would be lost."""
    stream.add(rows_of(0))
    stream.run(target.sink(key="id"))
    backup = stream.directory / "backup"
    shutil.copytree(stream.checkpoint, backup)
    stream.add(rows_of(1))
    stream.run(target.sink(key="id"))
    shutil.rmtree(stream.checkpoint)
    backup.rename(stream.checkpoint)
    stream.run(target.sink(key="id"))  # the same files come back under the same id
    target.check(rows_of(0) + rows_of(1))
    shutil.rmtree(stream.checkpoint / "offsets")
    shutil.rmtree(stream.checkpoint / "commits")
    shutil.rmtree(stream.checkpoint / "sources")
    frame = stream.frame(files_per_batch=2)
    with halts(HaltCause.BATCHES_RESTARTED):
        stream.run(target.sink(key="id"), frame)
    database_tables.run(target.database, "UPDATE kafka_transaction_state SET batch_id = 0")
    with halts(HaltCause.REPLAY_DIFFERS):
        stream.run(target.sink(key="id"), frame)
    target.check(rows_of(0) + rows_of(1))


def test_a_job_group_of_the_job_s_own_is_no_run(spark: SparkSession, stream: FileStream, target: Target) -> None:
    """A query that is started again with the same sink object recovers, whatever its jobs are called in the UI."""
    sink = target.sink(key="id")

    def named(batch: DataFrame, batch_id: int) -> None:
        spark.sparkContext.setJobGroup("nightly", "orders of the night")
        sink(batch, batch_id)

    claims = []
    for batch in range(2):
        stream.add(rows_of(batch))
        stream.run(named)
        claims += database_tables.rows(target.database, "SELECT generation, run_id FROM kafka_transaction_state")
    assert [generation for generation, _ in claims] == [1, 2]
    assert len({run_id for _, run_id in claims} - {"nightly"}) == 2
    target.check(rows_of(0) + rows_of(1))


def test_a_stateful_replay_still_advances_its_state(spark: SparkSession, stream: FileStream, target: Target) -> None:
    """A skipped replay runs the plan all the same: the counts of the next batch build on it."""
    options: dict[str, Any] = {
        "key": "name",
        "mode": "upsert",
        "upsert_keys": ["name"],
        "columns": {"name": "name", "total": "total"},
    }
    counted: Callable[[], Any] = lambda: stream.frame().groupBy("name").agg(F.count("*").alias("total"))  # noqa: E731
    stream.add([(1, "a", 0), (2, "a", 0), (3, "b", 0)])
    _run_update(stream, target.sink(**options), counted())
    stream.forget(0)
    stream.add([(4, "a", 0)])
    _run_update(stream, target.sink(**options), counted())
    assert_same_multiset(target.rows("name, total"), [("a", 3), ("b", 1)], what="running counts")


def _run_update(stream: FileStream, sink: DualWriteSink, frame: Any) -> None:
    query = (
        frame.writeStream.foreachBatch(sink)
        .outputMode("update")
        .option("checkpointLocation", str(stream.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
