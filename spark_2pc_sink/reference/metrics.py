"""A snapshot of the reference coordinator's metrics.

The two metrics that indicate a problem are from the proposals. A transaction that stays open holds back every
read_committed reader; with two-phase commit no timeout ends it, so KIP-939 ("Metric Changes") measures how long
the oldest has been open. A transaction is "late" if a partition leader still has it open when no coordinator can:
KIP-664 ("Metrics") counts the partitions with one open for longer than ``transaction.max.timeout.ms`` and five minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from spark_2pc_sink.metrics_server import MetricsAccess, MetricsServer
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState
from spark_2pc_sink.reference.coordinator.states import StateId
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.network.request_channel import NetworkMetrics
from spark_2pc_sink.reference.transactions.verification import VerificationMetrics

_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)
#: Allowance beyond the longest timeout before a partition counts as late (KIP-664, Metrics).
LATE_PADDING_MS: Final = 5 * 60 * 1000


@dataclass(frozen=True, kw_only=True)
class MetricsSnapshot:
    """All figures at one moment; ``open_time_max_ms`` is 0 without an open transaction."""

    transactions: Mapping[str, int]
    open_time_max_ms: int
    late_partitions: int
    log_bytes: Mapping[str, int]
    network: NetworkMetrics
    verification: VerificationMetrics


def take_snapshot(
    state: CoordinatorState,
    logs: Iterable[PartitionLog],
    network: NetworkMetrics,
    verification: VerificationMetrics,
    *,
    transaction_max_timeout_ms: int,
    now_ms: int,
) -> MetricsSnapshot:
    open_since = [each.start_ms for each in state if each.state is StateId.ONGOING]
    log_bytes: Counter[str] = Counter()
    late = 0
    for log in logs:
        log_bytes[log.topic] += log.size_bytes
        late += _is_late(log, late_before_ms=now_ms - transaction_max_timeout_ms - LATE_PADDING_MS)
    counts = Counter(each.state for each in state)
    return MetricsSnapshot(
        transactions={each.label: counts[each] for each in StateId},
        open_time_max_ms=max(0, now_ms - min(open_since)) if open_since else 0,
        late_partitions=late,
        log_bytes=log_bytes,
        network=network,
        verification=verification,
    )


def _is_late(log: PartitionLog, *, late_before_ms: int) -> bool:
    """Whether the oldest open transaction had its last record before then (ProducerStateManager.hasLateTransaction)."""
    open_now = [(each.txn_start_offset, each) for each in log.producers() if each.txn_start_offset is not None]
    if not open_now:
        return False
    _, oldest = min(open_now, key=lambda each: each[0])
    return 0 < oldest.last_timestamp_ms < late_before_ms


def render(snapshot: MetricsSnapshot) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(snapshot))
    return generate_latest(registry)


class Figures(Collector):
    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from _transaction_figures(self._snapshot)
        log_bytes = GaugeMetricFamily("kafka_log_bytes", "Bytes of a topic's segments.", labels=["topic"])
        yield _labelled(log_bytes, dict(sorted(self._snapshot.log_bytes.items())))
        yield from _network_figures(self._snapshot.network)


def _labelled(family: _Family, values: Mapping[str, float]) -> _Family:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _transaction_figures(snapshot: MetricsSnapshot) -> Iterator[Metric]:
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
    yield _labelled(states, snapshot.transactions)
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
    outcomes = ("accepted", "refused", "idle")
    yield _labelled(connections, {each: getattr(network, f"connections_{each}") for each in outcomes})
    errors = CounterMetricFamily("kafka_connection_errors", "What ended connections.", labels=["cause"])
    causes = {"protocol": network.protocol_errors, "login": network.failed_logins, "handler": network.handler_errors}
    yield _labelled(errors, causes)


def metrics_server(take: Callable[[], MetricsSnapshot], access: MetricsAccess) -> MetricsServer:
    async def page() -> bytes:
        return render(take())

    return MetricsServer(page, content_type=CONTENT_TYPE_LATEST, access=access)
