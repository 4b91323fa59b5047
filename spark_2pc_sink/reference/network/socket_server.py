"""Socket server: the listeners, and the connections that came through them."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from spark_2pc_sink.reference.config.listeners import Listener
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.network.connection import Connection
from spark_2pc_sink.reference.network.dispatch import Dispatcher
from spark_2pc_sink.reference.network.framing import SCRATCH_BYTES
from spark_2pc_sink.reference.network.request_channel import AccessOf, ListenerContext, NetworkMetrics
from spark_2pc_sink.reference.network.tls import server_context

#: A client that opens a TLS connection says hello at once.
TLS_HANDSHAKE_DEADLINE_S: Final = 10.0


class SocketServer:
    """Listens, and serves everyone who connects.

    Args:
        dispatcher: carries requests out.
        properties: listeners, limits, users.
        access_of: the ACLs for a principal and a host.

    Raises:
        ConfigurationError: a certificate file is not what it should be.

    Attributes:
        metrics: counters of connections and requests.
        addresses: host and port of every listener, as bound; empty before `start`.
        advertised: what the clients of each are told.
    """

    def __init__(self, dispatcher: Dispatcher, properties: BrokerProperties, *, access_of: AccessOf) -> None:
        self._dispatcher = dispatcher
        self.properties = properties
        self._access_of = access_of
        self._listening = properties.listening
        wants_tls = any(each.protocol.has_tls for each in self._listening)
        self._tls = server_context(properties) if wants_tls else None
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._serving: dict[asyncio.Task[None], Connection] = {}
        self._stopping = False
        self._emptied: asyncio.Future[None] | None = None
        self.metrics: NetworkMetrics = NetworkMetrics()
        self.addresses: list[tuple[str, int]] = []
        self.advertised: list[tuple[str, int]] = []
        self.scratch: memoryview = memoryview(bytearray(SCRATCH_BYTES))

    async def start(self) -> None:
        """Bind every listener, then serve.

        Raises:
            OSError: an address cannot be bound; none is served then.
        """
        try:
            for listener in self._listening:
                await self._bind(listener)
        except OSError:
            await self.stop(deadline_s=0)
            raise
        for server in self._servers:
            await server.start_serving()

    async def stop(self, *, deadline_s: float) -> None:
        """Accept no one, let the requests that are being carried out come to their end, close.

        Args:
            deadline_s: what takes longer is cancelled.
        """
        self._stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._serving.values()):
            connection.stop()
        emptied = self._emptied = asyncio.get_running_loop().create_future()
        if not self._connections:
            emptied.set_result(None)
        await asyncio.wait({emptied, *self._serving}, timeout=deadline_s, return_when=asyncio.ALL_COMPLETED)
        for task in self._serving:
            task.cancel()
        for connection in self._connections:
            connection.cancel()
        await emptied

    @property
    def has_room(self) -> bool:
        """False while as many are open as may be, and once the server stops."""
        return len(self._connections) < self.properties.max_connections and not self._stopping

    def may_hold(self, more_bytes: int) -> bool:
        """False where the requests of all connections would take more than ``queued.max.request.bytes``."""
        held_bytes = sum(connection.request_bytes for connection in self._connections)
        return held_bytes + more_bytes <= self.properties.queued_max_request_bytes

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Those that are open."""
        return tuple(self._connections)

    def opened(self, connection: Connection, serving: asyncio.Task[None]) -> None:
        """A connection has begun; its task may outlive it."""
        self._connections.add(connection)
        self._serving[serving] = connection
        serving.add_done_callback(self._serving.pop)

    def closed(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        if not self._connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def _bind(self, listener: Listener) -> None:
        """Bind a listener; its connections learn the port that it got."""
        contexts: list[ListenerContext] = []
        tls: ssl.SSLContext | None = self._tls if listener.protocol.has_tls else None
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(contexts[0], self),
            listener.endpoint.host or None,
            listener.endpoint.port,
            backlog=self.properties.socket_listen_backlog_size,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_DEADLINE_S,
            start_serving=False,
        )
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        self.addresses.append((host, port))
        told_host, told_port = listener.advertised or (listener.endpoint.host, 0)
        advertised = (told_host, told_port or port)
        self.advertised.append(advertised)
        contexts.append(
            ListenerContext(
                dispatcher=self._dispatcher,
                access_of=self._access_of,
                metrics=self.metrics,
                advertised=advertised,
                users=self.properties.users_of(listener) if listener.protocol.has_sasl else None,
                mechanisms=self.properties.mechanisms,
                failed_login_delay_ms=self.properties.connection_failed_authentication_delay_ms,
            )
        )
