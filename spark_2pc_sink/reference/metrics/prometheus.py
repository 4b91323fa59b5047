"""Prometheus endpoint of the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from spark_2pc_sink.reference.metrics.snapshot import Snapshot
from spark_2pc_sink.reference.network.request_channel import NetworkMetrics

#: A scraper sends a request of some hundred bytes, at once, and is alone.
_REQUEST_BYTES_MAX: Final = 8192
_REQUEST_DEADLINE_S: Final = 5.0
_CONNECTIONS_MAX: Final = 16


def render(snapshot: Snapshot) -> bytes:
    """The figures in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(snapshot))
    return generate_latest(registry)


class _Figures(Collector):
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


class MetricsServer:
    """Answers ``GET /metrics``, one request per connection.

    Args:
        take: makes the snapshot of a request.
    """

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take
        self._open = 0

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address.

        Args:
            host: a name or an address.
            port: 0 lets the system choose one.

        Raises:
            OSError: it cannot be bound.
        """
        self._server = await asyncio.start_server(self._serve, host, port, limit=_REQUEST_BYTES_MAX)
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def stop(self) -> None:
        """Listen no more."""
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS_MAX:
                await asyncio.wait_for(self._exchange(reader, writer), _REQUEST_DEADLINE_S)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError, ConnectionError):
            writer.transport.abort()  # no request, or nobody who reads the answer: there is nobody to tell
        finally:
            self._open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
        await writer.drain()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return _response("405 Method Not Allowed", "text/plain", b"GET only\n")
        if path != b"/metrics":
            return _response("404 Not Found", "text/plain", b"see /metrics\n")
        return _response("200 OK", CONTENT_TYPE_LATEST, render(self._take()))


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
