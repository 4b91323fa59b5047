"""Batch counters: each line of the history counts once, and what is trimmed is not taken back."""

from __future__ import annotations

from typing import Any

from jdbc_state import HistoryLine
from spark_2pc_sink.monitoring.exporter import BatchCounters, SinkCounts
from tests.unit.monitoring.samples import FIGURES, row


def counts(counters: BatchCounters) -> SinkCounts:
    return counters.by_sink["orders"]


def see(counters: BatchCounters, decision: int, *, status: str = "done", event: str = "decided") -> int:
    """One look at a sink whose newest line has this number; how many lines it wanted to read."""
    newest = row(decision=decision, batch=decision, status=status)
    wanted = counters.lines_wanted(newest)
    past = [HistoryLine(event, row(decision=number, batch=number), FIGURES) for number in range(decision - 1, 0, -1)]
    counters.count("orders", [HistoryLine(event, newest, FIGURES), *past][:wanted])
    return wanted


def test_counting_begins_with_zero_at_the_first_look() -> None:
    counters = BatchCounters()
    assert see(counters, 500) == 0
    assert (counts(counters).batches, counts(counters).rows) == (0, 0)


def test_only_new_lines_are_read_and_counted() -> None:
    counters = BatchCounters()
    see(counters, 10)
    assert [see(counters, 13), see(counters, 13), see(counters, 14)] == [3, 0, 1]
    found = counts(counters)
    assert (found.batches, found.rows, found.records, found.record_bytes) == (4, 4 * 1_200, 4 * 1_100, 4 * 812)
    assert (found.seconds.count, found.seconds.total) == (4, 6.0)
    assert (found.source_lag, found.event_delay_s) == (40, 2.5)
    assert (found.steps["produce"].count, round(found.steps["produce"].total, 6)) == (4, 3.6)


def test_a_batch_counts_when_kafka_has_it() -> None:
    """The line of a batch in mid-way has no figures yet."""
    counters = BatchCounters()
    see(counters, 10)
    assert see(counters, 11, status="decided") == 0
    assert counts(counters).batches == 0
    see(counters, 11)
    assert counts(counters).batches == 1


def test_a_resend_is_no_batch_more() -> None:
    counters = BatchCounters()
    see(counters, 10)
    see(counters, 11, event="resent")
    assert (counts(counters).batches, counts(counters).resends, counts(counters).rows) == (0, 1, 0)


def test_a_sink_that_begins_anew_is_counted_on() -> None:
    """Its row and its history were deleted: the numbers start again, the counters do not."""
    counters = BatchCounters()
    see(counters, 10)
    see(counters, 12)
    assert see(counters, 3) == 3
    assert counts(counters).batches == 5


def test_the_lag_is_that_of_the_newest_line() -> None:
    """Lines come the newest first; one that has none, as of a batch that a recovery has completed, takes it away."""
    counters = BatchCounters()
    see(counters, 10)
    assert counters.lines_wanted(row(decision=12)) == 2
    lags: list[dict[str, Any]] = [{"source_lag": 3}, FIGURES]
    found = [HistoryLine("decided", row(decision=12 - age), figures) for age, figures in enumerate(lags)]
    counters.count("orders", found)
    assert (counts(counters).source_lag, counts(counters).event_delay_s) == (3, None)
