"""The wire of the fake Kafka: ports that take real requests, and the steps of a script that come between."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol import admin, consumer, metadata, producer, sasl

from spark_2pc_sink.codes import Code

SASL_HANDSHAKE: Final = sasl.SaslHandshakeRequest.API_KEY
SASL_AUTHENTICATE: Final = sasl.SaslAuthenticateRequest.API_KEY
_REQUESTS: Final = {
    kind.API_KEY: kind
    for module in (admin, consumer, metadata, producer, sasl)
    for name, kind in vars(module).items()
    if name.endswith("Request") and hasattr(kind, "API_KEY")
}


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    node_id: int
    api: int
    version: int
    body: Any


class HangUpError(Exception):
    """Close the connection instead of answering."""


#: Given the request and what would carry it out: returns the response, or None for silence, or raises `HangUpError`.
Step = Callable[[Received, Callable[[int], Any]], Any]


def answer(code: int) -> Step:
    """Refuse with ``code``; nothing is carried out."""
    return lambda _received, serve: serve(code)


def serve_it(_received: Received, serve: Callable[[int], Any]) -> Any:
    """Behave as without a script."""
    return serve(Code.NONE)


def lose_answer(_received: Received, serve: Callable[[int], Any]) -> Any:
    """Carry it out, and close the connection instead of answering."""
    serve(Code.NONE)
    raise HangUpError


def serve_no_records(_received: Received, serve: Callable[[int], Any]) -> Any:
    """Answer a Fetch of one partition without the records that are there."""
    response = serve(Code.NONE)
    response.responses[0].partitions[0].records = b""
    return response


def hang_up(_received: Received, _serve: Callable[[int], Any]) -> Any:
    """Close the connection, carrying out nothing."""
    raise HangUpError


def keep_silent(_received: Received, _serve: Callable[[int], Any]) -> Any:
    """Carry out nothing and answer nothing."""
    return None


class Listener:
    """The port of one broker; it stays the same over stop and start.

    Args:
        node_id: of the broker.
        respond: the response to a request; None for silence.
    """

    def __init__(self, node_id: int, respond: Callable[[Received], Any]) -> None:
        self.node_id = node_id
        self._respond = respond
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = 0
        self.start()

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = socket.create_server(("127.0.0.1", self.port))
        self.port = self._server.getsockname()[1]
        self._run(self._accept)

    def stop(self) -> None:
        """Close the port and every connection."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._connections.clear()
        self._threads.clear()

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, HangUpError):
            for frame in _frames(connection):
                api, version, correlation_id = struct.unpack_from(">hhi", frame)
                body = _REQUESTS[api].decode(frame, version=version, header=True)
                response = self._respond(Received(self.node_id, api, version, body))
                if response is None:
                    continue
                refused_login = api == SASL_AUTHENTICATE and response.error_code != Code.NONE
                if refused_login:
                    # As Kafka does: the end of the connection comes together with the answer.
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                response.API_VERSION = version
                response.with_header(correlation_id)
                connection.sendall(response.encode(header=True, framed=True))
                if refused_login:
                    return


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """Length-prefixed frames until the other side closes."""
    stream = connection.makefile("rb")
    with stream:
        while len(head := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", head)[0])
