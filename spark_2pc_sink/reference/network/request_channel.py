"""Request channel of a connection: requests are carried out and answered in their order.

One at a time, as Kafka does; only Produce requests that follow each other overlap, while earlier ones wait for the
disk. The next one begins when the one before has called ``context.appended()``, so records stand in the logs in the
order in which they came, and a Produce that has to ask the transaction coordinator first holds up those behind it.
Replies are sent in the order of the requests whatever is done first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.config.listeners import Users
from spark_2pc_sink.reference.coordinator.events import Access
from spark_2pc_sink.reference.network.dispatch import Call, Dispatcher, Reply
from spark_2pc_sink.reference.network.sasl import Login, Step
from spark_2pc_sink.reference.protocol.api import ANONYMOUS, Api, RequestContext, nothing_waits

#: Produce requests under way at a time: what Java producers send ahead (``max.in.flight.requests.per.connection``),
#: and as many batches as a leader remembers of an idempotent producer.
PRODUCES_AHEAD_MAX: Final = 5

#: The ACLs for a principal that connects from a host.
AccessOf: TypeAlias = Callable[[str, str], Access]


@dataclass
class NetworkMetrics:
    """Counters of the server's connections, since it started."""

    connections_accepted: int = 0
    connections_refused: int = 0
    connections_idle: int = 0
    requests: int = 0
    protocol_errors: int = 0
    failed_logins: int = 0
    handler_errors: int = 0


@dataclass(frozen=True, kw_only=True)
class ListenerContext:
    """What all connections of one listener share.

    Args:
        users: who may log in; None where nobody has to.
        mechanisms: how they log in.
        advertised: host and port for Metadata.
    """

    dispatcher: Dispatcher
    access_of: AccessOf
    metrics: NetworkMetrics
    advertised: tuple[str, int]
    users: Users | None
    mechanisms: tuple[str, ...]
    failed_login_delay_ms: int


class RequestChannel:
    """Who is on a connection, and what of its requests is under way.

    Args:
        listener: what its connections share.
        client_host: the address of the peer.
        principal: who it is, as long as it does not log in.
        send: takes the bytes of a reply, and drops them once the connection ends.
        fail: ends the connection because of an error of a Produce; a second call changes nothing.

    Attributes:
        produce_bytes: of the Produce requests that are under way.
    """

    def __init__(
        self,
        listener: ListenerContext,
        *,
        client_host: str,
        principal: str = ANONYMOUS,
        send: Callable[[Reply], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._listener = listener
        self._client_host = client_host
        self._login = None if listener.users is None else Login(listener.users, listener.mechanisms)
        self._send = send
        self._fail = fail
        self._produces: deque[asyncio.Task[None]] = deque()
        self._appended: asyncio.Future[None] | None = None
        self._reading: asyncio.Task[Reply | None] | None = None
        self.produce_bytes: int = 0
        self._gone = False
        self._failed = False
        self._become(principal)

    @property
    def logged_in(self) -> bool:
        """False while the client still has to log in."""
        return self._login is None

    @property
    def busy(self) -> bool:
        """True while a Produce waits for the disk."""
        return any(not task.done() for task in self._produces)

    async def carry_out(self, frame: bytes | bytearray) -> None:
        """Carry one request out; a Produce is only begun when this returns.

        Raises:
            RemoteProtocolError: the connection is to be ended, without a traceback.
            Exception: whatever a handler raised; the connection is to be ended.
        """
        self._listener.metrics.requests += 1
        if self._login is not None and self._login.takes_bare_frames:
            await self._follow(self._login.bare_frame(frame))
            return
        call = self._listener.dispatcher.read(frame)
        if self._login is not None:
            await self._log_in(self._login, call)
        elif call.api is Api.PRODUCE:
            await self._room_for_produce()
            self._begin_produce(call, len(frame))
        else:
            await self.finish()
            # What was sent after a Produce that failed must not be carried out as if it had succeeded.
            if not self._failed:
                await self._answer(call)

    async def finish(self) -> None:
        """Wait until every Produce has its reply."""
        while self._produces:
            await _over(self._produces[0])
            self._produces.popleft()

    def client_gone(self) -> None:
        """Nobody waits for replies any more: end what only reads; what writes goes on to its end."""
        self._gone = True
        if self._reading is not None:
            self._reading.cancel()

    def cancel(self) -> None:
        """Cancel everything, because the server stops and has waited long enough."""
        self.client_gone()
        for task in self._produces:
            task.cancel()

    def _become(self, principal: str) -> None:
        self._principal = principal
        self._access = self._listener.access_of(principal, self._client_host)

    def _context(self, call: Call, appended: Callable[[], None] = nothing_waits) -> RequestContext:
        return RequestContext(
            version=call.head.version,
            client_id=None if call.request is None else call.request.client_id,
            principal=self._principal,
            access=self._access,
            client_host=f"/{self._client_host}",
            advertised=self._listener.advertised,
            appended=appended,
        )

    async def _log_in(self, login: Login, call: Call) -> None:
        if call.api is Api.API_VERSIONS:
            if call.request is not None:
                login.versions_asked()
            await self._answer(call)
        elif call.request is None:
            raise AssertionError("only ApiVersions is answered in any version")
        else:
            await self._follow(login.request(call.api, call.request))

    async def _follow(self, step: Step) -> None:
        """Send what the login answers; a refusal waits, so that passwords cannot be tried fast."""
        if step.refused is not None:
            self._listener.metrics.failed_logins += 1
            await asyncio.sleep(self._listener.failed_login_delay_ms / 1000)
        if step.reply is not None:
            self._send(step.reply)
        if step.refused is not None:
            raise RemoteProtocolError(peer="the client", detail=f"no login: {step.refused}")
        if step.principal is not None:
            self._login = None
            self._become(step.principal)

    async def _answer(self, call: Call) -> None:
        answer = self._listener.dispatcher.answer(call, self._context(call))
        if call.handler is None or not call.handler.only_reads:
            reply = await answer
        else:
            reply = await self._read(answer)
        if reply is not None:
            self._send(reply)

    async def _read(self, answer: Coroutine[Any, Any, Reply | None]) -> Reply | None:
        """Await what only reads; None when the client has gone before."""
        self._reading = asyncio.ensure_future(answer)
        if self._gone:
            self._reading.cancel()
        try:
            await asyncio.wait({self._reading})
            return None if self._reading.cancelled() else self._reading.result()
        finally:
            self._reading = None

    async def _room_for_produce(self) -> None:
        while self._produces and (self._produces[0].done() or len(self._produces) >= PRODUCES_AHEAD_MAX):
            await _over(self._produces[0])
            self._produces.popleft()
        if self._appended is not None:
            await self._appended

    def _begin_produce(self, call: Call, frame_bytes: int) -> None:
        appended = self._appended = asyncio.get_running_loop().create_future()
        context = self._context(call, lambda: None if appended.done() else appended.set_result(None))
        previous = self._produces[-1] if self._produces else None
        task = asyncio.ensure_future(self._produce(call, context, previous))
        self.produce_bytes += frame_bytes
        task.add_done_callback(lambda _: self._let_go(frame_bytes))
        self._produces.append(task)

    def _let_go(self, frame_bytes: int) -> None:
        self.produce_bytes -= frame_bytes

    async def _produce(self, call: Call, context: RequestContext, previous: asyncio.Task[None] | None) -> None:
        """Carry out one Produce; its reply, or its failure, comes after those of the ones before."""
        reply: Reply | None = None
        failure: Exception | None = None
        try:
            reply = await self._listener.dispatcher.answer(call, context)
        except Exception as error:  # noqa: BLE001 - handed on below, in its turn
            failure = error
        context.appended()
        if previous is not None:
            await _over(previous)
        if failure is not None:
            self._failed = True
            self._fail(failure)
        elif reply is not None:
            self._send(reply)


async def _over(task: asyncio.Task[None]) -> None:
    """Wait until a task is done, however it ends; one that is done costs no turn of the loop."""
    if not task.done():
        await asyncio.wait({task})
