"""``spark-2pc coordinator``: assembles catalog, coordinators, handlers and listeners; starts and stops them.

Start: the catalog (it locks the directory and counts the start), then recovery of logs, groups and transactions, then
the listeners: clients never meet a coordinator that is loading. Everything answered is durable, so a crash instead of
a stop loses nothing.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from spark_2pc_sink.clock import now_ms, steady_ms
from spark_2pc_sink.extras import extra
from spark_2pc_sink.metrics_server import MetricsAccess, MetricsServer
from spark_2pc_sink.reference.config.properties import BrokerProperties, address_text
from spark_2pc_sink.reference.groups.service import GroupService
from spark_2pc_sink.reference.groups.store import GroupStore
from spark_2pc_sink.reference.handlers.acls import AclHandlers
from spark_2pc_sink.reference.handlers.cluster import ApiVersionsHandlers, ClusterHandlers
from spark_2pc_sink.reference.handlers.configs import ConfigHandlers
from spark_2pc_sink.reference.handlers.groups import GroupHandlers
from spark_2pc_sink.reference.handlers.partitions import PartitionHandlers
from spark_2pc_sink.reference.handlers.produce import ProduceHandlers
from spark_2pc_sink.reference.handlers.topics import TopicHandlers
from spark_2pc_sink.reference.handlers.transactions import TransactionHandlers
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS
from spark_2pc_sink.reference.metadata.acls import access_by_acls
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.network.connection import SocketServer
from spark_2pc_sink.reference.network.request_channel import Dispatcher, join
from spark_2pc_sink.reference.network.sasl import SaslHandlers
from spark_2pc_sink.reference.protocol import handlers_of
from spark_2pc_sink.reference.transactions.service import MarkerWriter, TransactionService, Verification, settings_of

#: How long a stop waits for requests in progress, including long polls.
STOP_DEADLINE_S: Final = 2.0


class Broker:
    def __init__(self, properties: BrokerProperties, directory: Path | None) -> None:
        self._properties = properties
        self._directory = directory
        self._closers: list[Callable[[], Awaitable[None]]] = []

    async def start(self) -> None:
        """Recover everything and serve. Raises ConfigurationError, or the error of a damaged or short log."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        properties = self._properties
        self._catalog = catalog = await Catalog.open(self._directory, properties)
        self._closers.append(catalog.close)
        await catalog.ensure_internal_topics()
        await catalog.open_logs()
        offsets_partitions = next(each.partitions for each in catalog.topics() if each.name == GROUP_OFFSETS)
        store = GroupStore(catalog, partition_count=offsets_partitions, now_ms=now_ms)
        self._markers = MarkerWriter(catalog, on_group_marker=store.on_marker, now_ms=now_ms)
        level = catalog.transaction_version
        settings = settings_of(properties, transaction_version=level, offsets_partition_count=offsets_partitions)
        self._transactions = TransactionService(
            catalog, self._markers, settings=settings, properties=properties, now_ms=now_ms
        )
        await self._transactions.load()
        self._groups = GroupService(store, properties, now_ms=now_ms, steady_ms=steady_ms)
        self._groups.load()
        catalog.on_deleted.append(lambda topic: self._groups.forget_topic(topic.name))
        catalog.on_transaction_version.append(self._transactions.set_transaction_version)
        self._verification = Verification(self._transactions, lambda: catalog.properties)
        access_of = access_by_acls(properties, lambda: catalog.acls)
        self._server = SocketServer(self._dispatcher(), properties, access_of=access_of)
        self._transactions.start()
        self._closers.append(self._transactions.stop)
        self._groups.start()
        self._closers.append(self._groups.stop)
        await self._server.start()
        self._closers.append(self._stop_serving)

    async def start_metrics(self, host: str, port: int, access: MetricsAccess) -> tuple[str, int]:
        # Imported on demand: the library takes longer to load than the rest of the start.
        with extra("metrics"):
            from spark_2pc_sink.reference.metrics import BrokerMetrics  # noqa: PLC0415

        metrics = BrokerMetrics(
            state=lambda: self._transactions.state,
            logs=self._catalog.logs,
            network=self._server.metrics,
            verification=self._verification.metrics,
            transaction_max_timeout_ms=self._properties.transaction_max_timeout_ms,
            now_ms=now_ms,
        )
        server = MetricsServer(metrics, access)
        address = await server.start(host, port)
        self._closers.append(server.stop)
        return address

    async def stop(self) -> None:
        """Answer requests in progress, flush, close; in reverse order of the start."""
        while self._closers:
            await self._closers.pop()()

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        return tuple(self._server.addresses)

    async def _stop_serving(self) -> None:
        # Waiting group members would delay the stop; they are answered that the coordinator is unavailable.
        await self._groups.stop()
        await self._server.stop(deadline_s=STOP_DEADLINE_S)

    def _dispatcher(self) -> Dispatcher:
        catalog, properties, verification = self._catalog, self._properties, self._verification
        families = [
            ClusterHandlers(catalog),
            TopicHandlers(catalog),
            ConfigHandlers(catalog),
            AclHandlers(catalog),
            ProduceHandlers(catalog, verification, now_ms=now_ms),
            PartitionHandlers(catalog),
            SaslHandlers(),
            TransactionHandlers(self._transactions, self._markers, catalog, now_ms=now_ms),
            GroupHandlers(self._groups, verification, catalog, now_ms=now_ms),
        ]
        handlers = join(map(handlers_of, families), unstable_versions=properties.unstable_api_versions_enable)
        return Dispatcher({**handlers, **handlers_of(ApiVersionsHandlers(handlers, catalog))})


#: Allows any address and localhost as the host of a metrics request.
ADDRESSES_ONLY: Final = MetricsAccess()
#: Open files if the system reports no limit; Java's value.
_FILES_WITHOUT_LIMIT: Final = 10_240


def serve(
    properties: BrokerProperties,
    data_dir: Path | None,
    *,
    metrics: tuple[str, int] | None = None,
    metrics_access: MetricsAccess = ADDRESSES_ONLY,
) -> int:
    """Serve until SIGTERM or SIGINT, then flush and return 0.

    Prints one line, ``listening on HOST:PORT``, once clients are served. Raises what `Broker.start` raises, and
    MissingExtraError if uvloop, or for metrics prometheus-client, is not installed.
    """
    with extra("coordinator"):
        import uvloop  # noqa: PLC0415 - optional
    raise_file_limit()
    uvloop.run(_serve(properties, data_dir, metrics, metrics_access))
    return 0


def raise_file_limit() -> None:
    """Raise the limit of open files (1024 in shells) to the maximum allowed, as Java does for Kafka."""
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
        # Objects made by the start are permanent, and need not be scanned at each collection.
        gc.freeze()
        sys.stdout.write(f"listening on {address_text(*broker.addresses[0])}\n")
        sys.stdout.flush()
        await stopping.wait()
    finally:
        await broker.stop()
