"""Jobs whose function does not hand over every batch: no gap where the batch had no rows, else a halt that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.errors import HaltCause, UnstorableValueError
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from tests.harness.halts import halts
from tests.integration.sink.targets import Row, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark_2pc_sink import DualWriteSink
    from tests.harness.streams import FileStream
    from tests.integration.sink.targets import Target


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
