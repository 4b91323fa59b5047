"""Jobs that change between two batches of one run: other settings of the session, other plans, other sinks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from spark_2pc_sink.errors import ConfigurationError, HaltCause
from spark_2pc_sink.sink.records.record_json import IGNORE_NULLS, TIME_PARSER, TIME_ZONE
from spark_2pc_sink.testing import assert_same_multiset
from tests.harness.halts import halts
from tests.integration.sink.targets import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

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
    ("changed", "culprit"),
    [
        (lambda batch: batch.withColumn("amount", (F.rand() * 9).cast("int")), "rand"),
        (lambda batch: batch.filter("rand() < 2"), "rand"),
    ],
    ids=["a column", "a filter"],
)
def test_a_plan_that_changes_is_checked_again(
    stream: FileStream, target: Target, changed: Callable[[DataFrame], DataFrame], culprit: str
) -> None:
    """A7: the function hands over another plan from the second batch on. That batch is on neither side."""
    stream.add(rows_of(0, 5))
    stream.add(rows_of(1, 5))
    sink = target.sink()
    with pytest.raises(ConfigurationError, match=rf"the batch=.*{culprit}.*changes each time"):
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
