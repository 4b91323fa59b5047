"""The figures, what they count, and the page that shows them."""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import ExitStack
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_2pc_sink import web_server
from spark_2pc_sink.reference.coordinator.states import CoordinatorState, StateId
from spark_2pc_sink.reference.log.partition_log import LogSettings, PartitionLog
from spark_2pc_sink.reference.metrics import LATE_PADDING_MS, BrokerMetrics, LoopCollector
from spark_2pc_sink.reference.network.request_channel import NetworkMetrics
from spark_2pc_sink.reference.transactions.service import VerificationMetrics
from spark_2pc_sink.web_server import REQUEST_BYTES_MAX, MetricsAccess, metrics_app
from spark_2pc_sink.wire.batch_format import read_header
from tests.unit.monitoring.samples import served
from tests.unit.reference.coordinator.driver import Driver, metadata
from tests.unit.reference.node import START_MS, batch

TIMEOUT_MS = 900_000


def partition(*pairs: tuple[int, int], topic: str = "orders") -> PartitionLog:
    """A partition with one record of each open transaction (producer id, time)."""
    log = PartitionLog.open(None, topic=topic, partition=0, leader_epoch=0, settings=LogSettings(verification=False))
    for producer_id, timestamp_ms in pairs:
        records = batch(b"v", pair=(producer_id, 0), sequence=0, timestamp_ms=timestamp_ms)
        log.append(records, read_header(records), now_ms=START_MS)
    return log


def metrics(*logs: PartitionLog, state: CoordinatorState | None = None, now_ms: int = START_MS) -> BrokerMetrics:
    return BrokerMetrics(
        state=lambda: state or Driver.of().state,
        logs=lambda: logs,
        network=NetworkMetrics(requests=7, connections_accepted=3, protocol_errors=1),
        verification=VerificationMetrics(asked=5, time_ms=2.5, failures=3),
        transaction_max_timeout_ms=TIMEOUT_MS,
        now_ms=lambda: now_ms,
    )


def figures(found: BrokerMetrics) -> dict[tuple[str, ...], float]:
    samples = (sample for family in found.collect() for sample in family.samples)
    return {(sample.name.removeprefix("kafka_"), *sample.labels.values()): sample.value for sample in samples}


OPEN_MS = ("active_transaction_open_time_max_ms",)
LATE = ("partitions_with_late_transactions_count",)


def test_the_oldest_open_transaction_is_measured() -> None:
    """KIP-939, Metric Changes: the max time a currently-open transaction has been open."""
    state = Driver.of(
        metadata(StateId.ONGOING, transactional_id="a", start_ms=START_MS - 300),
        metadata(StateId.ONGOING, transactional_id="b", start_ms=START_MS - 2000),
        metadata(StateId.PREPARE_COMMIT, transactional_id="c", start_ms=START_MS - 9000),
        metadata(StateId.COMPLETE_COMMIT, transactional_id="d", start_ms=START_MS - 9000),
    ).state
    found = figures(metrics(state=state))
    assert found[OPEN_MS] == 2000
    assert {labels[0]: value for (name, *labels), value in found.items() if name == "transactions"} == {
        **dict.fromkeys((each.label for each in StateId), 0),
        "Ongoing": 2,
        "PrepareCommit": 1,
        "CompleteCommit": 1,
    }
    assert figures(metrics())[OPEN_MS] == 0
    assert figures(metrics(state=state, now_ms=START_MS - 5000))[OPEN_MS] == 0  # a clock that was set back


@pytest.mark.parametrize(("beyond_ms", "late"), [(0, 0), (1, 1)])
def test_a_transaction_is_late_after_the_longest_timeout_and_five_minutes(beyond_ms: int, late: int) -> None:
    """KIP-664, Metrics: partitions which have open transactions with durations exceeding that (plus 5 minutes)."""
    now_ms = START_MS + TIMEOUT_MS + LATE_PADDING_MS + beyond_ms
    logs = [partition((7, START_MS), (8, START_MS + 5)), partition((7, START_MS + 100_000)), partition()]
    assert LATE_PADDING_MS == 300_000
    assert figures(metrics(*logs, now_ms=now_ms))[LATE] == late


async def test_the_page_is_what_prometheus_reads() -> None:
    """Collected on the loop of the node, which the server's threads leave alone."""
    logs = [partition((7, START_MS), topic='a"b'), partition((7, START_MS), (8, START_MS))]
    state = Driver.of(metadata(StateId.ONGOING, start_ms=START_MS - 1500)).state
    collector = LoopCollector(metrics(*logs, state=state), asyncio.get_running_loop())
    with (
        served(metrics_app(collector, MetricsAccess())) as port,
        await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/metrics", timeout=10) as page,
    ):
        assert page.headers["Content-Type"].startswith("text/plain; version=")
        body = page.read()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    states = {("kafka_transactions", each.label): each is StateId.ONGOING for each in StateId}
    assert samples == states | {
        ("kafka_active_transaction_open_time_max_ms",): 1500,
        ("kafka_partitions_with_late_transactions_count",): 0,
        ("kafka_verification_time_ms_count",): 5,
        ("kafka_verification_time_ms_sum",): 2.5,
        ("kafka_verification_failures_total",): 3,
        ("kafka_log_bytes", 'a"b'): logs[0].size_bytes,
        ("kafka_log_bytes", "orders"): 2 * logs[0].size_bytes,
        ("kafka_requests_total",): 7,
        ("kafka_connections_total", "accepted"): 3,
        ("kafka_connections_total", "refused"): 0,
        ("kafka_connections_total", "idle"): 0,
        ("kafka_connection_errors_total", "protocol"): 1,
        ("kafka_connection_errors_total", "login"): 0,
        ("kafka_connection_errors_total", "handler"): 0,
    }


def test_who_sends_nothing_or_too_much_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "CLIENT_DEADLINE_S", 1)
    with served(metrics_app(metrics(), MetricsAccess())) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=10) as endless:
            endless.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX)
            assert endless.recv(100).startswith(b"HTTP/1.0 431")


def test_who_is_one_too_many_waits_for_a_silent_one_to_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "CLIENT_DEADLINE_S", 1)
    monkeypatch.setattr(web_server, "SOCKETS_MAX", 4)
    with served(metrics_app(metrics(), MetricsAccess())) as port, ExitStack() as connected:
        address = ("127.0.0.1", port)
        *silent, late = (connected.enter_context(socket.create_connection(address, timeout=10)) for _ in range(3))
        late.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        ready, _, _ = select.select([*silent, late], [], [], 10)
        assert ready
        assert late not in ready
        assert [each.recv(1) for each in silent] == [b"", b""]
        assert late.recv(100).startswith(b"HTTP/1.1 200")
