"""The metrics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from spark_2pc_sink.metrics_server import MetricsAccess, MetricsServer
from spark_2pc_sink.reference.metrics.snapshot import Snapshot
from spark_2pc_sink.reference.network.request_channel import NetworkMetrics


def render(snapshot: Snapshot) -> bytes:
    """The figures in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(snapshot))
    return generate_latest(registry)


class Figures(Collector):
    """A snapshot as prometheus_client reads it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """All families of figures."""
        yield from _transaction_figures(self._snapshot)
        log_bytes = GaugeMetricFamily("kafka_log_bytes", "Bytes of a topic's segments.", labels=["topic"])
        for topic, size in sorted(self._snapshot.log_bytes.items()):
            log_bytes.add_metric([topic], size)
        yield log_bytes
        yield from _network_figures(self._snapshot.network)


def _transaction_figures(snapshot: Snapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "kafka_active_transaction_open_time_max_ms",
        "Milliseconds that the transaction open for the longest has been open (KIP-939); 0 without one.",
        value=snapshot.open_time_max_ms,
    )
    yield GaugeMetricFamily(
        "kafka_partitions_with_late_transactions_count",
        "Partitions with a transaction open beyond transaction.max.timeout.ms and five minutes (KIP-664).",
        value=snapshot.late_partitions,
    )
    states = GaugeMetricFamily("kafka_transactions", "Transactional ids by the state they are in.", labels=["state"])
    for state, count in snapshot.transactions.items():
        states.add_metric([state], count)
    yield states
    verification = snapshot.verification
    yield SummaryMetricFamily(
        "kafka_verification_time_ms",
        "Milliseconds from a leader's question about its partitions to the coordinator's answer (KIP-890).",
        count_value=verification.asked,
        sum_value=verification.time_ms,
    )
    yield CounterMetricFamily(
        "kafka_verification_failures",
        "Partitions that were not verified, or not added to their transaction (KIP-890, VerificationFailureRate).",
        value=verification.failures,
    )


def _network_figures(network: NetworkMetrics) -> Iterator[Metric]:
    yield CounterMetricFamily("kafka_requests", "Requests taken up.", value=network.requests)
    connections = CounterMetricFamily("kafka_connections", "Connections by what became of them.", labels=["outcome"])
    connections.add_metric(["accepted"], network.connections_accepted)
    connections.add_metric(["refused"], network.connections_refused)
    connections.add_metric(["idle"], network.connections_idle)
    yield connections
    errors = CounterMetricFamily("kafka_connection_errors", "What ended connections.", labels=["cause"])
    errors.add_metric(["protocol"], network.protocol_errors)
    errors.add_metric(["login"], network.failed_logins)
    errors.add_metric(["handler"], network.handler_errors)
    yield errors


def metrics_server(take: Callable[[], Snapshot], access: MetricsAccess) -> MetricsServer:
    """A server of the figures.

    Args:
        take: makes the snapshot of a request.
        access: who may read them.
    """

    async def page() -> bytes:
        return render(take())

    return MetricsServer(page, content_type=CONTENT_TYPE_LATEST, access=access)
