"""Request channel of a connection: carries out requests and answers them in order.

One at a time, as Kafka does; only consecutive Produce requests overlap, while earlier ones wait for the disk. The next
one begins once the previous one has called ``context.appended()``, so records are in the logs in arrival order.
Replies are sent in request order, whichever request finishes first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from kafka.protocol.metadata import ApiVersionsResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.config.properties import BrokerProperties, Users
from spark_2pc_sink.reference.network.sasl import Login
from spark_2pc_sink.reference.protocol import (
    ANONYMOUS,
    AccessOf,
    ApiRequest,
    Handler,
    Handlers,
    Reply,
    RequestContext,
    read_head,
    read_request,
    write_response,
)
from spark_2pc_sink.wire.api_versions import Api

#: Only Produce may be longer. Decoded, a list of a million entries takes fifty times its bytes, and only records
#: have a reason to be long; Kafka has a single limit, ``socket.request.max.bytes``, for all.
OTHER_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
#: The last released version of InitProducerId in Kafka 4.4.0; v6 (KIP-939) needs ``unstable.api.versions.enable``.
RELEASED_INIT_VERSION: Final = 5


def join(families: Iterable[Handlers], *, unstable_versions: bool) -> dict[Api, Handler]:
    joined = {api: handler for family in families for api, handler in family.items()}
    newest = joined.get(Api.INIT_PRODUCER_ID)
    if newest is not None and not unstable_versions:
        joined[Api.INIT_PRODUCER_ID] = replace(newest, version_max=min(newest.version_max, RELEASED_INIT_VERSION))
    return joined


class QueuedCall(NamedTuple):
    """A request to carry out; without a handler the version of an ApiVersions that is not offered."""

    api: Api
    handler: Handler | None
    request: ApiRequest


class Dispatcher:
    def __init__(self, handlers: Mapping[Api, Handler]) -> None:
        self._handlers = {int(api): handler for api, handler in handlers.items()}

    def read(self, frame: bytes | bytearray) -> QueuedCall:
        """Find the handler of a frame and decode it.

        Raises RemoteProtocolError for an API or version that is not offered, a request that is too long, and bytes that
        do not match the schema. As in Kafka such a request gets no answer; ApiVersions lists the offered versions.
        """
        head = read_head(frame)
        handler = self._handlers.get(head.api_key)
        if handler is None:
            raise RemoteProtocolError(peer="the client", detail=f"a request with API key {head.api_key}")
        api = Api(head.api_key)
        if api is not Api.PRODUCE and len(frame) > OTHER_REQUEST_BYTES_MAX:
            raise RemoteProtocolError(peer="the client", detail=f"{api.name} of {len(frame)} bytes")
        if handler.version_min <= head.version <= handler.version_max:
            return QueuedCall(api, handler, read_request(frame, head))
        if api is Api.API_VERSIONS:
            return QueuedCall(api, None, ApiRequest(head, None, None))
        offered = f"{handler.version_min} to {handler.version_max} are offered"
        raise RemoteProtocolError(peer="the client", detail=f"{api.name} v{head.version}; {offered}")

    async def answer(self, call: QueuedCall, context: RequestContext) -> Reply | None:
        """Carry out a call. None: no reply is sent."""
        head = call.request.head
        if call.handler is None:
            # KIP-511: the answer has version 0, which every client can read, and lists the versions of ApiVersions.
            offered = self._handlers[Api.API_VERSIONS]
            entry = ApiVersionsResponse.ApiVersion(
                api_key=Api.API_VERSIONS, min_version=offered.version_min, max_version=offered.version_max
            )
            response = ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=[entry])
            return write_response(response, head.correlation_id, version=0)
        response = await call.handler.function(context, call.request.body)
        return None if response is None else write_response(response, head.correlation_id, version=head.version)


#: Produce requests in progress at a time: as many as Java producers send (``max.in.flight.requests.per.connection``),
#: and as many batches as a leader remembers for an idempotent producer.
PRODUCES_AHEAD_MAX: Final = 5


@dataclass
class NetworkMetrics:
    connections_accepted: int = 0
    connections_refused: int = 0
    connections_idle: int = 0
    requests: int = 0
    protocol_errors: int = 0
    failed_logins: int = 0
    handler_errors: int = 0


@dataclass(frozen=True, kw_only=True)
class ListenerContext:
    """Shared by all connections of one listener; without ``users`` no login is required."""

    dispatcher: Dispatcher
    access_of: AccessOf
    metrics: NetworkMetrics
    advertised: tuple[str, int]
    users: Users | None
    properties: BrokerProperties


class RequestChannel:
    """A connection's principal, and its requests in progress.

    ``send`` drops a reply once the connection has ended. ``fail`` ends the connection because of a Produce error; a
    second call changes nothing. ``produce_bytes`` are those of the Produce requests in progress.
    """

    def __init__(
        self,
        listener: ListenerContext,
        *,
        client_host: str,
        send: Callable[[Reply], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._listener = listener
        self._client_host = client_host
        self._login = None if listener.users is None else Login(listener.users, listener.properties.mechanisms)
        self._send = send
        self._fail = fail
        self._produces: deque[asyncio.Task[None]] = deque()
        self._appended: asyncio.Event | None = None
        self._reading: asyncio.Task[Reply | None] | None = None
        self.produce_bytes: int = 0
        self._gone = False
        self._failed = False
        self._log_in_as(ANONYMOUS)

    @property
    def logged_in(self) -> bool:
        return self._login is None

    @property
    def busy(self) -> bool:
        return any(not task.done() for task in self._produces)

    async def carry_out(self, frame: bytes | bytearray) -> None:
        """Carry out one request; a Produce is only started when this returns. Errors end the connection."""
        self._listener.metrics.requests += 1
        call = self._listener.dispatcher.read(frame)
        if self._login is not None:
            await self._log_in(self._login, call)
        elif call.api is Api.PRODUCE:
            await self._begin_produce(call, len(frame))
        else:
            await self.finish()
            # Requests sent after a failed Produce must not be carried out as if it had succeeded.
            if not self._failed:
                await self._answer(call)

    async def finish(self, *, ahead_max: int = 0) -> None:
        """Wait until at most this many Produce requests are in progress."""
        while self._produces and (self._produces[0].done() or len(self._produces) > ahead_max):
            await _done(self._produces[0])
            self._produces.popleft()

    def client_gone(self) -> None:
        """The client has disconnected: cancel reads; writes continue to their end."""
        self._gone = True
        if self._reading is not None:
            self._reading.cancel()

    def cancel(self) -> None:
        """Cancel everything, because the server's stop deadline has passed."""
        self.client_gone()
        for task in self._produces:
            task.cancel()

    def _log_in_as(self, principal: str) -> None:
        self._principal = principal
        self._access = self._listener.access_of(principal, self._client_host)

    def _context(self, call: QueuedCall, appended: Callable[[], None] = lambda: None) -> RequestContext:
        return RequestContext(
            version=call.request.head.version,
            client_id=call.request.client_id,
            principal=self._principal,
            access=self._access,
            client_host=f"/{self._client_host}",
            advertised=self._listener.advertised,
            appended=appended,
        )

    async def _log_in(self, login: Login, call: QueuedCall) -> None:
        if call.api is Api.API_VERSIONS:
            if call.handler is not None:
                login.api_versions_requested()
            await self._answer(call)
            return
        reply, principal, refused = login.request(call.api, call.request)
        if refused is not None:  # delayed, to slow down password guessing
            self._listener.metrics.failed_logins += 1
            await asyncio.sleep(self._listener.properties.connection_failed_authentication_delay_ms / 1000)
        self._send(reply)
        if refused is not None:
            raise RemoteProtocolError(peer="the client", detail=f"no login: {refused}")
        if principal is not None:
            self._login = None
            self._log_in_as(principal)

    async def _answer(self, call: QueuedCall) -> None:
        answer = self._listener.dispatcher.answer(call, self._context(call))
        only_reads = call.handler is not None and call.handler.only_reads
        reply = await (self._cancellable(answer) if only_reads else answer)
        if reply is not None:
            self._send(reply)

    async def _cancellable(self, answer: Coroutine[Any, Any, Reply | None]) -> Reply | None:
        """Await a read; None if the client disconnected first."""
        self._reading = asyncio.ensure_future(answer)
        if self._gone:
            self._reading.cancel()
        try:
            await asyncio.wait({self._reading})
            return None if self._reading.cancelled() else self._reading.result()
        finally:
            self._reading = None

    async def _begin_produce(self, call: QueuedCall, frame_bytes: int) -> None:
        await self.finish(ahead_max=PRODUCES_AHEAD_MAX - 1)
        if self._appended is not None:
            await self._appended.wait()
        appended = self._appended = asyncio.Event()
        context = self._context(call, appended.set)
        task = asyncio.ensure_future(self._produce(call, context, self._produces[-1] if self._produces else None))
        self.produce_bytes += frame_bytes

        def finished(_: object) -> None:
            self.produce_bytes -= frame_bytes

        task.add_done_callback(finished)
        self._produces.append(task)

    async def _produce(self, call: QueuedCall, context: RequestContext, previous: asyncio.Task[None] | None) -> None:
        """Carry out one Produce; its reply, or its failure, follows those of the previous ones."""
        reply: Reply | Exception | None
        try:
            reply = await self._listener.dispatcher.answer(call, context)
        except Exception as error:  # noqa: BLE001 - passed on below, in order
            reply = error
        context.appended()
        if previous is not None:
            await _done(previous)
        if isinstance(reply, Exception):
            self._failed = True
            self._fail(reply)
        elif reply is not None:
            self._send(reply)


async def _done(task: asyncio.Task[None]) -> None:
    """Wait until a task is done, however it ends; a finished one costs no turn of the loop."""
    if not task.done():
        await asyncio.wait({task})
