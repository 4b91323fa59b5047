"""The driver's end of the stream: one port for a run of a query, one token for each attempt, one thread for all tasks.

The thread reads frames straight into the consumers' memory, and stops reading a connection while there is no room for
its next frame. A conversation is a generator that yields what it waits for, so its steps are written in order.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from time import monotonic
from typing import Final, TypeAlias, TypeVar
from weakref import WeakSet

from spark_2pc_sink.errors import BatchRetryError, ConfigurationError, RemoteProtocolError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, FrameReader, Sender, StaleTaskError
from spark_2pc_sink.sink.stream.task_stream import (
    HELLO,
    TOKEN_BYTES,
    DriverMessage,
    Frame,
    StreamAddress,
    packed_message,
)

#: Frames of all tasks together. Half of it waits for the consumers (see `attempt_input`): a quarter of a second of work
#: for PostgreSQL, which should not have much more left when the tasks end.
BYTES_MAX: Final = 32 * 1024 * 1024
#: Connections that have not shown a token, beyond those of all tasks at once.
_STRANGERS_MAX: Final = 64
_REFUSAL_CHARACTERS_MAX: Final = 4096
#: Threads that wake at the same moment may each send a byte.
_WAKES: Final = 64

_T = TypeVar("_T")
_Steps: TypeAlias = "Generator[_Wait, None, _T]"


@dataclass(frozen=True)
class StreamLimits:
    """Bounds in bytes, tasks and seconds.

    Attributes:
        io_deadline_s: time for the rest of a frame whose header has arrived, and for tasks, as in `StreamAddress`.
        hello_s: time for TLS, token and the first frame of a connection.
        alive_s: interval between two keep-alive frames to each task; much less than the deadline.
    """

    bytes_max: int = BYTES_MAX
    tasks_at_once: int = 1
    io_deadline_s: float = 60.0
    hello_s: float = 10.0
    alive_s: float = 3.0


class _Wait(Enum):
    """The condition that a connection waits for."""

    READ = selectors.EVENT_READ
    WRITE = selectors.EVENT_WRITE
    #: Until its next frame fits.
    ROOM = 0
    #: For its turn: the others are served first.
    TURN = -1


class _Connection:
    """One connection of a task, unauthenticated until it has sent a token."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = FrameReader()
        self.steps: _Steps[None]
        self.wait = _Wait.READ
        self.events = 0
        self.out = bytearray()
        self.attempt: AttemptInput | None = None
        self.sender: Sender | None = None
        self.opened_s = self.moved_s = monotonic()

    def receive(self, into: memoryview) -> _Steps[int]:
        """Fill part of ``into``; returns the number of bytes. With TLS the first call does the handshake."""
        while True:
            try:
                received = self.sock.recv_into(into)
            except (BlockingIOError, ssl.SSLWantReadError):
                yield _Wait.READ
            except ssl.SSLWantWriteError:
                yield _Wait.WRITE
            else:
                if not received:
                    raise ConnectionResetError("the task closed the connection")
                self.moved_s = monotonic()
                return received

    def tell(self, message: DriverMessage, text: bytes = b"") -> None:
        """Send a message, as far as the socket accepts it now; the rest follows when it accepts more."""
        self.out += packed_message(message, text)
        self.flush()

    def flush(self) -> None:
        while self.out:
            try:
                sent = self.sock.send(self.out)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            del self.out[:sent]


class ListenerThread(threading.Thread):
    def __init__(self, listener: StreamListener, server: socket.socket, tls: ssl.SSLContext | None) -> None:
        super().__init__(target=copy_context().run, args=(self._run,), name="spark_2pc_sink stream", daemon=True)
        self._listener, self._server, self._tls, self._limits = listener, server, tls, listener.limits
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        for sock in (self._server, self._wake_in, self._wake_out):
            sock.settimeout(0)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._connections: dict[_Connection, None] = {}
        self._turns: list[_Connection] = []
        self._woken = self._closing = False
        #: The thread has ended by an error.
        self.has_failed: bool = False
        self._swept_s = 0.0
        self.start()

    def wake(self) -> None:
        """Look at attempts and waiting connections soon. Any thread may call it."""
        if not self._woken:
            self._woken = True
            # A thread that has just ended has closed the socket.
            with suppress(OSError):
                self._wake_out.send(b"x")

    def close(self) -> None:
        self._closing = True
        self.wake()
        self.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._serve()
        except Exception as error:  # noqa: BLE001 - every attempt fails by it
            self.has_failed = True
            self._listener.failed(error)
        self._look()
        for connection in list(self._connections):
            self._close(connection)
        for sock in (self._server, self._wake_in, self._wake_out):
            sock.close()
        self._selector.close()

    def _serve(self) -> None:
        due = dict.fromkeys(self._turns)
        self._turns.clear()
        for key, _ in self._selector.select(0 if due else self._limits.alive_s / 2):
            if key.fileobj is self._server:
                self._accept()
            elif key.fileobj is self._wake_in:
                self._wake_in.recv(_WAKES)
                self._woken = False
                self._look()
            else:
                due[key.data] = None
        for connection in due:
            self._step(connection)
        if monotonic() >= self._swept_s + self._limits.alive_s / 2:
            self._sweep()

    def _accept(self) -> None:
        try:
            sock, _ = self._server.accept()
        except (BlockingIOError, ConnectionError):
            return
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        strangers = [each for each in self._connections if each.sender is None]
        if len(strangers) >= self._limits.tasks_at_once + _STRANGERS_MAX:
            self._close(strangers[0])
        connection = _Connection(sock)
        connection.steps = self._conversation(connection)
        self._connections[connection] = None
        self._step(connection)

    def _conversation(self, connection: _Connection) -> _Steps[None]:
        """The steps of a connection from its first byte to its last."""
        token = memoryview(bytearray(TOKEN_BYTES))
        filled = 0
        while filled < TOKEN_BYTES:
            filled += yield from connection.receive(token[filled:])
        attempt = self._listener.attempt_of(bytes(token))
        if attempt is None:
            raise ConnectionRefusedError("it has not sent the token of an open attempt")
        connection.attempt = attempt
        connection.tell(DriverMessage.WELCOME)
        connection.sender = sender = attempt.admit(*HELLO.unpack((yield from self._frame(connection)).payload))
        while not sender.ended:
            frame = yield from self._frame(connection)
            attempt.receive(sender, frame)
            yield _Wait.TURN
        connection.tell(DriverMessage.RECEIPT)

    @staticmethod
    def _frame(connection: _Connection) -> _Steps[Frame]:
        """The next frame, once there is room for it."""
        reader, sender, attempt, has_room = connection.reader, connection.sender, connection.attempt, False
        while True:
            if reader.frame_bytes and not has_room and attempt is not None and sender is not None:
                while not attempt.reserve(sender, reader.frame_bytes):
                    yield _Wait.ROOM
                has_room = True
                connection.moved_s = monotonic()
            frame = reader.advance((yield from connection.receive(reader.space())))
            if frame is not None:
                return frame

    def _step(self, connection: _Connection) -> None:
        """Advance a connection until it waits."""
        if connection not in self._connections:
            return
        try:
            connection.flush()
            connection.wait = next(connection.steps)
        except StopIteration:
            self._close(connection)
        except Exception as error:
            attempt = connection.attempt
            if isinstance(error, RemoteProtocolError) and attempt is not None:
                attempt.fail(BatchRetryError(reason=str(error)))
            if isinstance(error, (RemoteProtocolError, StaleTaskError)) or (attempt and error is attempt.failure):
                self._refuse(connection, str(error))
            elif isinstance(error, OSError):
                self._close(connection)
            else:
                raise
        else:
            if connection.wait is _Wait.TURN:
                self._turns.append(connection)
            self._listen(connection)

    def _listen(self, connection: _Connection) -> None:
        """Register the condition that a connection waits for."""
        events = 0 if connection.wait is _Wait.ROOM else selectors.EVENT_READ
        if connection.out or connection.wait is _Wait.WRITE:
            events |= selectors.EVENT_WRITE
        if events != connection.events:
            if not events:
                self._selector.unregister(connection.sock)
            elif connection.events:
                self._selector.modify(connection.sock, events, connection)
            else:
                self._selector.register(connection.sock, events, connection)
            connection.events = events

    def _tell(self, connection: _Connection, message: DriverMessage, text: bytes = b"") -> None:
        try:
            connection.tell(message, text)
        except OSError:
            self._close(connection)
        else:
            self._listen(connection)

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self._tell(connection, DriverMessage.REFUSED, reason[:_REFUSAL_CHARACTERS_MAX].encode(errors="replace"))
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        if self._connections.pop(connection, connection) is connection:
            return
        if connection.events:
            self._selector.unregister(connection.sock)
        if connection.attempt is not None and connection.sender is not None:
            connection.attempt.lost(connection.sender)
        connection.sock.close()

    def _look(self) -> None:
        """Notify connections of changes to their attempts, and resume those for which there is room now."""
        for connection in list(self._connections):
            attempt, sender = connection.attempt, connection.sender
            if attempt is not None and attempt.failure is not None:
                self._refuse(connection, str(attempt.failure))
            elif attempt is not None and sender is not None:
                answer = attempt.taken_answer(sender)
                if sender.replaced:
                    self._refuse(connection, f"a newer attempt of task {sender.task} has started")
                elif answer is not None:
                    self._tell(connection, DriverMessage.ANSWER, answer)
        waiting = {each.sender: each for each in self._connections if each.wait is _Wait.ROOM}
        for attempt in {each.attempt for each in waiting.values() if each.attempt is not None}:
            while (first := waiting.pop(attempt.next_waiting, None)) is not None:
                self._step(first)

    def _sweep(self) -> None:
        """Send keep-alive frames, and close connections that are past a deadline."""
        self._swept_s = now_s = monotonic()
        for connection in list(self._connections):
            quiet_s = now_s - connection.moved_s
            if connection.sender is None:
                if now_s - connection.opened_s > self._limits.hello_s:
                    self._close(connection)
            elif connection.reader.mid_frame and connection.wait is _Wait.READ and quiet_s > self._limits.io_deadline_s:
                self._refuse(connection, f"the rest of a frame did not arrive for {quiet_s:.0f} s")
            else:
                self._tell(connection, DriverMessage.ALIVE)


#: Connections that the system accepts before the thread does.
_BACKLOG: Final = 512


@dataclass(frozen=True)
class StreamEndpoint:
    """The driver's listening endpoint.

    Attributes:
        bind_host: spark.driver.bindAddress.
        host: spark.driver.host, by which executors reach the driver.
        ports: tried in order; 0 is a free port chosen by the system.
    """

    bind_host: str
    host: str
    ports: tuple[int, ...] = (0,)
    encrypted: bool = False


class StreamAttempt(AttemptInput):
    """The output of one attempt's tasks, which arrives by a listener."""

    def __init__(self, listener: StreamListener) -> None:
        super().__init__(listener.limits.bytes_max, listener.limits.tasks_at_once, listener.wake)
        self._listener = listener
        self.token: bytes = secrets.token_bytes(TOKEN_BYTES)

    @property
    def address(self) -> StreamAddress:
        """The address for the tasks' plan. The first one of a listener binds its port."""
        return replace(self._listener.listen(), token=self.token)


class StreamListener:
    """Listens for the tasks of a run. A context manager; no thread, socket or file is left after it.

    ``is_needed`` returns False once the query has ended, whose listener may still be open. It then gives up its port to
    another listener of the process that finds none free.
    """

    def __init__(
        self, endpoint: StreamEndpoint, limits: StreamLimits, is_needed: Callable[[], bool] = lambda: True
    ) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self._is_needed = is_needed
        self._lock = threading.Lock()
        self._attempts: tuple[StreamAttempt, ...] = ()
        self._listening: tuple[ListenerThread, StreamAddress] | None = None
        _LISTENERS.add(self)

    def __enter__(self) -> StreamListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the port and all connections, whose attempts fail; the next attempt opens the port again."""
        for attempt in self._attempts:
            attempt.fail(BatchRetryError(reason="the run of the query is over"))
        listening, self._listening = self._listening, None
        if listening is not None:
            listening[0].close()

    @contextmanager
    def open_attempt(self) -> Iterator[StreamAttempt]:
        """Let tasks send for the duration of a block, whose end ends their connections."""
        attempt = StreamAttempt(self)
        with self._lock:
            self._attempts = (*self._attempts, attempt)
        try:
            with attempt.failing():
                yield attempt
        finally:
            with self._lock:
                self._attempts = tuple(each for each in self._attempts if each is not attempt)
            attempt.fail(BatchRetryError(reason="the attempt is over"))

    def listen(self) -> StreamAddress:
        """Listen, unless it already does; returns the address, without a token. See `StreamAttempt.address`."""
        with self._lock:
            if self._listening is not None and self._listening[0].has_failed:
                self._listening[0].close()
                self._listening = None
            if self._listening is None:
                endpoint = self.endpoint
                tls, certificate = _made_certificate() if endpoint.encrypted else (None, None)
                try:
                    server = _bound(endpoint)
                except ConfigurationError:
                    for other in _LISTENERS:
                        if not other._is_needed():  # noqa: SLF001 - of another object of this class
                            other.close()
                    server = _bound(endpoint)
                host, port = endpoint.host.strip("[]"), server.getsockname()[1]
                address = StreamAddress(host, port, b"", certificate, self.limits.io_deadline_s)
                self._listening = ListenerThread(self, server, tls), address
            return self._listening[1]

    def wake(self) -> None:
        if (listening := self._listening) is not None:
            listening[0].wake()

    def attempt_of(self, token: bytes) -> StreamAttempt | None:
        """The attempt of a token, found in a time that does not depend on the token."""
        found = [attempt for attempt in self._attempts if hmac.compare_digest(attempt.token, token)]
        return found[0] if found else None

    def failed(self, error: Exception) -> None:
        for attempt in self._attempts:
            attempt.fail(BatchRetryError(reason=f"the driver's listener has ended: {error!r}"))


#: The listeners of this process.
_LISTENERS: Final[WeakSet[StreamListener]] = WeakSet()


def _bound(endpoint: StreamEndpoint) -> socket.socket:
    """The listening socket, on the first port that can be bound."""
    refused = []
    host = endpoint.bind_host.strip("[]")
    for port in endpoint.ports:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            refused.append(f"port {port}: {error}")
    rule = f"the driver must be able to listen on one of them at {host} (spark.driver.bindAddress): {refused[-1]}"
    remedy = (
        "choose a free port, widen driver_port_range (each query that runs at the same time needs one), or set "
        "spark.driver.bindAddress to an address of the driver's host"
    )
    raise ConfigurationError(option="driver_port", value=", ".join(map(str, endpoint.ports)), rule=rule, remedy=remedy)


def _made_certificate() -> tuple[ssl.SSLContext, str]:
    """TLS with a key and certificate that are unique to the run: the context, and the certificate's PEM."""
    with extra("encryption"):
        from cryptography import x509  # noqa: PLC0415 - where it is needed
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "spark_2pc_sink driver")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=3650))  # a query may run for years
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM)
    password = secrets.token_bytes(TOKEN_BYTES).hex().encode()
    encryption = serialization.BestAvailableEncryption(password)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # Python reads a key only from a file: this one is encrypted, and exists for a moment.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + private)
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context, certificate.decode()
