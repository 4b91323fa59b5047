"""The exporter: Prometheus metrics of all sinks of a database, read for each scrape."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from spark_2pc_sink.metrics_server import MetricsAccess, MetricsServer
from spark_2pc_sink.monitoring.batch_counters import BatchCounters
from spark_2pc_sink.monitoring.metric_families import families
from spark_2pc_sink.monitoring.watched import Watched
from spark_2pc_sink.recovery.status import StatusReport

_log = logging.getLogger(__name__)


class SinkCollector(Collector):
    """Reads both sides on request. Thread-safe.

    One look runs at a time. Scrapes that had to wait for it use its result, so no scrape takes longer than two looks,
    however many there are.

    Args:
        watched: both sides.
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
        """Add the batches since the previous look."""
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

    Args:
        watched: both sides.
        access: access rules.
        host: a name or an address.
        port: 0 lets the system choose one.

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
