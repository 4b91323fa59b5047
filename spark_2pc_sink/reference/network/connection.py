"""Connection: bytes in and out, with bounds on everything that a client can make grow.

Limits per client, beyond the request in progress: frames read ahead up to `REQUESTS_AHEAD_MAX` and
`BYTES_AHEAD_MAX`, one frame being received, and one reply beyond the transport's high-water mark. While a client does
not read its replies, its requests wait and no more are read. A client that sends no whole request for
``connections.max.idle.ms`` is disconnected, even if single bytes arrive; so is one that does not log in within
`LOGIN_DEADLINE_S`. The requests of all connections together are bounded by ``queued.max.request.bytes``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.reference.config.properties import BrokerProperties, Listener
from spark_2pc_sink.reference.network.request_channel import Dispatcher, ListenerContext, NetworkMetrics, RequestChannel
from spark_2pc_sink.reference.protocol import AccessOf, Reply


def server_context(properties: BrokerProperties) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    location = properties.ssl_keystore_location
    assert location is not None, "checked with the properties"
    try:
        # A key without a password must not make OpenSSL prompt for one at the terminal.
        context.load_cert_chain(location, password=properties.ssl_key_password or "")
    except (OSError, ssl.SSLError) as error:
        rule = f"must be a PEM file with a private key and its certificates: {error}"
        remedy = "correct the file; ssl.key.password is for an encrypted key"
        raise refused("ssl.keystore.location", location, rule, remedy) from error
    return context


#: Bytes per read while no long frame is in progress; the same as asyncio's own reads.
SCRATCH_BYTES: Final = 65_536
_LENGTH: Final = struct.Struct(">i")


class RequestReader:
    """The frames of one connection; ``broken`` says why no further frame can follow. It never raises.

    Short frames arrive in ``scratch``, which all connections share: it holds bytes only between `buffer` and
    `received`. A frame longer than the bytes received so far gets its own buffer, which grows with them, to twice as
    much at most, so that announcing a length costs nothing. ``has_room`` is called with the bytes by which a buffer is
    about to grow; False breaks the connection.
    """

    def __init__(self, scratch: memoryview, *, frame_bytes_max: int, has_room: Callable[[int], bool]) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.broken: RemoteProtocolError | None = None
        self._scratch = scratch
        self._head = b""
        self._has_room = has_room
        self._frame: bytearray | None = None
        self._filled = 0
        self._length = 0

    @property
    def buffered_bytes(self) -> int:
        return len(self._head) + (0 if self._frame is None else len(self._frame))

    def buffer(self) -> memoryview:
        return self._scratch if self._frame is None else memoryview(self._frame)[self._filled :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """The frames, without their lengths, completed by the ``count`` bytes in `buffer`."""
        if self.broken is not None:
            return []
        if self._frame is None:
            return self._split(count)
        self._filled += count
        if self._filled == self._length:
            whole, self._frame = self._frame, None
            return [whole]
        if self._filled == len(self._frame):
            self._grow(self._frame)
        return []

    def _split(self, count: int) -> list[bytes | bytearray]:
        frames: list[bytes | bytearray] = []
        data = self._head + self._scratch[:count]
        position = 0
        while len(data) - position >= _LENGTH.size:
            length = _LENGTH.unpack_from(data, position)[0]
            if not 0 <= length <= self.frame_bytes_max:
                detail = f"a frame of {length} bytes; the limit is {self.frame_bytes_max}"
                self.broken = RemoteProtocolError(peer="the client", detail=detail)
                return frames
            position += _LENGTH.size
            if len(data) - position < length:
                self._filled, self._length, self._head = len(data) - position, length, b""
                self._grow(memoryview(data)[position:])
                return frames
            frames.append(data[position : position + length])
            position += length
        self._head = data[position:]
        return frames

    def _grow(self, filled: bytes | bytearray | memoryview) -> None:
        """Provide a larger buffer for the frame in progress; a new one: the event loop still holds the old one."""
        size = min(self._length, 2 * max(self._filled, len(self._scratch)))
        if not self._has_room(size - self._filled):
            self._frame = None
            detail = f"a frame of {self._length} bytes, {self._filled} received: the requests of all connections have "
            detail += "reached queued.max.request.bytes. Raise it, or send smaller requests"
            self.broken = RemoteProtocolError(peer="the client", detail=detail)
            return
        self._frame = bytearray(size)
        self._frame[: self._filled] = filled


_log = logging.getLogger(__name__)

#: Frames read ahead before reading stops. One read may bring as many more as fit into its 64 KiB.
REQUESTS_AHEAD_MAX: Final = 16
#: Bytes read ahead: a few of the largest Produce requests that clients send by default.
BYTES_AHEAD_MAX: Final = 4 * 1024 * 1024
#: Unsent replies above this block the next request.
UNSENT_BYTES_HIGH: Final = 262_144
#: Up to this size a reply's body is copied together with its header, into one segment on the wire.
_JOINED_BYTES_MAX: Final = 65_536
#: A client that opens a connection logs in at once; Kafka leaves this to ``connections.max.idle.ms``.
LOGIN_DEADLINE_S: Final = 10.0
#: How long pending replies may take to reach a client whose connection is being closed.
CLOSE_DEADLINE_S: Final = 5.0


class ClientConnection(asyncio.BufferedProtocol):
    def __init__(self, listener: ListenerContext, server: SocketServer) -> None:
        self._listener = listener
        self._server = server
        self._loop = asyncio.get_running_loop()
        properties = server.properties
        bytes_max = properties.socket_request_max_bytes
        if listener.users is not None:
            bytes_max = min(properties.sasl_server_max_receive_size, bytes_max)
        self._idle_s_max = properties.connections_max_idle_ms / 1000
        self._reader = RequestReader(server.scratch, frame_bytes_max=bytes_max, has_room=server.may_hold)
        self._frames: deque[bytes | bytearray] = deque()
        self._frame_bytes = 0
        self._carried_out: bytes | bytearray | None = None
        self._ended = False
        self._active_s = self._loop.time()
        self._unsent_bytes = 0
        self._arrived, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._admitted = False
        self._failed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not a subclass.
        self._transport = transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        self._peer = f"{address[0]}:{address[1]}" if address else "a client that has gone"
        if not self._server.accepts:
            self._listener.metrics.connections_refused += 1
            limit = self._server.properties.max_connections
            _log.warning("refused %s: max.connections=%d reached, or the server is stopping", self._peer, limit)
            transport.abort()
            return
        self._listener.metrics.connections_accepted += 1
        transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        self._channel = RequestChannel(
            self._listener,
            client_host=address[0].partition("%")[0] if address else "",
            send=self._send,
            fail=self._fail,
        )
        if not self._channel.logged_in:
            self._timers["login"] = self._loop.call_later(LOGIN_DEADLINE_S, self._check_login)
        self._timers["idle"] = self._loop.call_later(self._idle_s_max, self._check_idle)
        self._admitted = True
        self._server.opened(self, self._loop.create_task(self._serve()))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        in_frame = self._reader.buffered_bytes > 0
        frames_before = len(self._frames)
        for frame in self._reader.received(nbytes):
            self._frames.append(frame)
            self._frame_bytes += len(frame)
        if not in_frame or len(self._frames) > frames_before:
            self._active_s = self._loop.time()  # partial requests do not count: a slow sender would never end
        if self._reader.broken is not None:
            self._ended = True
        if self._ended or self._is_far_ahead():
            self._transport.pause_reading()
        if self._frames or self._ended:
            self._arrived.set()

    def eof_received(self) -> bool:
        """The client has stopped sending. Finish its requests, except for reads.

        Kafka's clients close both ways at once, so this is nearly always the end: a long poll must not continue for it.
        """
        self._ended = True
        self._channel.client_gone()
        self._arrived.set()
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - resets are not reported
        self._ended = True
        for timer in self._timers.values():
            timer.cancel()
        if self._admitted:
            self._channel.client_gone()
        self._server.closed(self)
        self._arrived.set()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._active_s = self._loop.time()
        self._writable.set()

    async def _serve(self) -> None:
        try:
            while (frame := await self._next_frame()) is not None:
                self._carried_out = frame
                await self._channel.carry_out(frame)
                self._carried_out = None
                if self._channel.logged_in:
                    self._reader.frame_bytes_max = self._server.properties.socket_request_max_bytes
            await self._channel.finish()
            if self._reader.broken is not None:
                self._fail(self._reader.broken)
        except Exception as error:  # noqa: BLE001 - one connection must not crash the server
            self._fail(error)
        finally:
            self._close()

    async def _next_frame(self) -> bytes | bytearray | None:
        """The next frame once the client has read enough of the replies; None after the last."""
        if self._frames:
            # Give other connections a turn between two requests that do not wait.
            await asyncio.sleep(0)
        while not self._frames and not self._ended:
            self._arrived.clear()
            await self._arrived.wait()
        while self._frames and not self._writable.is_set():
            await self._writable.wait()
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._frame_bytes -= len(frame)
        if not self._ended and not self._transport.is_reading() and not self._is_far_ahead():
            self._transport.resume_reading()
        return frame

    def _send(self, reply: Reply) -> None:
        if self._transport.is_closing():
            return
        head, body = reply
        if len(body) <= _JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        self._active_s = self._loop.time()

    def stop(self) -> None:
        """Finish the request in progress, then close; later requests are dropped."""
        self._channel.client_gone()
        self._drop_frames()
        self.resume_writing()

    def cancel(self) -> None:
        self._channel.cancel()
        self._transport.abort()

    @property
    def request_bytes(self) -> int:
        """Memory used by this connection's requests: received, waiting, and in progress."""
        in_progress = len(self._carried_out or b"") + self._channel.produce_bytes
        return self._frame_bytes + self._reader.buffered_bytes + in_progress

    def _fail(self, error: Exception) -> None:
        """End the connection because of an error, with one line in the log, or with a traceback if it is our bug."""
        if self._failed:
            return
        self._failed = True
        if isinstance(error, RemoteProtocolError):
            self._listener.metrics.protocol_errors += 1
            _log.warning("closed the connection of %s: %s", self._peer, error)
        else:
            self._listener.metrics.handler_errors += 1
            _log.error("closed the connection of %s: a request failed", self._peer, exc_info=error)
        self._drop_frames()
        self._close()

    def _drop_frames(self) -> None:
        self._ended = True
        self._frames.clear()
        self._frame_bytes = 0
        self._arrived.set()

    def _close(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()
            self._timers["close"] = self._loop.call_later(CLOSE_DEADLINE_S, self._transport.abort)

    def _check_login(self) -> None:
        if not self._channel.logged_in and not self._transport.is_closing():
            self._listener.metrics.failed_logins += 1
            _log.warning("closed the connection of %s: no login within %g s", self._peer, LOGIN_DEADLINE_S)
            self._transport.abort()

    def _check_idle(self) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        if self._carried_out is not None or self._channel.busy or unsent_bytes < self._unsent_bytes:
            self._active_s = self._loop.time()
        self._unsent_bytes = unsent_bytes
        left_s = self._active_s + self._idle_s_max - self._loop.time()
        if left_s > 0:
            self._timers["idle"] = self._loop.call_later(left_s, self._check_idle)
            return
        self._listener.metrics.connections_idle += 1
        _log.info("closed the connection of %s: idle for %g s", self._peer, self._idle_s_max)
        self._transport.abort()

    def _is_far_ahead(self) -> bool:
        return len(self._frames) >= REQUESTS_AHEAD_MAX or self._frame_bytes >= BYTES_AHEAD_MAX


#: Time for the TLS handshake, which a client starts at once.
TLS_HANDSHAKE_DEADLINE_S: Final = 10.0


class SocketServer:
    """Listens, and serves clients. ``addresses`` has host and port of every listener, as bound, after `start`."""

    def __init__(self, dispatcher: Dispatcher, properties: BrokerProperties, *, access_of: AccessOf) -> None:
        self._dispatcher = dispatcher
        self.properties = properties
        self._access_of = access_of
        self._tls = server_context(properties) if any(each.protocol.has_tls for each in properties.listening) else None
        self._servers: list[asyncio.Server] = []
        self.connections: set[ClientConnection] = set()
        self._serving: dict[asyncio.Task[None], ClientConnection] = {}
        self._stopping = False
        self._emptied: asyncio.Future[None] | None = None
        self.metrics: NetworkMetrics = NetworkMetrics()
        self.addresses: list[tuple[str, int]] = []
        self.scratch: memoryview = memoryview(bytearray(SCRATCH_BYTES))

    async def start(self) -> None:
        try:
            for listener in self.properties.listening:
                await self._bind(listener)
        except OSError:
            await self.stop(deadline_s=0)
            raise
        for server in self._servers:
            await server.start_serving()

    async def stop(self, *, deadline_s: float) -> None:
        self._stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._serving.values()):
            connection.stop()
        emptied = self._emptied = asyncio.get_running_loop().create_future()
        if not self.connections:
            emptied.set_result(None)
        await asyncio.wait({emptied, *self._serving}, timeout=deadline_s, return_when=asyncio.ALL_COMPLETED)
        for task in self._serving:
            task.cancel()
        for connection in list(self.connections):
            connection.cancel()
        await emptied

    @property
    def accepts(self) -> bool:
        return len(self.connections) < self.properties.max_connections and not self._stopping

    def may_hold(self, more_bytes: int) -> bool:
        held_bytes = sum(connection.request_bytes for connection in self.connections)
        return held_bytes + more_bytes <= self.properties.queued_max_request_bytes

    def opened(self, connection: ClientConnection, serving: asyncio.Task[None]) -> None:
        self.connections.add(connection)
        self._serving[serving] = connection
        serving.add_done_callback(self._serving.pop)

    def closed(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)
        if not self.connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def _bind(self, listener: Listener) -> None:
        tls = self._tls if listener.protocol.has_tls else None
        server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(context, self),
            listener.host or None,
            listener.port,
            backlog=self.properties.socket_listen_backlog_size,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_DEADLINE_S,
            start_serving=False,
        )
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        self.addresses.append((host, port))
        public_host, public_port = listener.advertised or (listener.host, 0)
        # Connections need the actual port, and there is none before `start_serving`.
        context: ListenerContext = ListenerContext(
            dispatcher=self._dispatcher,
            access_of=self._access_of,
            metrics=self.metrics,
            advertised=(public_host, public_port or port),
            users=self.properties.users_of(listener) if listener.protocol.has_sasl else None,
            properties=self.properties,
        )
