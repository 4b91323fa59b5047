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
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from spark_2pc_sink.clock import now_ms, steady_ms
from spark_2pc_sink.extras import extra
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
from spark_2pc_sink.web_server import MetricsAccess, http_server, listening_at, metrics_app

#: How long a stop waits for requests in progress, including long polls.
STOP_DEADLINE_S: Final = 2.0
#: Open files if the system reports no limit; Java's value.
_FILES_WITHOUT_LIMIT: Final = 10_240


def serve(
    properties: BrokerProperties, data_dir: Path | None, metrics: tuple[str, int] | None, metrics_access: MetricsAccess
) -> int:
    """Serve until SIGTERM or SIGINT, then flush and return 0.

    Prints one line, ``listening on HOST:PORT``, once clients are served. Raises ConfigurationError, the error of a
    damaged or short log, and MissingExtraError if uvloop, or for metrics prometheus-client, is not installed.
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
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as ending:  # also of a start that fails: in reverse order
        catalog = await Catalog.open(data_dir, properties)
        ending.push_async_callback(catalog.close)
        await catalog.ensure_internal_topics()
        await catalog.open_logs()
        offsets_partitions = catalog.state.topics[GROUP_OFFSETS].partitions
        store = GroupStore(catalog, partition_count=offsets_partitions, now_ms=now_ms)
        markers = MarkerWriter(catalog, on_group_marker=store.on_marker, now_ms=now_ms)
        level = catalog.state.transaction_version
        settings = settings_of(properties, transaction_version=level, offsets_partition_count=offsets_partitions)
        transactions = TransactionService(catalog, markers, settings=settings, properties=properties, now_ms=now_ms)
        await transactions.load()
        groups = GroupService(store, properties, now_ms=now_ms, steady_ms=steady_ms)
        groups.load()
        catalog.on_deleted.append(lambda topic: groups.forget_topic(topic.name))
        catalog.on_transaction_version.append(transactions.set_transaction_version)
        verification = Verification(transactions, lambda: catalog.properties)
        families = [
            ClusterHandlers(catalog),
            TopicHandlers(catalog),
            ConfigHandlers(catalog),
            AclHandlers(catalog),
            ProduceHandlers(catalog, verification, now_ms=now_ms),
            PartitionHandlers(catalog),
            SaslHandlers(),
            TransactionHandlers(transactions, markers, catalog, now_ms=now_ms),
            GroupHandlers(groups, verification, catalog, now_ms=now_ms),
        ]
        handlers = join(map(handlers_of, families), unstable_versions=properties.unstable_api_versions_enable)
        dispatcher = Dispatcher({**handlers, **handlers_of(ApiVersionsHandlers(handlers, catalog))})
        server = SocketServer(dispatcher, properties, access_of=access_by_acls(properties, lambda: catalog.state.acls))
        transactions.start()
        ending.push_async_callback(transactions.stop)
        groups.start()
        ending.push_async_callback(groups.stop)
        await server.start()
        ending.push_async_callback(server.stop, deadline_s=STOP_DEADLINE_S)
        # Waiting group members would delay the stop; they are answered that the coordinator is unavailable.
        ending.push_async_callback(groups.stop)
        if metrics is not None:
            # Imported on demand: the library takes longer to load than the rest of the start.
            with extra("metrics"):
                from spark_2pc_sink.reference.metrics import BrokerMetrics, LoopCollector  # noqa: PLC0415
            figures = BrokerMetrics(
                state=lambda: transactions.state,
                logs=catalog.logs,
                network=server.metrics,
                verification=verification.metrics,
                transaction_max_timeout_ms=properties.transaction_max_timeout_ms,
                now_ms=now_ms,
            )
            app = metrics_app(LoopCollector(figures, asyncio.get_running_loop()), metrics_access)
            # It ends with the process.
            server_of_metrics = http_server(app, listening_at(*metrics))
            threading.Thread(target=server_of_metrics.run, name="metrics", daemon=True).start()
        # Objects made by the start are permanent, and need not be scanned at each collection.
        gc.freeze()
        sys.stdout.write(f"listening on {address_text(*server.addresses[0])}\n")
        sys.stdout.flush()
        await stopping.wait()
