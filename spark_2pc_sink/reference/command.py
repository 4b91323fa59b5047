"""``spark-2pc coordinator``: the broker as a process."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from spark_2pc_sink.extras import extra
from spark_2pc_sink.metrics_server import MetricsAccess
from spark_2pc_sink.reference.broker import Broker
from spark_2pc_sink.reference.config.listeners import address_text
from spark_2pc_sink.reference.config.properties import BrokerProperties

#: Whoever asks by an address, or as localhost.
ADDRESSES_ONLY: Final = MetricsAccess()
#: Open files where the system names no limit; what Java takes there.
_FILES_WITHOUT_LIMIT: Final = 10_240


def serve(
    properties: BrokerProperties,
    data_dir: Path | None,
    *,
    metrics: tuple[str, int] | None = None,
    metrics_access: MetricsAccess = ADDRESSES_ONLY,
) -> int:
    """Serve until SIGTERM or SIGINT, then flush and return 0.

    Prints one line, ``listening on HOST:PORT``, when clients are served.

    Args:
        properties: of the broker.
        data_dir: where everything is kept; None keeps it in memory.
        metrics: host and port for Prometheus, None for no metrics.
        metrics_access: who may read these.

    Raises:
        ConfigurationError, CorruptLogError: as `Broker.start`.
        OSError: an address cannot be bound.
        MissingExtraError: uvloop is not installed, or prometheus-client where metrics are asked for.
    """
    with extra("coordinator"):
        import uvloop  # noqa: PLC0415 - optional
    raise_file_limit()
    uvloop.run(_serve(properties, data_dir, metrics, metrics_access))
    return 0


def raise_file_limit() -> None:
    """Let this process open as many files as it is allowed to, as Java does for Kafka.

    Each partition with records is one, and so is each connection. Shells begin with 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, _FILES_WITHOUT_LIMIT)
    if soft != wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(
    properties: BrokerProperties, data_dir: Path | None, metrics: tuple[str, int] | None, metrics_access: MetricsAccess
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(properties, data_dir)
    await broker.start()
    try:
        if metrics is not None:
            await broker.start_metrics(*metrics, metrics_access)
        # What the start has made stays, and need not be looked through at each collection.
        gc.freeze()
        sys.stdout.write(f"listening on {address_text(*broker.addresses[0])}\n")
        sys.stdout.flush()
        await stopping.wait()
    finally:
        await broker.stop()
