"""The reference coordinator's metrics.

The two metrics that indicate a problem are from the proposals. A transaction that stays open holds back every
read_committed reader; with two-phase commit no timeout ends it, so KIP-939 ("Metric Changes") measures how long
the oldest has been open. A transaction is "late" if a partition leader still has it open when no coordinator can:
KIP-664 ("Metrics") counts the partitions with one open for longer than ``transaction.max.timeout.ms`` and five minutes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from spark_2pc_sink.reference.coordinator.states import CoordinatorState, StateId
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.network.request_channel import NetworkMetrics
from spark_2pc_sink.reference.transactions.service import VerificationMetrics

#: Allowance beyond the longest timeout before a partition counts as late (KIP-664, Metrics).
LATE_PADDING_MS: Final = 5 * 60 * 1000
#: Less than Prometheus' usual time limit of a scrape, which is 10 s.
_COLLECT_DEADLINE_S: Final = 8.0


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokerMetrics(Collector):
    """All figures, as they are when they are asked for."""

    state: Callable[[], CoordinatorState]
    logs: Callable[[], Iterable[PartitionLog]]
    network: NetworkMetrics
    verification: VerificationMetrics
    transaction_max_timeout_ms: int
    now_ms: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        network, verification = self.network, self.verification
        state, logs, now_ms = self.state(), tuple(self.logs()), self.now_ms()
        open_since = [each.start_ms for each in state if each.state is StateId.ONGOING]
        late_before_ms = now_ms - self.transaction_max_timeout_ms - LATE_PADDING_MS
        yield GaugeMetricFamily(
            "kafka_active_transaction_open_time_max_ms",
            "Milliseconds that the transaction open for the longest has been open (KIP-939); 0 without one.",
            value=max(0, now_ms - min(open_since, default=now_ms)),
        )
        yield GaugeMetricFamily(
            "kafka_partitions_with_late_transactions_count",
            "Partitions with a transaction open beyond transaction.max.timeout.ms and five minutes (KIP-664).",
            value=sum(_is_late(log, late_before_ms=late_before_ms) for log in logs),
        )
        states = GaugeMetricFamily("kafka_transactions", "Transactional ids by state.", labels=["state"])
        counts = Counter(each.state for each in state)
        yield _labelled(states, {each.label: counts[each] for each in StateId})
        yield SummaryMetricFamily(
            "kafka_verification_time_ms",
            "Milliseconds from a partition leader's question to the coordinator's answer (KIP-890).",
            count_value=verification.asked,
            sum_value=verification.time_ms,
        )
        yield CounterMetricFamily(
            "kafka_verification_failures",
            "Partitions that were not verified, or not added to their transaction (KIP-890, VerificationFailureRate).",
            value=verification.failures,
        )
        log_bytes = GaugeMetricFamily("kafka_log_bytes", "Bytes of a topic's segments.", labels=["topic"])
        found: Counter[str] = Counter()
        for log in logs:
            found[log.topic] += log.size_bytes
        yield _labelled(log_bytes, dict(sorted(found.items())))
        yield CounterMetricFamily("kafka_requests", "Requests received.", value=network.requests)
        connections = CounterMetricFamily("kafka_connections", "Connections by outcome.", labels=["outcome"])
        outcomes = ("accepted", "refused", "idle")
        yield _labelled(connections, {each: getattr(network, f"connections_{each}") for each in outcomes})
        errors = CounterMetricFamily("kafka_connection_errors", "Connections closed by an error.", labels=["cause"])
        causes = {"protocol": network.protocol_errors, "login": network.failed_logins}
        yield _labelled(errors, {**causes, "handler": network.handler_errors})


@dataclass(frozen=True, eq=False)
class LoopCollector(Collector):
    """Collects on the node's event loop, for a server in another thread."""

    figures: Collector
    loop: asyncio.AbstractEventLoop

    def collect(self) -> list[Metric]:
        async def collected() -> list[Metric]:
            return list(self.figures.collect())

        return asyncio.run_coroutine_threadsafe(collected(), self.loop).result(_COLLECT_DEADLINE_S)


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _is_late(log: PartitionLog, *, late_before_ms: int) -> bool:
    """Whether the oldest open transaction had its last record before then (ProducerStateManager.hasLateTransaction)."""
    open_now = [(at, each.last_timestamp_ms) for each in log.producers() if (at := each.txn_start_offset) is not None]
    return bool(open_now) and 0 < min(open_now)[1] < late_before_ms
