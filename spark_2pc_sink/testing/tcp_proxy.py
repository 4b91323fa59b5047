"""A proxy between a client and a server that loses, holds, delays or cuts traffic.

For faults that a process signal cannot cause: a request that arrives while its answer does not, a link that is cut
while both ends live.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from time import monotonic

from spark_2pc_sink.testing.processes import Lifetime, free_port

#: Recognises the request in question by the bytes that a client sends.
RequestPredicate = Callable[[bytes], bool]

_CHUNK_BYTES = 65_536
#: Answers that wait for a client; beyond it, the server is not read, as without a proxy.
_WAITING_MAX = 16
_STOP_DEADLINE_S = 5.0


class _Link:
    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        #: Each with the time at which it is due; b"" is the end.
        self.answers: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_WAITING_MAX)
        #: The recogniser of the request whose answer is to be lost; None if there is none.
        self.losing: RequestPredicate | None = None

    def reset(self) -> None:
        """Close both ends, and lose data in transit, as a cut cable does."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()


class TcpProxy(Lifetime):
    """Forwards connections to ``127.0.0.1:target_port`` and injects faults on command.

    One thread does all the work; methods are thread-safe. Use it as a context manager.

    Args:
        target_port: port of the server.
        port: port for clients; a free port by default.
    """

    def __init__(self, *, target_port: int, port: int | None = None) -> None:
        self.target_port = target_port
        self.port: int = port if port is not None else free_port()
        #: ``127.0.0.1:port``, for clients.
        self.address: str = f"127.0.0.1:{self.port}"
        #: Number of answers lost by :meth:`lose_answer`.
        self.answers_lost: int = 0
        self._links: list[_Link] = []
        self._refusing = False
        self._delay_s = 0.0
        self._predicate: RequestPredicate | None = None
        self._unwanted: RequestPredicate | None = None
        self._lost = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flowing, self._stopped = asyncio.Event(), asyncio.Event()
        self._flowing.set()

    @property
    def connections(self) -> int:
        """Number of connections currently forwarded."""
        return len(self._links)

    def start(self) -> None:
        """Listen and forward."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self._loop = asyncio.new_event_loop()
        arguments = self._loop, listener
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut everything and end the thread."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(_STOP_DEADLINE_S)

    def cut(self) -> None:
        """Reset every connection, and each new one, until :meth:`restore`."""
        self._refusing = True
        self._do(self._reset_links)

    def reset_connections(self) -> None:
        """Reset all current connections; new ones are forwarded as before."""
        self._do(self._reset_links)

    def restore(self) -> None:
        """Back to plain forwarding: new connections, held answers, no delay, no losses."""
        self._refusing, self._delay_s = False, 0.0
        self._predicate = self._unwanted = None
        for link in list(self._links):
            link.losing = None
        self._do(self._flowing.set)

    def hold_answers(self) -> None:
        """Let requests through and hold back the server's answers, until :meth:`restore`."""
        self._do(self._flowing.clear)

    def delay_answers(self, seconds: float) -> None:
        """Delay each answer by this time from now on."""
        self._delay_s = seconds

    def lose_requests(self, predicate: RequestPredicate) -> None:
        """Lose each request that ``predicate`` recognises, and reset its connection, until :meth:`restore`.

        The server never sees it, which a client cannot tell from an answer that was lost.

        Args:
            predicate: see :meth:`lose_answer`.
        """
        self._unwanted = predicate

    def lose_answer(self, predicate: RequestPredicate) -> None:
        """Lose the answer to the next request that ``predicate`` recognises.

        The request is forwarded and the server executes it; its answer is dropped on arrival and the connection reset.
        Happens once; if a client closes the connection before the answer arrives, no answer has been lost, and the next
        such request counts.

        Args:
            predicate: gets the bytes of one read from the client: one request, for clients that wait for each answer.
        """
        self._lost.clear()
        self._predicate = predicate

    def wait_for_lost_answer(self, *, deadline_s: float) -> bool:
        """Wait until the answer chosen by :meth:`lose_answer` has been lost; False if the deadline passed."""
        return self._lost.wait(deadline_s)

    def _do(self, change: Callable[[], None]) -> None:
        """Change something on the proxy's thread, if it runs, and wait until the change has had its effect."""

        async def changed() -> None:
            change()
            await asyncio.sleep(0)

        if self._loop is None or self._thread is None:
            change()
        elif self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(changed(), self._loop).result(_STOP_DEADLINE_S)

    def _run(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._forward, sock=listener)
        await self._stopped.wait()
        server.close()
        self._reset_links()
        ending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _reset_links(self) -> None:
        for link in self._links:
            link.losing = None
            link.reset()
        self._links.clear()

    async def _forward(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            if self._refusing:
                raise ConnectionRefusedError
            from_server, server = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            client.close()
            return
        link = _Link(client, server)
        self._links.append(link)
        parts = (self._take_requests(from_client, link), self._take_answers(from_server, link), self._answer(link))
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.gather(*tasks)
        except EOFError:
            client.close()
            server.close()
        except OSError:
            link.reset()
        finally:
            for task in tasks:
                task.cancel()
            if link.losing is not None and self._predicate is None:
                self._predicate = link.losing
            if link in self._links:
                self._links.remove(link)

    async def _take_requests(self, source: asyncio.StreamReader, link: _Link) -> None:
        while request := await source.read(_CHUNK_BYTES):
            if self._unwanted is not None and self._unwanted(request):
                raise ConnectionResetError
            if self._predicate is not None and self._predicate(request):
                link.losing, self._predicate = self._predicate, None
            link.server.write(request)
            await link.server.drain()
        raise EOFError

    async def _take_answers(self, source: asyncio.StreamReader, link: _Link) -> None:
        answer = b"-"
        while answer:
            answer = await source.read(_CHUNK_BYTES)
            if link.losing is not None:
                link.losing = None
                # Counted first: the client may check as soon as it sees the reset.
                self.answers_lost += 1
                self._lost.set()
                raise ConnectionResetError
            await link.answers.put((monotonic() + self._delay_s, answer))

    async def _answer(self, link: _Link) -> None:
        while True:
            due_s, answer = await link.answers.get()
            await asyncio.sleep(due_s - monotonic())
            await self._flowing.wait()
            if not answer:
                raise EOFError
            link.client.write(answer)
            await link.client.drain()


def kafka_request(api_key: int) -> RequestPredicate:
    """Recognise a Kafka request by its API key, 26 for EndTxn ("Kafka protocol guide", Request Header)."""
    # A request is its length (4 bytes), then the API key.
    return lambda chunk: chunk[4:6] == struct.pack(">h", api_key)


def postgres_query(text: str) -> RequestPredicate:
    """Recognise a simple query of PostgreSQL's protocol by its text, such as ``COMMIT`` ("Message Formats", Query)."""
    return lambda chunk: chunk[:1] == b"Q" and text.encode() in chunk
