"""The dashboard and the exporter, served on a port of this process as ``spark-2pc`` serves them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waitress import wasyncore

from spark_2pc_sink.metrics_server import MetricsAccess
from spark_2pc_sink.monitoring.dashboard.access import DashboardAccess
from spark_2pc_sink.monitoring.dashboard.app import http_server, make_app
from spark_2pc_sink.monitoring.exporter import metrics_server
from spark_2pc_sink.recovery.status import StatusReport
from tests.unit.monitoring.samples import Shown, sink

DEADLINE_S = 20


@contextmanager
def dashboard(access: DashboardAccess, watched: Shown | None = None) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    server: Any = http_server(make_app(watched or Shown(), access), listening)
    serving = threading.Thread(target=server.run)
    serving.start()
    try:
        yield listening.getsockname()[1]
    finally:
        # Its loop ends when nothing is open; a browser would keep its connections.
        server.trigger.pull_trigger(lambda: wasyncore.close_all(server._map, ignore_all=True))
        serving.join(DEADLINE_S)
        server.task_dispatcher.shutdown()


@contextmanager
def figures(access: MetricsAccess, watched: Shown | None = None) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    server = metrics_server(watched or Shown(found=StatusReport(sinks=(sink(),))), access)
    try:
        yield asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop).result(DEADLINE_S)[1]
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(DEADLINE_S)
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(DEADLINE_S)
        loop.call_soon_threadsafe(loop.stop)
        running.join(DEADLINE_S)
        loop.close()
