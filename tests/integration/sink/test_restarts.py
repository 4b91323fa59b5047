"""Batches that come again: a query that is started again, a restored checkpoint or database, a backfill."""

from __future__ import annotations

import logging
import pickle
import shutil
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink.errors import ClaimRefusedError, ConfigurationError, HaltCause
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness import backfill_main, run_program
from tests.harness.halts import halts
from tests.harness.streams import FileStream
from tests.integration.sink.targets import SCHEMA, Target, rows_of

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
    for name in ("offsets", "commits", "sources"):
        shutil.rmtree(stream.checkpoint / name)
    frame = stream.frame(files_per_batch=2)
    with halts(HaltCause.BATCHES_RESTARTED):
        stream.run(target.sink(key="id"), frame)
    target.execute("UPDATE kafka_transaction_state SET batch_id = 0")
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
        claims += target.state("generation, run_id")
    assert [generation for generation, _ in claims] == [1, 2]
    assert len({run_id for _, run_id in claims} - {"nightly"}) == 2
    target.check(rows_of(0) + rows_of(1))


def test_a_stateful_replay_still_advances_its_state(stream: FileStream, target: Target) -> None:
    """A skipped replay runs the plan all the same: the counts of the next batch build on it."""
    options: dict[str, Any] = {"key": "name", "mode": "upsert", "upsert_keys": ["name"]}

    def count() -> None:
        counted = stream.frame().groupBy("name").agg(F.count("*").alias("total"))
        sink = target.sink(**options, columns={"name": "name", "total": "total"})
        writer = counted.writeStream.foreachBatch(sink).outputMode("update").trigger(availableNow=True)
        assert writer.option("checkpointLocation", str(stream.checkpoint)).start().awaitTermination(100)

    stream.add([(1, "a", 0), (2, "a", 0), (3, "b", 0)])
    count()
    stream.forget(0)
    stream.add([(4, "a", 0)])
    count()
    assert_same_multiset(target.rows("name, total"), [("a", 3), ("b", 1)], what="running counts")


def write(spark: SparkSession, target: Target, batch_id: int, count: int = 10) -> None:
    """One number of a backfill, as a start of it writes it."""
    report = target.write(spark.createDataFrame(rows_of(batch_id, count), SCHEMA), batch_id, key="id")
    assert (report.batch_id, report.placement, report.row_count) == (batch_id, Placement.RUN, count)


def test_other_rows_under_a_number_halt_whether_it_is_the_last_or_not(spark: SparkSession, target: Target) -> None:
    """They would be on no side."""
    for number in (1, 2):
        write(spark, target, number)
    for number in (1, 2):
        with halts(HaltCause.REPLAY_DIFFERS, match=f"batch {number} with 10 records"):
            write(spark, target, number, 9)
    target.check(rows_of(1, 10) + rows_of(2, 10))


def test_a_number_that_was_passed_and_never_written_is_refused(spark: SparkSession, target: Target) -> None:
    for number in (1, 5):
        write(spark, target, number)
    with pytest.raises(ConfigurationError, match=r"ids must ascend: the last one was 5, .* no batch 3.*above 5"):
        write(spark, target, 3)
    target.check(rows_of(1, 10) + rows_of(5, 10))


def test_a_stream_s_sink_is_not_a_backfill_s(spark: SparkSession, stream: FileStream, target: Target) -> None:
    """One id has one owner: the numbers of both would be mixed."""
    stream.add(rows_of(0, 10))
    with closing(target.sink(key="id")) as sink:
        stream.run(sink)
        with pytest.raises(ClaimRefusedError, match="backfill of"):
            sink.write(spark.createDataFrame(rows_of(1, 10), SCHEMA), batch_id=1)
    target.check(rows_of(0, 10))


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", [Step.PREPARE, Step.DECIDE, Step.COMPLETE], ids=lambda step: step.name)
def test_a_backfill_that_is_killed_is_begun_again(target: Target, tmp_path: Path, step: Step) -> None:
    """SIGKILL in the second of three numbers; the same command once more, and both sides have each row once."""
    sides = [target.broker.bootstrap, target.database, target.transactional_id, target.topic, str(tmp_path)]
    killed = ["-m", "spark_2pc_sink.testing.killed_job", step.name, "2"]
    run_program(sys.executable, *killed, backfill_main.__file__, *sides, code=-signal.SIGKILL)
    run_program(sys.executable, backfill_main.__file__, *sides)
    target.check([row for number in backfill_main.NUMBERS for row in rows_of(number)])
