"""The job's function, which may change or leave batches out; and batches that come again after a restart."""

from __future__ import annotations

import logging
import pickle
import re
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming import DataStreamWriter

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ClaimRefusedError, ConfigurationError, HaltCause, UnstorableValueError
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.records.record_json import IGNORE_NULLS, TIME_PARSER, TIME_ZONE
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness import backfill_main, run_program
from tests.harness.halts import halts
from tests.harness.streams import QUERY_DEADLINE_S, FileStream
from tests.integration.sink.targets import SCHEMA, Row, Target, rows_of

#: Spark's own text is compared for each batch under these, the first of which let tasks build the value.
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {TIME_ZONE: "Asia/Kathmandu"},
    {TIME_ZONE: "UTC", IGNORE_NULLS: "false"},
    {IGNORE_NULLS: "true", TIME_PARSER: "LEGACY", TIME_ZONE: "America/New_York"},
    {TIME_PARSER: "CORRECTED", TIME_ZONE: "UTC"},
)


def test_the_value_follows_settings_that_change_while_the_query_runs(
    stream: FileStream, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """A21: what tasks build is what to_json would make at that moment, and the log names the setting."""
    for number in range(len(SETTINGS)):
        stream.add(rows_of(number, 20))
    expected: list[bytes] = []
    sink = target.sink(columns={"id": "id", "name": "name", "amount": "amount", "at": "at"})

    def change(batch: DataFrame, batch_id: int) -> None:
        for name, value in SETTINGS[batch_id].items():
            batch.sparkSession.conf.set(name, value)
        expected.extend(row.v.encode() for row in batch.selectExpr("to_json(struct(*)) AS v").collect())
        sink(batch, batch_id)

    with caplog.at_level(logging.WARNING, "spark_2pc_sink"):
        stream.run(change, stream.frame().withColumn("at", F.expr("timestamp_micros(id * 1000000)")))
    assert_same_multiset([record.value for record in target.records()], expected, what="values")
    assert f"{TIME_ZONE} was UTC and is now Asia/Kathmandu" in caplog.text
    assert f"{IGNORE_NULLS} was true and is now false" in caplog.text


def test_a_replay_under_another_setting_halts_and_names_it(stream: FileStream, target: Target) -> None:
    """A21: both sides have the batch with the text of before; nothing is written again."""
    stream.add(rows_of(0, 20))
    stream.run(target.sink())
    before = target.records()
    stream.forget(0)
    sink = target.sink()

    def with_nulls(batch: DataFrame, batch_id: int) -> None:
        batch.sparkSession.conf.set(IGNORE_NULLS, "false")
        sink(batch, batch_id)

    with halts(HaltCause.REPLAY_DIFFERS, match=IGNORE_NULLS):
        stream.run(with_nulls)
    assert target.records() == before
    stream.run(target.sink())
    assert target.records() == before


@pytest.mark.parametrize(
    "changed",
    [
        lambda batch: batch.withColumn("amount", (F.rand() * 9).cast("int")),
        lambda batch: batch.filter("rand() < 2"),
    ],
    ids=["a column", "a filter"],
)
def test_a_plan_that_changes_is_checked_again(
    stream: FileStream, target: Target, changed: Callable[[DataFrame], DataFrame]
) -> None:
    """A7: the function hands over another plan from the second batch on. That batch is on neither side."""
    stream.add(rows_of(0, 5))
    stream.add(rows_of(1, 5))
    sink = target.sink()
    with pytest.raises(ConfigurationError, match=r"the batch=.*rand.*changes each time"):
        stream.run(lambda batch, batch_id: sink(changed(batch) if batch_id else batch, batch_id))
    target.check(rows_of(0, 5))


def test_the_file_of_a_row_is_asked_of_its_metadata(stream: FileStream, target: Target) -> None:
    """A7: the remedy is the column of the source that says the same in every replay, and it works."""
    stream.add(rows_of(0, 5))
    with pytest.raises(ConfigurationError, match="input_file_name") as refused:
        stream.run(target.sink(), stream.frame().withColumn("name", F.expr("input_file_name()")))
    column = refused.value.remedy.split()[1]
    assert column.startswith("_metadata.file_")
    stream.run(target.sink(), stream.frame().withColumn("name", F.expr(f"CAST({column} AS STRING)")))
    assert target.rows("count(name)") == [(5,)]


def test_a_sink_that_is_built_anew_with_another_table_is_refused(stream: FileStream, target: Target) -> None:
    """A20: with the same options it may be built in every call, also for a batch that it has already."""
    for number in range(3):
        stream.add(rows_of(number, 5))

    built: list[DualWriteSink] = []

    def build(batch: DataFrame, batch_id: int) -> None:
        tables = ["public.third"] if batch_id == 2 else ["public.target", "public.target"]
        for table in tables:
            built.append(target.sink(table=table))
            built[-1](batch, batch_id)

    with pytest.raises(ConfigurationError, match="stop the query and start it with the change"):
        stream.run(build)
    for sink in built:
        if sink._run is not None:
            sink._run.close()
    target.check(rows_of(0, 5) + rows_of(1, 5))
    stream.run(target.sink())
    target.check([row for number in range(3) for row in rows_of(number, 5)])


def fill(stream: FileStream, kinds: str) -> list[Row]:
    """Add a file for each letter: f full, e empty, n full of rows that a filter leaves out. The rows that it keeps."""
    kept: list[Row] = []
    for number, kind in enumerate(kinds):
        rows = [] if kind == "e" else rows_of(number, 5)
        stream.add([(-id_ - 1, name, amount) for id_, name, amount in rows] if kind == "n" else rows)
        kept += rows if kind == "f" else []
    return kept


def test_batches_without_rows_need_not_be_handed_over(stream: FileStream, target: Target) -> None:
    """A22: the first, one between others, several in a row, the last: of empty files and behind a filter."""
    kept = fill(stream, "nfennfe")
    sink = target.sink()
    stream.run(
        lambda batch, batch_id: None if batch.isEmpty() else sink(batch, batch_id), stream.frame().filter("id >= 0")
    )
    target.check(kept)
    # Batch 6 was not handed over either; the next run begins with batch 7.
    stream.add(more := rows_of(7, 5))
    with halts(HaltCause.GAP, match="batch 7 follows batch 5.*or your function did not call the sink for batch 6"):
        stream.run(target.sink(), stream.frame().filter("id >= 0"))
    stream.run(target.sink(adopt=True, accept_loss="6"), stream.frame().filter("id >= 0"))
    target.check(kept + more)


def skip_without_a_look(sink: DualWriteSink, batch: DataFrame, batch_id: int) -> None:
    """Spark's progress says for such a batch that no row was read, which nobody did."""
    if batch_id != 1:
        sink(batch, batch_id)


def skip_where_a_join_is_empty(sink: DualWriteSink, batch: DataFrame, batch_id: int) -> None:
    """Spark need not read the batch to know that the join has no rows."""
    nothing = batch.sparkSession.range(9).filter("id < 0")
    if batch_id != 1 or batch.join(nothing, "id").count():
        sink(batch, batch_id)


@pytest.mark.parametrize("function", [skip_without_a_look, skip_where_a_join_is_empty])
def test_a_batch_with_rows_that_is_not_handed_over_halts(
    stream: FileStream, target: Target, function: Callable[[DualWriteSink, Any, int], None]
) -> None:
    """A22: its rows would be on no side, and nothing would say so."""
    kept = fill(stream, "fff")[:5]
    sink = target.sink()
    with halts(HaltCause.NOT_HANDED_OVER, match="^[^:]*: your function did not call the sink for batch 1") as halted:
        stream.run(lambda batch, batch_id: function(sink, batch, batch_id))
    assert "DualWriteSink(…, adopt=True, accept_loss='1')" in halted.value.remedies[-1]
    target.check(kept)


def test_the_first_batch_is_not_handed_over(stream: FileStream, target: Target) -> None:
    """A22: the state row is new, and the function is named all the same: Spark has finished batch 0 in this run."""
    fill(stream, "ff")
    sink = target.sink()
    with halts(HaltCause.NOT_HANDED_OVER, match="call the sink for batch 0"):
        stream.run(lambda batch, batch_id: sink(batch, batch_id) if batch_id else None)
    assert target.records() == []


def test_a_function_that_goes_on_after_an_error_halts(
    stream: FileStream, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A23: `try: sink(batch, id)` with an except that only logs. The rows of the batch would be lost."""
    monkeypatch.setattr(SmallBatches, "expected", False)
    rows: list[list[Row]] = [rows_of(0, 5), [(10_000, "nul \x00", 1), (10_001, "fine", 2)], rows_of(2, 5)]
    for each in rows:
        stream.add(each)
    sink = target.sink()
    swallowed: list[Exception] = []

    def go_on(batch: DataFrame, batch_id: int) -> None:
        try:
            sink(batch, batch_id)
        except UnstorableValueError as error:
            swallowed.append(error)

    with halts(HaltCause.NOT_HANDED_OVER, match=r"continued after an error that the sink raised in batch 1.*NUL"):
        stream.run(go_on)
    assert len(swallowed) == 1
    target.check(rows[0])


# --- wrong use: told by a sentence, before anything is written --------------------------------------------------------


def test_queries_that_spark_takes_without_a_word_are_refused(
    stream: FileStream, target: Target, tmp_path: Path
) -> None:
    """With `foreach` (rows, in tasks), a temporary checkpoint, and options that no one reads."""
    stream.add(rows_of(0, 3))
    sink: Any = target.sink()

    def complete() -> DataStreamWriter:
        return stream.frame().writeStream.option("checkpointLocation", str(tmp_path / "other"))

    for writer, said in (
        (complete().foreach(sink), "writeStream.foreachBatch(sink) instead of writeStream.foreach(sink)"),
        (stream.frame().writeStream.foreachBatch(sink), "option('checkpointLocation', DIRECTORY)"),
        (
            complete().foreachBatch(sink).option("kafka.bootstrap.servers", "elsewhere:9092"),
            "pass kafka={'bootstrap.servers': …} to DualWriteSink",
        ),
    ):
        query = writer.trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match=re.escape(said)):
            query.awaitTermination(QUERY_DEADLINE_S)
    assert target.records() == []


def test_a_function_that_calls_twice_with_other_rows_is_told_so(stream: FileStream, target: Target) -> None:
    """A20: the second part would be left out as written."""
    stream.add(rows_of(0, 10))
    sink = target.sink(key="id")

    def in_two_parts(batch: DataFrame, batch_id: int) -> None:
        for part in ("id % 2 = 0", "id % 2 = 1"):
            sink(batch.where(part), batch_id)

    with halts(HaltCause.REPLAY_DIFFERS, match="called the sink twice for batch 0 in this run"):
        stream.run(in_two_parts)
    assert len(target.records()) == 5


def in_a_thread(told: Callable[[Any], Any], act: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(told(act)).result()


def rates(batch: DataFrame) -> DataFrame:
    return batch.sparkSession.readStream.format("rate").load()


#: What the error says of a function: it gets the sink, a batch and its id.
WRONG: dict[str, Callable[[Any, Any, int], Any]] = {
    "called with a stream": lambda sink, batch, batch_id: sink(rates(batch), batch_id),
    "a DataFrame of pandas": lambda sink, batch, batch_id: sink(batch.toPandas(), batch_id),
    "not a str": lambda sink, batch, batch_id: sink(batch, str(batch_id)),
    "inheritable_thread_target": lambda sink, *batch: in_a_thread(lambda act: act, lambda: sink(*batch)),
    r"sink\(batch, batch_id\)": lambda sink, batch, batch_id: sink.write(batch, batch_id=batch_id),
}


def test_a_function_that_calls_the_sink_wrongly_is_told_so(stream: FileStream, target: Target) -> None:
    """A thread of the function's needs to be told of the query."""
    stream.add(rows_of(0, 3))
    sink = target.sink(key="id")
    for said, function in WRONG.items():
        with pytest.raises(ConfigurationError, match=said):
            stream.run(lambda batch, batch_id, function=function: function(sink, batch, batch_id))
        assert target.records() == []
    told = inheritable_thread_target
    stream.run(lambda batch, *number: in_a_thread(told(batch.sparkSession), lambda: sink(batch, *number)))
    assert len(target.records()) == 3


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
