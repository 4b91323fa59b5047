"""Connection: bytes in and out, with bounds on everything that a client can make grow.

What a client may cost, beyond the request that is carried out: frames read ahead up to `REQUESTS_AHEAD_MAX` and
`BYTES_AHEAD_MAX`, one frame being received, and one reply beyond the transport's high-water mark. A client that does
not read its replies is not read from either, and its requests wait. One that sends no whole request for
``connections.max.idle.ms`` is closed, however many bytes trickle in; so is one that does not log in within
`LOGIN_DEADLINE_S`. The requests of all connections together are bounded by ``queued.max.request.bytes``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, Protocol, cast

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.network.dispatch import Reply
from spark_2pc_sink.reference.network.framing import FrameReader
from spark_2pc_sink.reference.network.request_channel import ListenerContext, RequestChannel
from spark_2pc_sink.reference.network.tls import certificate_principal

_log = logging.getLogger(__name__)

#: Frames that wait to be carried out before reading stops. One read may bring as many more as fit into its 64 KiB.
REQUESTS_AHEAD_MAX: Final = 16
#: Their bytes: a few of the largest Produce requests that clients send by default.
BYTES_AHEAD_MAX: Final = 4 * 1024 * 1024
#: Unsent replies above this stop the next request from being carried out.
UNSENT_BYTES_HIGH: Final = 262_144
#: Up to here the header of a reply is copied together with its body, into one segment on the wire.
_JOINED_BYTES_MAX: Final = 65_536
#: A client that opens a connection logs in at once; Kafka leaves this to ``connections.max.idle.ms``.
LOGIN_DEADLINE_S: Final = 10.0
#: What was answered may take this long to reach a client whose connection is being closed.
CLOSE_DEADLINE_S: Final = 5.0


class Registry(Protocol):
    """Who knows all open connections."""

    properties: BrokerProperties
    scratch: memoryview

    def opened(self, connection: Connection, serving: asyncio.Task[None]) -> None:
        """Keep both until they end."""

    def closed(self, connection: Connection) -> None:
        """Its socket is closed."""

    @property
    def has_room(self) -> bool:
        """True where one more may come."""

    def may_hold(self, more_bytes: int) -> bool:
        """True where the requests of all connections may take so much more memory."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted connection.

    Args:
        listener: what its connections share.
        registry: told when it opens and closes.
    """

    def __init__(self, listener: ListenerContext, registry: Registry) -> None:
        self._listener = listener
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        properties = registry.properties
        bytes_max = properties.socket_request_max_bytes
        if listener.users is not None:
            bytes_max = min(properties.sasl_server_max_receive_size, bytes_max)
        self._reader = FrameReader(registry.scratch, frame_bytes_max=bytes_max, has_room=registry.may_hold)
        self._frames: deque[bytes | bytearray] = deque()
        self._frame_bytes = 0
        self._carried_out_bytes = 0
        self._ended = False
        self._busy = False
        self._active_s = self._loop.time()
        self._unsent_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._drain: asyncio.Future[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._admitted = False
        self._failed = False

    # --- called by the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open, and past the TLS handshake."""
        # A cast, because the transports of uvloop are no subclass.
        self._transport = transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        self._peer = f"{address[0]}:{address[1]}" if address else "a client that has gone"
        if not self._registry.has_room:
            self._listener.metrics.connections_refused += 1
            limit = self._registry.properties.max_connections
            _log.warning("refused %s: max.connections=%d are open, or the server stops", self._peer, limit)
            transport.abort()
            return
        self._listener.metrics.connections_accepted += 1
        transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        self._channel = RequestChannel(
            self._listener,
            client_host=address[0].partition("%")[0] if address else "",
            principal=certificate_principal(transport.get_extra_info("peercert")),
            send=self._send,
            fail=self._fail,
        )
        if not self._channel.logged_in:
            self._timers["login"] = self._loop.call_later(LOGIN_DEADLINE_S, self._check_login)
        self._timers["idle"] = self._loop.call_later(self._idle_s_max, self._check_idle)
        self._admitted = True
        self._registry.opened(self, self._loop.create_task(self._serve()))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes belong."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        in_frame = self._reader.buffered_bytes > 0
        frames_before = len(self._frames)
        for frame in self._reader.received(nbytes):
            self._frames.append(frame)
            self._frame_bytes += len(frame)
        if not in_frame or len(self._frames) > frames_before:
            self._active_s = self._loop.time()  # not for a part of a request: a slow sender would never end
        if self._reader.broken is not None:
            self._ended = True
        if self._ended or self._is_far_ahead():
            self._transport.pause_reading()
        if self._frames or self._ended:
            self._wake()

    def eof_received(self) -> bool:
        """The client sends no more. What it sent is carried out and answered, but for what only reads.

        Kafka's clients close both ways at once, so this is nearly always the end: a long poll must not go on for it.
        """
        self._ended = True
        self._channel.client_gone()
        self._wake()
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a reset is no news of its own
        """The socket is closed."""
        self._ended = True
        for timer in self._timers.values():
            timer.cancel()
        if self._admitted:
            self._channel.client_gone()
        self._registry.closed(self)
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The client does not read as fast as it asks."""
        self._drain = self._drain or self._loop.create_future()

    def resume_writing(self) -> None:
        """It has caught up, or will never."""
        self._active_s = self._loop.time()
        drain, self._drain = self._drain, None
        if drain is not None and not drain.done():
            drain.set_result(None)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Carry out what arrives, until the client or an error ends it."""
        try:
            while (frame := await self._next_frame()) is not None:
                self._busy = True
                self._carried_out_bytes = len(frame)
                await self._channel.carry_out(frame)
                self._carried_out_bytes = 0
                self._busy = False
                if self._channel.logged_in:
                    self._reader.frame_bytes_max = self._registry.properties.socket_request_max_bytes
            await self._channel.finish()
            if self._reader.broken is not None:
                self._fail(self._reader.broken)
        except Exception as error:  # noqa: BLE001 - one connection must not take the server along
            self._fail(error)
        finally:
            self._close()

    async def _next_frame(self) -> bytes | bytearray | None:
        """The next frame when the client has read enough of the replies; None after the last."""
        if self._frames:
            # Other connections have their turn between two requests that wait for nothing.
            await asyncio.sleep(0)
        while not self._frames and not self._ended:
            self._arrival = self._loop.create_future()
            await self._arrival
        while self._frames and self._drain is not None:
            await self._drain
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

    # --- its end ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish what is being carried out, then close; the requests behind it are dropped."""
        self._ended = True
        self._frames.clear()
        self._frame_bytes = 0
        self._channel.client_gone()
        self._wake()
        self.resume_writing()

    def cancel(self) -> None:
        """Stop waiting for anything."""
        self._channel.cancel()
        self._transport.abort()

    @property
    def buffered_bytes(self) -> int:
        """The memory that frames and replies of this connection take."""
        return self._frame_bytes + self._reader.buffered_bytes + self._transport.get_write_buffer_size()

    @property
    def request_bytes(self) -> int:
        """The memory that requests of this connection take: received, waiting, and under way."""
        under_way = self._carried_out_bytes + (self._channel.produce_bytes if self._admitted else 0)
        return self._frame_bytes + self._reader.buffered_bytes + under_way

    def _fail(self, error: Exception) -> None:
        """End the connection because of an error, with one line in the log, or with a traceback if it is ours."""
        if self._failed:
            return
        self._failed = True
        if isinstance(error, RemoteProtocolError):
            self._listener.metrics.protocol_errors += 1
            _log.warning("closed the connection of %s: %s", self._peer, error)
        else:
            self._listener.metrics.handler_errors += 1
            _log.error("closed the connection of %s: a request failed", self._peer, exc_info=error)
        self._ended = True
        self._frames.clear()
        self._frame_bytes = 0
        self._wake()
        self._close()

    def _close(self) -> None:
        """Close when what was answered has been sent, or when that takes too long."""
        if not self._transport.is_closing():
            self._transport.close()
            self._timers["close"] = self._loop.call_later(CLOSE_DEADLINE_S, self._transport.abort)

    def _check_login(self) -> None:
        if not self._channel.logged_in and not self._transport.is_closing():
            self._listener.metrics.failed_logins += 1
            _log.warning("closed the connection of %s: no login within %g s", self._peer, LOGIN_DEADLINE_S)
            self._transport.abort()

    def _check_idle(self) -> None:
        """Close when nothing has moved for too long, unless a request is being carried out."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if self._busy or self._channel.busy or unsent_bytes < self._unsent_bytes:
            self._active_s = self._loop.time()
        self._unsent_bytes = unsent_bytes
        left_s = self._active_s + self._idle_s_max - self._loop.time()
        if left_s > 0:
            self._timers["idle"] = self._loop.call_later(left_s, self._check_idle)
            return
        self._listener.metrics.connections_idle += 1
        _log.info("closed the connection of %s: idle for %g s", self._peer, self._idle_s_max)
        self._transport.abort()

    @property
    def _idle_s_max(self) -> float:
        return self._registry.properties.connections_max_idle_ms / 1000

    def _is_far_ahead(self) -> bool:
        return len(self._frames) >= REQUESTS_AHEAD_MAX or self._frame_bytes >= BYTES_AHEAD_MAX

    def _wake(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.done():
            arrival.set_result(None)
