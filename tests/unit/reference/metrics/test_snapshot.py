"""The figures, what they count, and the page that shows them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_2pc_sink import metrics_server as served
from spark_2pc_sink.metrics_server import MetricsAccess
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState, Settings
from spark_2pc_sink.reference.coordinator.states import StateId, TransactionMetadata
from spark_2pc_sink.reference.log.log_values import LogSettings
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.metrics import LATE_PADDING_MS, MetricsSnapshot, metrics_server, render, take_snapshot
from spark_2pc_sink.reference.network.request_channel import NetworkMetrics
from spark_2pc_sink.reference.transactions.verification import VerificationMetrics
from spark_2pc_sink.wire.batch_format import read_header
from tests.unit.reference.coordinator.driver import metadata
from tests.unit.reference.node import START_MS, batch

TIMEOUT_MS = 900_000
SNAPSHOT = MetricsSnapshot(
    transactions={"Ongoing": 2, "Empty": 0},
    open_time_max_ms=1500,
    late_partitions=1,
    log_bytes={'a"b': 10, "orders": 20},
    network=NetworkMetrics(requests=7, connections_accepted=3, protocol_errors=1),
    verification=VerificationMetrics(asked=5, time_ms=2.5, failures=3),
)


def transaction(name: str, state: StateId, start_ms: int) -> TransactionMetadata:
    return metadata(state, transactional_id=name, start_ms=start_ms)


def coordinator(*transactions: TransactionMetadata) -> CoordinatorState:
    state = CoordinatorState.new(Settings(), partition_count=3)
    for each in transactions:
        state = state.with_metadata(each.transactional_id, each)
    return state


def partition(*pairs: tuple[int, int], topic: str = "orders") -> PartitionLog:
    """A partition with one record of each open transaction (producer id, time)."""
    log = PartitionLog.open(None, topic=topic, partition=0, leader_epoch=0, settings=LogSettings(verification=False))
    for producer_id, timestamp_ms in pairs:
        records = batch(b"v", pair=(producer_id, 0), sequence=0, timestamp_ms=timestamp_ms)
        log.append(records, read_header(records), now_ms=START_MS)
    return log


def snapshot(*logs: PartitionLog, state: CoordinatorState | None = None, now_ms: int = START_MS) -> MetricsSnapshot:
    return take_snapshot(
        state or coordinator(),
        logs,
        NetworkMetrics(),
        VerificationMetrics(),
        transaction_max_timeout_ms=TIMEOUT_MS,
        now_ms=now_ms,
    )


def test_the_oldest_open_transaction_is_measured() -> None:
    """KIP-939, Metric Changes: the max time a currently-open transaction has been open."""
    state = coordinator(
        transaction("a", StateId.ONGOING, START_MS - 300),
        transaction("b", StateId.ONGOING, START_MS - 2000),
        transaction("c", StateId.PREPARE_COMMIT, START_MS - 9000),
        transaction("d", StateId.COMPLETE_COMMIT, START_MS - 9000),
    )
    found = snapshot(state=state)
    assert found.open_time_max_ms == 2000
    assert found.transactions == {
        **dict.fromkeys((each.label for each in StateId), 0),
        "Ongoing": 2,
        "PrepareCommit": 1,
        "CompleteCommit": 1,
    }
    assert snapshot().open_time_max_ms == 0
    assert snapshot(state=state, now_ms=START_MS - 5000).open_time_max_ms == 0  # a clock that was set back


@pytest.mark.parametrize(("beyond_ms", "late"), [(0, 0), (1, 1)])
def test_a_transaction_is_late_after_the_longest_timeout_and_five_minutes(beyond_ms: int, late: int) -> None:
    """KIP-664, Metrics: partitions which have open transactions with durations exceeding that (plus 5 minutes)."""
    now_ms = START_MS + TIMEOUT_MS + LATE_PADDING_MS + beyond_ms
    logs = [partition((7, START_MS), (8, START_MS + 5)), partition((7, START_MS + 100_000)), partition()]
    assert LATE_PADDING_MS == 300_000
    assert snapshot(*logs, now_ms=now_ms).late_partitions == late


def test_the_text_is_what_prometheus_reads() -> None:
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(render(SNAPSHOT).decode())
        for sample in family.samples
    }
    assert samples == {
        ("kafka_active_transaction_open_time_max_ms",): 1500,
        ("kafka_partitions_with_late_transactions_count",): 1,
        ("kafka_transactions", "Ongoing"): 2,
        ("kafka_transactions", "Empty"): 0,
        ("kafka_verification_time_ms_count",): 5,
        ("kafka_verification_time_ms_sum",): 2.5,
        ("kafka_verification_failures_total",): 3,
        ("kafka_log_bytes", 'a"b'): 10,
        ("kafka_log_bytes", "orders"): 20,
        ("kafka_requests_total",): 7,
        ("kafka_connections_total", "accepted"): 3,
        ("kafka_connections_total", "refused"): 0,
        ("kafka_connections_total", "idle"): 0,
        ("kafka_connection_errors_total", "protocol"): 1,
        ("kafka_connection_errors_total", "login"): 0,
        ("kafka_connection_errors_total", "handler"): 0,
    }


async def test_the_page_is_served() -> None:
    server = metrics_server(lambda: replace(SNAPSHOT, late_partitions=4), MetricsAccess())
    host, port = await server.start("127.0.0.1", 0)
    with await asyncio.to_thread(urlopen, f"http://{host}:{port}/metrics", timeout=10) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=")
        assert b"kafka_partitions_with_late_transactions_count 4.0\n" in page.read()
    await server.stop()


async def test_who_sends_nothing_or_is_one_too_many_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(served, "_CLIENT_DEADLINE_S", 0.5)
    server = metrics_server(lambda: SNAPSHOT, MetricsAccess())
    address = await server.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection(*address) for _ in range(3)]
    # The third first, then those whose time is over.
    ended = [asyncio.ensure_future(reader.read()) for reader, _ in reversed(silent)]
    done, _ = await asyncio.wait(ended, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert done == {ended[0]}
    done, _ = await asyncio.wait(ended, timeout=10)
    assert done == set(ended)
    for each in ended:
        assert each.exception() is not None or each.result() == b""
    for _, writer in silent:
        writer.close()
    await server.stop()
