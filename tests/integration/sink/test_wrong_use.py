"""Wrong use of the sink on real Spark: told by a sentence, before anything is written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException

from spark_2pc_sink.errors import ConfigurationError, HaltCause
from tests.harness.halts import halts
from tests.harness.streams import QUERY_DEADLINE_S
from tests.integration.sink.targets import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

    from tests.harness.streams import FileStream
    from tests.integration.sink.targets import Target


def refusal(writer: DataStreamWriter) -> str:
    """Run a query that fails; its text."""
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(QUERY_DEADLINE_S)
    return str(failed.value)


def test_foreach_names_foreach_batch(stream: FileStream, target: Target, tmp_path: Path) -> None:
    """Spark calls the sink with rows, in tasks."""
    stream.add(rows_of(0, 3))
    sink: Any = target.sink()
    said = refusal(stream.frame().writeStream.foreach(sink).option("checkpointLocation", str(tmp_path / "other")))
    assert "writeStream.foreachBatch(sink) instead of writeStream.foreach(sink)" in said
    assert target.records() == []


def test_a_missing_checkpoint_and_options_of_spark_s_kafka_sink_are_refused(
    stream: FileStream, target: Target, tmp_path: Path
) -> None:
    """Spark takes both without a word: a temporary checkpoint, and options that nobody reads."""
    stream.add(rows_of(0, 3))
    assert "option('checkpointLocation', DIRECTORY)" in refusal(stream.frame().writeStream.foreachBatch(target.sink()))
    with_checkpoint = stream.frame().writeStream.option("checkpointLocation", str(tmp_path / "other"))
    said = refusal(with_checkpoint.foreachBatch(target.sink()).option("kafka.bootstrap.servers", "elsewhere:9092"))
    assert "pass kafka={'bootstrap.servers': …} to DualWriteSink" in said
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


def test_something_else_than_the_batch_is_told_so(stream: FileStream, target: Target) -> None:
    stream.add(rows_of(0, 3))
    sink: Any = target.sink(key="id")
    with pytest.raises(ConfigurationError, match="called with a stream"):
        stream.run(lambda _, batch_id: sink(stream.frame(), batch_id))
    with pytest.raises(ConfigurationError, match="a DataFrame of pandas"):
        stream.run(lambda batch, batch_id: sink(batch.toPandas(), batch_id))
    with pytest.raises(ConfigurationError, match="not a str"):
        stream.run(lambda batch, batch_id: sink(batch, str(batch_id)))
    assert target.records() == []


def test_a_thread_of_the_function_needs_to_be_told_of_the_query(stream: FileStream, target: Target) -> None:
    stream.add(rows_of(0, 3))
    sink = target.sink(key="id")

    def in_a_thread(batch: DataFrame, batch_id: int) -> None:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(sink, batch, batch_id).result()

    def in_a_thread_of_the_query(batch: DataFrame, batch_id: int) -> None:
        told = inheritable_thread_target(batch.sparkSession)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(told(lambda: sink(batch, batch_id))).result()

    with pytest.raises(ConfigurationError, match="inheritable_thread_target"):
        stream.run(in_a_thread)
    stream.run(in_a_thread_of_the_query)
    assert len(target.records()) == 3


def test_write_inside_a_stream_is_refused(stream: FileStream, target: Target) -> None:
    stream.add(rows_of(0, 3))
    sink = target.sink()
    with pytest.raises(ConfigurationError, match=r"sink\(batch, batch_id\)"):
        stream.run(lambda batch, batch_id: sink.write(batch, batch_id=batch_id))
