"""The driver's end of the stream: one port for a run of a query, one token for each attempt of a batch."""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import tempfile
import threading
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet

from spark_2pc_sink.errors import BatchRetryError, ConfigurationError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput
from spark_2pc_sink.sink.stream.connections import Connections, StreamLimits
from spark_2pc_sink.sink.stream.task_stream import TOKEN_BYTES, StreamAddress

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_BACKLOG: Final = 512


@dataclass(frozen=True)
class StreamEndpoint:
    """The driver's listening endpoint.

    Attributes:
        bind_host: spark.driver.bindAddress.
        host: spark.driver.host, by which executors reach the driver.
        ports: tried in order; 0 is a free port chosen by the system.
        encrypted: True for TLS, with a certificate created for the run.
    """

    bind_host: str
    host: str
    ports: tuple[int, ...] = (0,)
    encrypted: bool = False


class StreamAttempt(AttemptInput):
    """The output of one attempt's tasks. A context manager: leaving it ends the connections of its tasks.

    Attributes:
        token: admits tasks.
    """

    def __init__(self, listener: StreamListener, limits: StreamLimits) -> None:
        super().__init__(limits.bytes_max, limits.tasks_at_once, listener.wake)
        self._listener = listener
        self.token: bytes = secrets.token_bytes(TOKEN_BYTES)

    def __enter__(self) -> StreamAttempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close_attempt(self)
        self.fail(error if isinstance(error, Exception) else BatchRetryError(reason="the attempt is over"))

    @property
    def address(self) -> StreamAddress:
        """The address for the tasks' plan. The first one of a listener binds its port.

        Raises:
            ConfigurationError: no port can be bound; the text names the option.
            MissingExtraError: encryption needs a package that is not installed.
        """
        return replace(self._listener.listen(), token=self.token)


class StreamListener:
    """Listens for the tasks of a run. A context manager; no thread, socket or file is left after it.

    Args:
        endpoint: where to listen, once the address of an attempt is requested.
        limits: bounds.
        is_needed: False once the query has ended, whose listener may still be open. It then gives up its port to
            another listener of the process that finds none free.
    """

    def __init__(
        self, endpoint: StreamEndpoint, limits: StreamLimits, is_needed: Callable[[], bool] = lambda: True
    ) -> None:
        self.endpoint = endpoint
        self._limits = limits
        self._is_needed = is_needed
        self._lock = threading.Lock()
        self._attempts: tuple[StreamAttempt, ...] = ()
        self._listening: tuple[Connections, StreamAddress] | None = None
        _LISTENERS.add(self)

    def __enter__(self) -> StreamListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for attempt in self._attempts:
            attempt.fail(BatchRetryError(reason="the run of the query is over"))
        self.close()

    def close(self) -> None:
        """Close the port and all connections. The next attempt whose address is requested opens them again."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening[0].close()

    def open_attempt(self) -> StreamAttempt:
        """A new attempt, which admits tasks until it is left."""
        attempt = StreamAttempt(self, self._limits)
        with self._lock:
            self._attempts = (*self._attempts, attempt)
        return attempt

    def close_attempt(self, attempt: StreamAttempt) -> None:
        """Admit no more tasks of an attempt."""
        with self._lock:
            self._attempts = tuple(each for each in self._attempts if each is not attempt)

    def listen(self) -> StreamAddress:
        """Listen, unless it already does; returns the address, without a token. See `StreamAttempt.address`."""
        with self._lock:
            if self._listening is not None and self._listening[0].has_failed:
                self._listening[0].close()
                self._listening = None
            if self._listening is None:
                endpoint = self.endpoint
                tls = _made_certificate() if endpoint.encrypted else None
                try:
                    server = _bound(endpoint)
                except ConfigurationError:
                    for other in _LISTENERS:
                        if not other._is_needed():  # noqa: SLF001 - of another object of this class
                            other.close()
                    server = _bound(endpoint)
                address = StreamAddress(
                    endpoint.host.strip("[]"),
                    server.getsockname()[1],
                    b"",
                    None if tls is None else tls.certificate,
                    self._limits.io_deadline_s,
                )
                context = None if tls is None else tls.context
                connections = Connections(server, context, self._limits, self._attempt_of, self._failed)
                self._listening = connections, address
            return self._listening[1]

    def wake(self) -> None:
        """Make the thread look at its attempts."""
        listening = self._listening
        if listening is not None:
            listening[0].wake()

    def _attempt_of(self, token: bytes) -> StreamAttempt | None:
        """The attempt of a token, found in a time that does not depend on the token."""
        found = None
        for attempt in self._attempts:
            if hmac.compare_digest(attempt.token, token):
                found = attempt
        return found

    def _failed(self, error: Exception) -> None:
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
    raise ConfigurationError(
        option="driver_port",
        value=", ".join(map(str, endpoint.ports)),
        rule=f"the driver must be able to listen on one of them at {host} (spark.driver.bindAddress): {refused[-1]}",
        remedy="choose a free port, widen driver_port_range (each query that runs at the same time needs one), or set "
        "spark.driver.bindAddress to an address of the driver's host",
    )


class _ServerTls(NamedTuple):
    """TLS of a listener: its context, and the PEM of its certificate."""

    context: ssl.SSLContext
    certificate: str


def _made_certificate() -> _ServerTls:
    """TLS with a key and certificate that are unique to the run.

    Raises:
        MissingExtraError: the package that creates them is not installed.
    """
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
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # Python reads a key only from a file: this one is encrypted, and exists for a moment.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + private)
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return _ServerTls(context, certificate.decode())
