"""The exporter: Prometheus metrics of all sinks of a database, read for each scrape.

Names follow Prometheus' conventions: seconds and bytes, ``_total`` for counters. A series is labelled with the sink's
transactional id; the only other labels are `cause` and `step`, which have few values.

Batches are counted over the lines of the history, each once. The history is trimmed, so a sum over it would shrink,
which Prometheus would take for a restart of the counter. Counting therefore begins with zero at the newest line of the
first look: a restart of the exporter counts no batch twice, and omits batches written while it was down.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from jdbc_state import DECIDED, OWED, HistoryLine, StateRow, history
from spark_2pc_sink.monitoring import Watched
from spark_2pc_sink.recovery.report import StatusReport
from spark_2pc_sink.web_server import MetricsAccess, metrics_app, serve_until_stopped

#: History events that add a batch; a resend adds none, as its batch already has a line.
_BATCH_EVENTS: Final = frozenset({history.DECIDED, history.EMPTY, history.ACCEPTED})


@dataclass
class Sum:
    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value


@dataclass
class SinkCounts:
    """Totals of a sink since the first look at it, as far as the history has them."""

    #: Number of the newest line in them.
    counted: int = 0
    batches: int = 0
    resends: int = 0
    rows: int = 0
    records: int = 0
    record_bytes: int = 0
    bad_rows: int = 0
    seconds: Sum = field(default_factory=Sum)
    #: Seconds by the names of `spark_2pc_sink.recipe.steps.Step` in lower case.
    steps: dict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    #: source_lag, event_delay_s: values of the newest batch, see `BatchReport`; None if its line has none.
    source_lag: float | None = None
    event_delay_s: float | None = None

    def add(self, line: HistoryLine) -> None:
        row = line.row
        if line.event in _BATCH_EVENTS:
            self.batches += 1
            self.rows += row.row_count
            self.records += row.record_count
        elif line.event == history.RESENT:
            self.resends += 1
        figures = line.figures
        self.record_bytes += int(figures.get("record_bytes", 0))
        self.bad_rows += int(figures.get("bad_rows", 0))
        if "seconds" in figures:
            self.seconds.add(float(figures["seconds"]))
        for step, seconds in figures.get("step_seconds", {}).items():
            self.steps[step].add(float(seconds))
        self.source_lag, self.event_delay_s = figures.get("source_lag"), figures.get("event_delay_s")


class BatchCounters:
    def __init__(self) -> None:
        #: The counts by transactional id, of every sink that `lines_wanted` was asked about.
        self.by_sink: dict[str, SinkCounts] = {}

    def lines_wanted(self, row: StateRow) -> int:
        """How many of the sink's newest lines must be read; a batch that Kafka lacks is counted once it is complete."""
        settled = row.decision - (row.status == DECIDED)
        counts = self.by_sink.setdefault(row.transactional_id, SinkCounts(counted=settled))
        if row.decision < counts.counted:
            # The row and its history are gone, and the sink has started over.
            counts.counted = 0
        return row.decision - counts.counted if settled > counts.counted else 0

    def count(self, transactional_id: str, lines: Iterable[HistoryLine]) -> None:
        counts = self.by_sink[transactional_id]
        new = [line for line in lines if line.row.decision > counts.counted and line.row.status != DECIDED]
        for line in sorted(new, key=lambda line: line.row.decision):
            counts.add(line)
            counts.counted = line.row.decision


_SINK: Final = "transactional_id"
#: By name, the description and the value of a figure of one sink; None if there is no value, and then no series.
_Figures = Mapping[str, tuple[str, Callable[[Any], "float | None"]]]

_GAUGES: Final[_Figures] = {
    "spark_2pc_sink_in_doubt_seconds": (
        "Seconds for which the database has had a batch that Kafka lacks; 0 without one.",
        lambda sink: sink.in_doubt_s or 0.0,
    ),
    "spark_2pc_sink_prepared_seconds": (
        "Seconds for which a transaction has been open in Kafka, or prepared, and not decided; 0 without one.",
        lambda sink: sink.prepared_s or 0.0,
    ),
    "spark_2pc_sink_owed": (
        "1 while Kafka is owed a batch that it has lost, else 0.",
        lambda sink: float(sink.row is not None and sink.row.status == OWED),
    ),
    "spark_2pc_sink_driver_up": (
        "1 while the sink's driver is running, by its database sessions, else 0.",
        lambda sink: None if sink.driver is None or sink.driver.alive is None else float(sink.driver.alive),
    ),
    "spark_2pc_sink_last_decision_timestamp_seconds": (
        "When the database last decided a batch, in seconds since 1970.",
        lambda sink: None if sink.row is None or sink.row.decided_at is None else sink.row.decided_at.timestamp(),
    ),
}
_CLAIMS: Final[_Figures] = {
    "spark_2pc_sink_claims": (
        "Claims of the sink's state row: its generation.",
        lambda sink: None if sink.row is None else sink.row.generation,
    ),
}
_COUNTERS: Final[_Figures] = {
    "spark_2pc_sink_batches": ("Batches that both sides have, including empty ones.", lambda done: done.batches),
    "spark_2pc_sink_resends": ("Batches that were sent again because Kafka had lost them.", lambda done: done.resends),
    "spark_2pc_sink_rows": ("Rows of these batches in the table.", lambda done: done.rows),
    "spark_2pc_sink_records": ("Records of these batches in Kafka.", lambda done: done.records),
    "spark_2pc_sink_record_bytes": ("Bytes of these batches in Kafka, compressed.", lambda done: done.record_bytes),
    "spark_2pc_sink_bad_rows": ("Bad rows of these batches, in the dead letters.", lambda done: done.bad_rows),
}
#: Figures of the newest batch.
_LAGS: Final[_Figures] = {
    "spark_2pc_sink_source_lag_records": (
        "Records in the Kafka sources that the query had not read before its newest batch.",
        lambda done: done.source_lag,
    ),
    "spark_2pc_sink_event_delay_seconds": (
        "Age of the newest event when both sides had it, measured before the newest batch.",
        lambda done: done.event_delay_s,
    ),
}


def families(found: StatusReport, counts: Mapping[str, SinkCounts], *, took_s: float) -> Iterator[Metric]:
    """All metrics of one look: of `status`, and of the batches counted since the first look."""
    yield from _sides(found, took_s)
    here = {sink.transactional_id: sink for sink in found.sinks if sink.known and not sink.elsewhere}
    yield from _of_sinks(GaugeMetricFamily, _GAUGES, here)
    halted = GaugeMetricFamily(
        "spark_2pc_sink_needs_decision", "1 if a person must decide, by cause.", labels=[_SINK, "cause"]
    )
    for name, sink in here.items():
        if sink.cause is not None:
            halted.add_metric([name, sink.cause.value], 1)
    yield halted
    yield from _of_sinks(CounterMetricFamily, _CLAIMS, here)
    counted = {name: counts[name] for name in here if name in counts}
    yield from _of_sinks(GaugeMetricFamily, _LAGS, counted)
    yield from _of_sinks(CounterMetricFamily, _COUNTERS, counted)
    whole = SummaryMetricFamily(
        "spark_2pc_sink_batch_seconds", "Seconds from Spark's call until Kafka's commit of a batch.", labels=[_SINK]
    )
    steps = SummaryMetricFamily(
        "spark_2pc_sink_batch_step_seconds", "The same by the steps of a batch.", labels=[_SINK, "step"]
    )
    for name, done in counted.items():
        whole.add_metric([name], done.seconds.count, done.seconds.total)
        for step, taken in done.steps.items():
            steps.add_metric([name, step], taken.count, taken.total)
    yield from (whole, steps)


def _of_sinks(
    kind: type[GaugeMetricFamily | CounterMetricFamily], figures: _Figures, sinks: Mapping[str, object]
) -> Iterator[Metric]:
    for name, (text, figure) in figures.items():
        family = kind(name, text, labels=[_SINK])
        for transactional_id, sink in sinks.items():
            value = figure(sink)
            if value is not None:
                family.add_metric([transactional_id], value)
        yield family


def _sides(found: StatusReport, took_s: float) -> Iterator[Metric]:
    figures = [
        ("spark_2pc_database_up", "1 if the database answered, else 0.", not found.database_problem),
        ("spark_2pc_kafka_up", "1 if Kafka answered, else 0.", not found.kafka_problem),
        ("spark_2pc_scrape_duration_seconds", "How long both sides took to answer.", took_s),
    ]
    if not found.database_problem:
        elsewhere, unreadable = sum(sink.elsewhere for sink in found.sinks), len(found.unreadable)
        about = "Sinks with invalid data on one side, which have no other series."
        figures += [
            ("spark_2pc_sinks", "Sinks of the database with valid data.", len(found.sinks)),
            ("spark_2pc_sinks_elsewhere", "Sinks that write to another Kafka cluster.", elsewhere),
            ("spark_2pc_sinks_unreadable", about, unreadable),
        ]
    for name, text, value in figures:
        yield GaugeMetricFamily(name, text, value=float(value))


_log = logging.getLogger(__name__)


class SinkCollector(Collector):
    """Reads both sides, one look at a time, shared by scrapes that waited: none takes over two looks. Thread-safe."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._counters = BatchCounters()
        self._looking = threading.Lock()
        self._newest: list[Metric] = []
        self._newest_s = float("-inf")

    def collect(self) -> Iterator[Metric]:
        asked_s = time.monotonic()
        with self._looking:
            if self._newest_s < asked_s:
                self._newest, self._newest_s = self._look(), time.monotonic()
            yield from self._newest

    def _look(self) -> list[Metric]:
        begun_s = time.monotonic()
        found = self._watched.look()
        if not found.database_problem:
            self._count(found)
        for side, problem in (("the database", found.database_problem), ("Kafka", found.kafka_problem)):
            if problem:
                _log.warning("%s cannot be read: %s", side, problem)
        return list(families(found, self._counters.by_sink, took_s=time.monotonic() - begun_s))

    def _count(self, found: StatusReport) -> None:
        rows = [sink.row for sink in found.sinks if sink.row is not None]
        wanted = {row.transactional_id: lines for row in rows if (lines := self._counters.lines_wanted(row))}
        if not wanted:
            return
        with self._watched.store() as store:
            for transactional_id, last in wanted.items():
                self._counters.count(transactional_id, store.read_history(transactional_id, last=last))


def serve(watched: Watched, access: MetricsAccess, host: str, port: int) -> None:
    """Serve ``/metrics``; see `serve_until_stopped`."""
    serve_until_stopped(metrics_app(SinkCollector(watched), access), host, port)
