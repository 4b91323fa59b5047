"""The job's function: it changes between two batches, hands over not every batch, or uses the sink wrongly."""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from spark_2pc_sink.errors import ConfigurationError, HaltCause, UnstorableValueError
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.records.record_json import IGNORE_NULLS, TIME_PARSER, TIME_ZONE
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.halts import halts
from tests.harness.streams import QUERY_DEADLINE_S
from tests.integration.sink.targets import Row, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

    from spark_2pc_sink import DualWriteSink
    from tests.harness.streams import FileStream
    from tests.integration.sink.targets import Target

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
