"""Metric families: a look at all sinks as Prometheus metrics.

Names follow Prometheus' conventions: seconds and bytes, ``_total`` for counters. A series is labelled with the sink's
transactional id; the only other labels are `cause` and `step`, which have few values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from jdbc_state import OWED
from spark_2pc_sink.monitoring.batch_counters import SinkCounts

if TYPE_CHECKING:
    from spark_2pc_sink.recovery.report import RecoveryReport
    from spark_2pc_sink.recovery.status import StatusReport

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
    """All metrics of one look.

    Args:
        found: result of `status`.
        counts: batch totals, by transactional id.
        took_s: duration of the look.
    """
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
    """Both sides, and the findings there."""
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
