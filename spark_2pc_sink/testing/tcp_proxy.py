"""A proxy between a client and a server that loses, holds, delays or cuts traffic.

For faults that a process signal cannot cause: a request that arrives while its answer does not, a link that is cut
while both ends live.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_2pc_sink.testing.ports import free_port

#: Recognises the request in question by the bytes that a client sends.
RequestPredicate = Callable[[bytes], bool]

_CHUNK_BYTES = 65_536
#: Maximum buffered bytes for a side that does not read; beyond it, the other side is not read, as without a proxy.
_WAITING_BYTES_MAX = 1 << 20
#: How long the proxy's thread sleeps without events; every command wakes it at once.
_IDLE_S = 1.0
_STOP_DEADLINE_S = 5.0
_CONNECT_DEADLINE_S = 5.0


@dataclass(eq=False)
class _Pipe:
    """One direction of a link: bytes read from ``source`` and not yet written to ``sink``."""

    source: socket.socket
    sink: socket.socket
    chunks: deque[tuple[float, bytes]] = field(default_factory=deque)  # (when it is due, bytes)
    waiting_bytes: int = 0
    ended: bool = False

    def wants_to_read(self) -> bool:
        return not self.ended and self.waiting_bytes < _WAITING_BYTES_MAX

    def add(self, chunk: bytes, due: float) -> None:
        self.chunks.append((due, chunk))
        self.waiting_bytes += len(chunk)

    def write(self, now: float) -> None:
        """Write due bytes, as far as the sink accepts them without waiting."""
        while self.chunks and self.chunks[0][0] <= now:
            due, chunk = self.chunks.popleft()
            try:
                sent = self.sink.send(chunk)
            except BlockingIOError:
                sent = 0
            self.waiting_bytes -= sent
            if sent < len(chunk):
                self.chunks.appendleft((due, chunk[sent:]))
                return


class _Link:
    """One client's connection, and the connection to the server that was made for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        client.settimeout(0)
        server.settimeout(0)
        self.client, self.server = client, server
        self.requests = _Pipe(client, server)
        self.answers = _Pipe(server, client)
        #: The recogniser of the request whose answer is to be lost; None if there is none.
        self.losing: RequestPredicate | None = None

    def finished(self) -> bool:
        """True when a side has closed and all its data has been passed on."""
        return any(pipe.ended and not pipe.chunks for pipe in (self.requests, self.answers))

    def close(self, *, reset: bool) -> None:
        """Close both ends; a reset loses data in transit, as a cut cable does."""
        for end in (self.client, self.server):
            if reset:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


class TcpProxy:
    """Forwards connections to ``127.0.0.1:target_port`` and injects faults on command.

    One thread does all the work; methods are thread-safe. Use it as a context manager.

    Args:
        target_port: port of the server.
        port: port for clients; a free port by default.
    """

    def __init__(self, *, target_port: int, port: int | None = None) -> None:
        self.target_port = target_port
        self.port: int = port if port is not None else free_port()
        #: Number of answers lost by :meth:`lose_answer`.
        self.answers_lost: int = 0
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._refusing = self._holding = self._stopped = False
        self._delay_s = 0.0
        self._predicate: RequestPredicate | None = None
        self._unwanted: RequestPredicate | None = None
        self._lost = threading.Event()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = socket.socketpair()

    @property
    def address(self) -> str:
        """``127.0.0.1:port``, for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Number of connections currently forwarded."""
        with self._lock:
            return len(self._links)

    def start(self) -> None:
        """Listen and forward."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut everything and end the thread."""
        with self._lock:
            self._stopped = True
        self._wake()
        if self._thread is not None:
            self._thread.join(_STOP_DEADLINE_S)
        for end in (self._listener, self._wake_read, self._wake_write):
            if end is not None:
                end.close()

    def __enter__(self) -> TcpProxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        """Reset every connection, and each new one, until :meth:`restore`."""
        with self._lock:
            self._refusing = True
            self._cut_links()

    def reset_connections(self) -> None:
        """Reset all current connections; new ones are forwarded as before."""
        with self._lock:
            self._cut_links()

    def restore(self) -> None:
        """Back to plain forwarding: new connections, held answers, no delay, no losses."""
        with self._lock:
            self._refusing = self._holding = False
            self._delay_s = 0.0
            self._predicate = self._unwanted = None
            for link in self._links:
                link.losing = None
        self._wake()

    def hold_answers(self) -> None:
        """Let requests through and hold back the server's answers, until :meth:`restore`."""
        with self._lock:
            self._holding = True

    def delay_answers(self, seconds: float) -> None:
        """Delay each answer by this time from now on."""
        with self._lock:
            self._delay_s = seconds

    def lose_requests(self, predicate: RequestPredicate) -> None:
        """Lose each request that ``predicate`` recognises, and reset its connection, until :meth:`restore`.

        The server never sees it, which a client cannot tell from an answer that was lost.

        Args:
            predicate: see :meth:`lose_answer`.
        """
        with self._lock:
            self._unwanted = predicate

    def lose_answer(self, predicate: RequestPredicate) -> None:
        """Lose the answer to the next request that ``predicate`` recognises.

        The request is forwarded and the server executes it; its answer is dropped on arrival and the connection reset.
        Happens once; if a client closes the connection before the answer arrives, no answer has been lost, and the next
        such request counts.

        Args:
            predicate: gets the bytes of one read from the client: one request, for clients that wait for each answer.
        """
        with self._lock:
            self._lost.clear()
            self._predicate = predicate

    def wait_for_lost_answer(self, *, deadline_s: float) -> bool:
        """Wait until the answer chosen by :meth:`lose_answer` has been lost; False if the deadline passed."""
        return self._lost.wait(deadline_s)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    def _cut_links(self) -> None:
        for link in self._links:
            link.close(reset=True)
        self._links.clear()
        self._wake()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopped:
                    self._cut_links()
                    return
                poll, idle_s = self._poll()
            ready = dict(poll.poll(idle_s * 1000))
            with self._lock:
                self._serve(ready)

    def _poll(self) -> tuple[select.poll, float]:
        """The events to wait for, and the maximum time."""
        assert self._listener is not None
        poll, idle_s, now = select.poll(), _IDLE_S, time.monotonic()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        for link in self._links:
            wanted = {link.client: 0, link.server: 0}
            for pipe in (link.requests, link.answers):
                wanted[pipe.source] |= select.POLLIN if pipe.wants_to_read() else 0
                if pipe.chunks and not (self._holding and pipe is link.answers):
                    due_s = pipe.chunks[0][0] - now
                    idle_s = min(idle_s, max(due_s, 0.0)) if due_s > 0 else idle_s
                    wanted[pipe.sink] |= select.POLLOUT if due_s <= 0 else 0
            for end, events in wanted.items():
                poll.register(end, events)
        return poll, idle_s

    def _serve(self, ready: dict[int, int]) -> None:
        assert self._listener is not None
        if self._wake_read.fileno() in ready:
            self._wake_read.recv(_CHUNK_BYTES)
        for link in list(self._links):
            try:
                self._serve_link(link, ready)
            except OSError:
                self._drop(link, reset=True)
        if self._listener.fileno() in ready:
            self._accept()

    def _accept(self) -> None:
        assert self._listener is not None
        client, _ = self._listener.accept()
        try:
            if self._refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self.target_port), _CONNECT_DEADLINE_S)
        except OSError:
            client.close()
            return
        self._links.append(_Link(client, server))

    def _serve_link(self, link: _Link, ready: dict[int, int]) -> None:
        if link.client.fileno() in ready and link.requests.wants_to_read():
            self._take_request(link)
        if link.server.fileno() in ready and link.answers.wants_to_read():
            self._take_answer(link)
        if link not in self._links:
            return
        now = time.monotonic()
        link.requests.write(now)
        if not self._holding:
            link.answers.write(now)
        if link.finished():
            self._drop(link, reset=False)

    def _take_request(self, link: _Link) -> None:
        request = _read(link.client)
        if request is None:
            return
        if request and self._unwanted is not None and self._unwanted(request):
            self._drop(link, reset=True)
            return
        link.requests.ended = not request
        if request and self._predicate is not None and self._predicate(request):
            link.losing, self._predicate = self._predicate, None
        link.requests.add(request, time.monotonic())

    def _take_answer(self, link: _Link) -> None:
        answer = _read(link.server)
        if answer is None:
            return
        if link.losing is not None:
            link.losing = None
            # Counted first: the client may check as soon as it sees the reset.
            self.answers_lost += 1
            self._lost.set()
            self._drop(link, reset=True)
            return
        link.answers.ended = not answer
        link.answers.add(answer, time.monotonic() + self._delay_s)

    def _drop(self, link: _Link, *, reset: bool) -> None:
        link.close(reset=reset)
        if link.losing is not None and self._predicate is None:
            self._predicate = link.losing
        if link in self._links:
            self._links.remove(link)


def _read(source: socket.socket) -> bytes | None:
    """Available bytes, b"" at the end, None if there are none after all."""
    try:
        return source.recv(_CHUNK_BYTES)
    except BlockingIOError:
        return None


def kafka_request(api_key: int) -> RequestPredicate:
    """Recognise a Kafka request by its API key, 26 for EndTxn ("Kafka protocol guide", Request Header)."""
    # A request is its length (4 bytes), then the API key.
    return lambda chunk: chunk[4:6] == struct.pack(">h", api_key)


def postgres_query(text: str) -> RequestPredicate:
    """Recognise a simple query of PostgreSQL's protocol by its text, such as ``COMMIT`` ("Message Formats", Query)."""
    return lambda chunk: chunk[:1] == b"Q" and text.encode() in chunk
