"""Metrics of the reference coordinator at one moment.

The two that say that something is wrong come from the proposals. A transaction that stays open holds every
read_committed reader back; with two-phase commit no timeout ends it, so KIP-939 ("Metric Changes") measures how long
the oldest has been open. A transaction that a partition leader still has open when no coordinator can is "late":
KIP-664 ("Metrics") counts the partitions with one open for longer than ``transaction.max.timeout.ms`` and five minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState
from spark_2pc_sink.reference.coordinator.states import TransactionState
from spark_2pc_sink.reference.log.log_values import NO_OFFSET
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.network.request_channel import NetworkMetrics
from spark_2pc_sink.reference.transactions.verification import VerificationMetrics

#: What a transaction may last beyond the longest timeout before its partition counts as late (KIP-664, Metrics).
LATE_PADDING_MS: Final = 5 * 60 * 1000


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The figures of one moment.

    Args:
        transactions: how many transactional ids are in each state, by Kafka's name of it.
        open_time_max_ms: how long the transaction that has been open the longest has been; 0 without one.
        late_partitions: partitions with a late transaction.
        log_bytes: of all partitions of each topic.
        network: connections and requests since the start.
        verification: questions of partition leaders since the start.
    """

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
) -> Snapshot:
    """The figures as they are.

    Args:
        state: of the transaction coordinator.
        logs: all that are open.
        network: the server's counters.
        verification: the leaders' counters.
        transaction_max_timeout_ms: ``transaction.max.timeout.ms``.
        now_ms: milliseconds since 1970.
    """
    open_since = [each.start_ms for each in state if each.state is TransactionState.ONGOING]
    log_bytes: Counter[str] = Counter()
    late = 0
    for log in logs:
        log_bytes[log.topic] += log.size_bytes
        late += _is_late(log, late_before_ms=now_ms - transaction_max_timeout_ms - LATE_PADDING_MS)
    counts = Counter(each.state for each in state)
    return Snapshot(
        transactions={each.label: counts[each] for each in TransactionState},
        open_time_max_ms=max(0, now_ms - min(open_since)) if open_since else 0,
        late_partitions=late,
        log_bytes=log_bytes,
        network=network,
        verification=verification,
    )


def _is_late(log: PartitionLog, *, late_before_ms: int) -> bool:
    """Whether the oldest open transaction had its last record before then (ProducerStateManager.hasLateTransaction)."""
    open_now = [each for each in log.producers() if each.current_txn_start_offset != NO_OFFSET]
    if not open_now:
        return False
    oldest = min(open_now, key=lambda each: each.current_txn_start_offset)
    return 0 < oldest.last_timestamp_ms < late_before_ms
