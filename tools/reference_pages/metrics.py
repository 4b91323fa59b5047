"""The page of metrics: those of the exporter, and those of the reference coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric

from spark_2pc_sink.monitoring.exporter import families
from spark_2pc_sink.recovery.report import StatusReport
from spark_2pc_sink.reference.coordinator.states import CoordinatorState, Settings
from spark_2pc_sink.reference.metrics import BrokerMetrics
from spark_2pc_sink.reference.network.request_channel import NetworkMetrics
from spark_2pc_sink.reference.transactions.service import VerificationMetrics
from tools.reference_pages.markdown import code, table

_PAGE: Final = """\
# Metrics for Prometheus

`make reference-pages` makes this page of the code. A test compares it. [Metrics](../metrics.md) says how to serve them,
how to watch them, and which alerts there are.

## `spark-2pc exporter`

{exporter}

A series is left out where there is nothing to be said: `spark_2pc_sink_driver_up` where the database's sessions do not
tell, and all series of a sink that belongs to another Kafka cluster. The label `cause` is one of the
[causes of a halt](errors.md#causes-of-a-halt), the label `step` one of the [steps](../how-it-works.md) of a batch.

## `spark-2pc coordinator --metrics`

{coordinator}
"""


def metrics_page() -> str:
    """The page as Markdown."""
    at_start = BrokerMetrics(
        state=lambda: CoordinatorState.new(Settings()),
        logs=tuple,
        network=NetworkMetrics(),
        verification=VerificationMetrics(),
        transaction_max_timeout_ms=0,
        now_ms=lambda: 0,
    )
    return _PAGE.format(
        exporter=_table(families(StatusReport(sinks=()), {}, took_s=0)),
        coordinator=_table(at_start.collect()),
    )


def _table(found: Iterable[Metric]) -> str:
    return table(("metric", "kind", "labels", "says"), map(_row, found))


def _row(metric: Metric) -> tuple[str, ...]:
    shown = {"counter": [f"{metric.name}_total"], "summary": [f"{metric.name}_sum", f"{metric.name}_count"]}
    labels = getattr(metric, "_labelnames", ())
    names = ", ".join(map(code, shown.get(metric.type, [metric.name])))
    return names, metric.type, ", ".join(map(code, labels)), metric.documentation
