"""The exporter: Prometheus metrics of all sinks of a database, read for each scrape.

Names follow Prometheus' conventions: seconds and bytes, ``_total`` for counters. A series is labelled with the sink's
transactional id; the only other labels are `cause` and `step`, which have few values.

Batches are counted over the lines of the history, each once. The history is trimmed, so a sum over it would shrink,
which Prometheus would take for a restart of the counter. Counting therefore begins with zero at the newest line of the
first look: a restart of the exporter counts no batch twice, and omits batches written while it was down.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from jdbc_state import DECIDED, OWED, HistoryLine, StateRow, history
from spark_2pc_sink.metrics_server import MetricsAccess, MetricsServer
from spark_2pc_sink.monitoring.watched import Watched
from spark_2pc_sink.recovery.status import StatusReport

if TYPE_CHECKING:
    from spark_2pc_sink.recovery.report import RecoveryReport

#: History events that add a batch; a resend adds none, as its batch already has a line.
_BATCH_EVENTS: Final = frozenset({history.DECIDED, history.EMPTY, history.ACCEPTED})


@dataclass
class Sum:
    """Number and sum of measurements."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add one measurement."""
        self.count += 1
        self.total += value


@dataclass
class SinkCounts:
    """Totals of a sink since the first look at it.

    Attributes:
        record_bytes: compressed bytes of their record batches, as far as the history has them.
        bad_rows: rows sent to the dead letters instead, as far as the history has them.
        seconds: time from Spark's call until Kafka's commit, as far as the history has it.
        steps: the same by the names of `spark_2pc_sink.recipe.steps.Step` in lower case.
        source_lag, event_delay_s: values of the newest batch, see `BatchReport`; None if its line has none.
    """

    batches: int = 0
    resends: int = 0
    rows: int = 0
    records: int = 0
    record_bytes: int = 0
    bad_rows: int = 0
    seconds: Sum = field(default_factory=Sum)
    steps: dict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    source_lag: float | None = None
    event_delay_s: float | None = None

    def add(self, line: HistoryLine) -> None:
        """Count one line."""
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
    """The counts of all sinks, kept from one look to the next."""

    def __init__(self) -> None:
        self._counts: dict[str, SinkCounts] = {}
        # Number of each sink's newest counted line.
        self._counted: dict[str, int] = {}

    def lines_wanted(self, row: StateRow) -> int:
        """How many of the sink's newest lines must be read, 0 for none.

        The line of a batch that Kafka lacks is counted later, when it is complete.
        """
        settled = row.decision - (row.status == DECIDED)
        counted = self._counted.setdefault(row.transactional_id, settled)
        self._counts.setdefault(row.transactional_id, SinkCounts())
        if row.decision < counted:
            # The row and its history are gone, and the sink has started over.
            self._counted[row.transactional_id] = counted = 0
        return row.decision - counted if settled > counted else 0

    def count(self, transactional_id: str, lines: Iterable[HistoryLine]) -> None:
        """Count those of a sink's newest lines that are new and settled."""
        counted = self._counted[transactional_id]
        new = [line for line in lines if line.row.decision > counted and line.row.status != DECIDED]
        for line in sorted(new, key=lambda line: line.row.decision):
            self._counts[transactional_id].add(line)
        self._counted[transactional_id] = max([counted, *(line.row.decision for line in new)])

    @property
    def by_sink(self) -> Mapping[str, SinkCounts]:
        """The counts by transactional id, of every sink that `lines_wanted` was asked about."""
        return self._counts


_SINK: Final = "transactional_id"
#: A figure of one sink; None if there is no value, and then no series.
_Figure = Callable[["RecoveryReport"], "float | None"]


def _in_doubt_s(sink: RecoveryReport) -> float:
    return sink.in_doubt_s or 0.0


def _prepared_s(sink: RecoveryReport) -> float:
    return sink.prepared_s or 0.0


def _owed(sink: RecoveryReport) -> float:
    return float(sink.row is not None and sink.row.status == OWED)


def _driver_up(sink: RecoveryReport) -> float | None:
    return None if sink.driver is None or sink.driver.alive is None else float(sink.driver.alive)


def _last_decision(sink: RecoveryReport) -> float | None:
    return None if sink.row is None or sink.row.decided_at is None else sink.row.decided_at.timestamp()


_GAUGES: Final[tuple[tuple[str, str, _Figure], ...]] = (
    (
        "spark_2pc_sink_in_doubt_seconds",
        "Seconds for which the database has had a batch that Kafka lacks; 0 without one.",
        _in_doubt_s,
    ),
    (
        "spark_2pc_sink_prepared_seconds",
        "Seconds for which a transaction has been open in Kafka, or prepared, and not decided; 0 without one.",
        _prepared_s,
    ),
    ("spark_2pc_sink_owed", "1 while Kafka is owed a batch that it has lost, else 0.", _owed),
    ("spark_2pc_sink_driver_up", "1 while the sink's driver lives, by its database sessions, else 0.", _driver_up),
    (
        "spark_2pc_sink_last_decision_timestamp_seconds",
        "When the database last decided a batch, in seconds since 1970.",
        _last_decision,
    ),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[SinkCounts], int]], ...]] = (
    ("spark_2pc_sink_batches", "Batches that both sides have, empty ones among them.", lambda done: done.batches),
    ("spark_2pc_sink_resends", "Batches that were sent again, as Kafka had lost them.", lambda done: done.resends),
    ("spark_2pc_sink_rows", "Rows of these batches in the table.", lambda done: done.rows),
    ("spark_2pc_sink_records", "Records of these batches in Kafka.", lambda done: done.records),
    (
        "spark_2pc_sink_record_bytes",
        "Bytes of these batches in Kafka, compressed.",
        lambda done: done.record_bytes,
    ),
    ("spark_2pc_sink_bad_rows", "Bad rows of these batches, in the dead letters.", lambda done: done.bad_rows),
)
#: Figures of the newest batch.
_LAGS: Final[tuple[tuple[str, str, Callable[[SinkCounts], float | None]], ...]] = (
    (
        "spark_2pc_sink_source_lag_records",
        "Records that Kafka sources had beyond what the query had read, before its newest batch.",
        lambda done: done.source_lag,
    ),
    (
        "spark_2pc_sink_event_delay_seconds",
        "How old the newest event was when both sides had it, before the newest batch.",
        lambda done: done.event_delay_s,
    ),
)


def families(found: StatusReport, counts: Mapping[str, SinkCounts], *, took_s: float) -> Iterator[Metric]:
    """All metrics of one look."""
    yield from _sides(found, took_s)
    here = [sink for sink in found.sinks if sink.known and not sink.elsewhere]
    for name, text, figure in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=[_SINK])
        for sink in here:
            value = figure(sink)
            if value is not None:
                gauge.add_metric([sink.transactional_id], value)
        yield gauge
    halted = GaugeMetricFamily(
        "spark_2pc_sink_needs_decision", "1 where a person has to decide, by cause.", labels=[_SINK, "cause"]
    )
    claims = CounterMetricFamily(
        "spark_2pc_sink_claims", "Claims of the sink's state row: its generation.", labels=[_SINK]
    )
    for sink in here:
        if sink.cause is not None:
            halted.add_metric([sink.transactional_id, sink.cause.value], 1)
        if sink.row is not None:
            claims.add_metric([sink.transactional_id], sink.row.generation)
    yield from (halted, claims)
    ids = [sink.transactional_id for sink in here]
    yield from _batches({each: counts[each] for each in ids if each in counts})


def _sides(found: StatusReport, took_s: float) -> Iterator[Metric]:
    database, kafka = not found.database_problem, not found.kafka_problem
    yield GaugeMetricFamily("spark_2pc_database_up", "1 where the database answered, else 0.", value=float(database))
    yield GaugeMetricFamily("spark_2pc_kafka_up", "1 where Kafka answered, else 0.", value=float(kafka))
    yield GaugeMetricFamily("spark_2pc_scrape_duration_seconds", "How long both sides took to answer.", value=took_s)
    if database:
        elsewhere = sum(1 for sink in found.sinks if sink.elsewhere)
        yield GaugeMetricFamily(
            "spark_2pc_sinks", "Sinks of the database that can be understood.", value=len(found.sinks)
        )
        yield GaugeMetricFamily(
            "spark_2pc_sinks_elsewhere", "Sinks that write to another Kafka cluster.", value=elsewhere
        )
        yield GaugeMetricFamily(
            "spark_2pc_sinks_unreadable",
            "Sinks of which one side cannot be understood; no other series has them.",
            value=len(found.unreadable),
        )


def _batches(counts: Mapping[str, SinkCounts]) -> Iterator[Metric]:
    """Totals of the history's batches since the first look."""
    for name, text, newest in _LAGS:
        gauge = GaugeMetricFamily(name, text, labels=[_SINK])
        for sink, done in counts.items():
            value = newest(done)
            if value is not None:
                gauge.add_metric([sink], value)
        yield gauge
    for name, text, count in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=[_SINK])
        for sink, done in counts.items():
            counter.add_metric([sink], count(done))
        yield counter
    whole = SummaryMetricFamily(
        "spark_2pc_sink_batch_seconds", "Seconds from Spark's call until Kafka's commit, of a batch.", labels=[_SINK]
    )
    steps = SummaryMetricFamily(
        "spark_2pc_sink_batch_step_seconds", "The same by the steps of a batch.", labels=[_SINK, "step"]
    )
    for sink, done in counts.items():
        whole.add_metric([sink], done.seconds.count, done.seconds.total)
        for step, taken in done.steps.items():
            steps.add_metric([sink, step], taken.count, taken.total)
    yield from (whole, steps)


_log = logging.getLogger(__name__)


class SinkCollector(Collector):
    """Reads both sides on request. Thread-safe.

    One look runs at a time. Scrapes that had to wait for it use its result, so no scrape takes longer than two looks,
    however many there are.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._counters = BatchCounters()
        self._looking = threading.Lock()
        self._newest: list[Metric] = []
        self._newest_s = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """All metrics.

        Raises:
            DualWriteError: a side refused a request; the scrape fails, and the error is logged.
        """
        asked_s = time.monotonic()
        with self._looking:
            if self._newest_s < asked_s:
                self._newest = self._look()
                self._newest_s = time.monotonic()
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
    """Serve ``/metrics`` until SIGTERM or SIGINT.

    Prints one line, ``listening on HOST:PORT``, when it is ready.

    Raises:
        OSError: the address cannot be bound.
    """
    asyncio.run(_serve(metrics_server(watched, access), host, port))


def metrics_server(watched: Watched, access: MetricsAccess) -> MetricsServer:
    """A server for the metrics, which reads both sides in its own thread."""
    # Without describing it: both sides are read for scrapes only.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SinkCollector(watched))
    page = partial(asyncio.to_thread, generate_latest, registry)
    return MetricsServer(page, content_type=CONTENT_TYPE_LATEST, access=access)


async def _serve(server: MetricsServer, host: str, port: int) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _, bound = await server.start(host, port)
    sys.stdout.write(f"listening on {host}:{bound}\n")
    sys.stdout.flush()
    await stopping.wait()
    await server.stop()
