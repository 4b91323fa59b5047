"""The exporter: counters of batches, families of metrics, and one look at a time, which scrapes that waited share."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import Metric

from jdbc_state import HistoryLine
from spark_2pc_sink.errors import StateStoreError
from spark_2pc_sink.monitoring import exporter
from spark_2pc_sink.monitoring.exporter import BatchCounters, SinkCollector, SinkCounts, families
from spark_2pc_sink.recovery.report import RecoveryReport, StatusReport, UnreadableSink
from spark_2pc_sink.testing import wait_until
from tests.unit.monitoring.samples import EVERYTHING, FIGURES, UNKNOWN, Shown, in_doubt, lines, owed, row, sink

DEADLINE_S = 20


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


def values(found: Iterable[Metric]) -> dict[str, float]:
    return {
        f"{sample.name}{{{','.join(f'{name}={value}' for name, value in sorted(sample.labels.items()))}}}": sample.value
        for family in found
        for sample in family.samples
    }


def of(*sinks: RecoveryReport, **changes: object) -> dict[str, float]:
    report = StatusReport(sinks=sinks, **changes)  # type: ignore[arg-type]
    return values(families(report, {}, took_s=0.5))


def one(found: dict[str, float], name: str, **labels: str) -> float | None:
    inside = ",".join(f"{key}={value}" for key, value in sorted({"transactional_id": "orders", **labels}.items()))
    return found.get(f"spark_2pc_sink_{name}{{{inside}}}")


def test_a_sink_that_is_well_has_zeros() -> None:
    found = of(sink())
    assert [one(found, name) for name in ("in_doubt_seconds", "prepared_seconds", "owed", "driver_up")] == [0, 0, 0, 1]
    assert one(found, "claims_total") == 7
    assert one(found, "last_decision_timestamp_seconds") == row().decided_at.timestamp()  # type: ignore[union-attr]
    assert not any("needs_decision" in name for name in found)


def test_what_is_in_doubt_prepared_or_owed_is_told_apart() -> None:
    assert (one(of(in_doubt()), "in_doubt_seconds"), one(of(in_doubt()), "owed")) == (120, 0)
    assert (one(of(owed()), "in_doubt_seconds"), one(of(owed()), "owed")) == (120, 1)
    assert one(of(sink(prepared_s=33.0, settled=False)), "prepared_seconds") == 33


def test_what_is_not_known_has_no_series() -> None:
    """A sink behind a pooler has no driver that could be seen; a new one has no decision."""
    found = of(sink(driver=UNKNOWN), sink("new", row("new", batch=None, decided_at=None), driver=None))
    assert not any("driver_up" in name for name in found)
    assert one(found, "last_decision_timestamp_seconds", transactional_id="new") is None


def test_sinks_elsewhere_and_unknown_ids_are_only_counted() -> None:
    """Else they would be in doubt for ever, by the eyes of the wrong cluster."""
    found = of(sink("archive", elsewhere=True, settled=False), sink("nobody", known=False, row=None, before=None))
    assert not any("transactional_id" in name for name in found)
    assert (found["spark_2pc_sinks{}"], found["spark_2pc_sinks_elsewhere{}"]) == (2, 1)


def test_both_sides_say_whether_they_answered() -> None:
    found = of(sink())
    assert (found["spark_2pc_database_up{}"], found["spark_2pc_kafka_up{}"]) == (1, 1)
    found = of(sink(), kafka_problem="no broker answered")
    assert (found["spark_2pc_database_up{}"], found["spark_2pc_kafka_up{}"]) == (1, 0)
    found = of(database_problem="no connection", unreadable=(UnreadableSink("x", "kafka", "y"),))
    assert (found["spark_2pc_database_up{}"], found["spark_2pc_kafka_up{}"]) == (0, 1)
    assert "spark_2pc_sinks_unreadable{}" not in found, "nobody has looked"
    assert found["spark_2pc_scrape_duration_seconds{}"] == 0.5


def test_the_history_s_sums_are_counters_and_summaries() -> None:
    counts = SinkCounts()
    counts.add(lines({"record_bytes": 812, "bad_rows": 3, "seconds": 1.5, "step_seconds": {"produce": 0.9}})[0])
    found = values(families(StatusReport(sinks=(sink(),)), {"orders": counts, "gone": SinkCounts()}, took_s=0))
    names = ("batches_total", "resends_total", "rows_total", "records_total", "record_bytes_total", "bad_rows_total")
    assert [one(found, name) for name in names] == [1, 0, 1_200, 1_100, 812, 3]
    assert (one(found, "batch_seconds_count"), one(found, "batch_seconds_sum")) == (1, 1.5)
    assert one(found, "batch_step_seconds_sum", step="produce") == 0.9
    assert not any("gone" in name for name in found), "a sink that is gone has no series any more"


def test_names_follow_the_conventions_and_labels_are_few() -> None:
    """Base units, lower case, ``_total`` for counters; no label whose values nobody bounds but the sink's."""
    counts = {each.transactional_id: SinkCounts() for each in EVERYTHING.sinks}
    for family in families(EVERYTHING, counts, took_s=0):
        assert re.fullmatch(r"spark_2pc_[a-z_]+", family.name)
        assert not re.search(r"_(ms|millis|minutes|mb)(_|$)", family.name)
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert set(sample.labels) <= {"transactional_id", "cause", "step"}


def value(collector: SinkCollector, name: str) -> float:
    (found,) = [sample.value for family in collector.collect() for sample in family.samples if sample.name == name]
    return found


def test_the_history_is_read_for_new_batches_alone() -> None:
    first = StatusReport(sinks=(sink(of=row(decision=41)),))
    watched = Shown(found=first, history=tuple(lines(FIGURES, FIGURES)))
    collector = SinkCollector(watched)
    assert value(collector, "spark_2pc_sink_batches_total") == 0
    object.__setattr__(watched, "found", StatusReport(sinks=(sink(of=row(decision=42)),)))
    assert value(collector, "spark_2pc_sink_batches_total") == 1
    assert value(collector, "spark_2pc_sink_batches_total") == 1


@dataclass(frozen=True, kw_only=True)
class Slow(Shown):
    """A look that ends when the test says so."""

    looks: list[threading.Event] = field(default_factory=list)

    def look(self, transactional_id: str | None = None) -> StatusReport:
        go_on = threading.Event()
        self.looks.append(go_on)
        assert go_on.wait(DEADLINE_S)
        return super().look(transactional_id)


def test_scrapes_that_come_meanwhile_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many scrape: they take the result of the look that is under way when they ask."""
    asked: list[float] = []

    def monotonic() -> float:
        asked.append(time.monotonic())
        return asked[-1]

    monkeypatch.setattr(exporter, "time", SimpleNamespace(monotonic=monotonic))
    watched = Slow()
    collector = SinkCollector(watched)
    scrapes = [threading.Thread(target=lambda: list(collector.collect())) for _ in range(8)]
    scrapes[0].start()
    wait_until(lambda: len(watched.looks) == 1, what="the first look")
    for scrape in scrapes[1:]:
        scrape.start()
    # Each scrape asks for the time, and the look once more.
    wait_until(lambda: len(asked) == len(scrapes) + 1, what="all scrapes to have come")
    watched.looks[0].set()
    wait_until(lambda: not any(scrape.is_alive() for scrape in scrapes), what="all scrapes")
    assert len(watched.looks) == 1


def test_a_look_that_fails_fails_its_scrape_alone() -> None:
    broken = Shown()
    collector = SinkCollector(broken)
    problem = StateStoreError(operation="read", detail="permission denied")

    def refuse(transactional_id: str | None = None) -> StatusReport:
        raise problem

    object.__setattr__(broken, "look", refuse)
    with pytest.raises(StateStoreError):
        list(collector.collect())
    object.__delattr__(broken, "look")
    assert value(collector, "spark_2pc_database_up") == 1
