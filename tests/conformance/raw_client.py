"""A raw Kafka client: one socket, explicit versions, no retries, no opinion.

What is sent is exactly what the caller built, and what comes back is what the server said. A server that hangs up is
seen as `HungUpError`, because for some requests that is the answer.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

from kafka.protocol import producer, sasl

from tests.unit.reference.batches import RESPONSES, message

#: The longest wait for one answer; Kafka itself gives up waiting for anything that these tests do far earlier.
ANSWER_DEADLINE_S: Final = 30.0
_SIZE: Final = struct.Struct(">i")


class HungUpError(Exception):
    """The server closed the connection instead of answering."""


class RawClient:
    """A connection to one server.

    Args:
        bootstrap: ``host:port``.
        client_id: as the server sees it; Kafka lets ``__admin_client`` write to internal topics.
        user: name and password for SASL/PLAIN, or None for a listener without authentication.
    """

    def __init__(self, bootstrap: str, *, client_id: str = "conformance", user: tuple[str, str] | None = None) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.bootstrap = bootstrap
        self._client_id = client_id
        self._correlation = 0
        self._waiting: list[tuple[int, Any, int]] = []
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = self._socket.makefile("rb")
        if user is not None:
            self._log_in(*user)

    def call(self, request: Any, version: int) -> Any:
        """Send one request and wait for its answer. Raises HungUpError: the server closed the connection."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Any, version: int) -> None:
        """Send a request without waiting; answers come in the same order."""
        self._correlation += 1
        request.API_VERSION = version
        request.with_header(self._correlation, self._client_id)
        frame = request.encode(version=version, header=True, framed=True)
        self._waiting.append((self._correlation, RESPONSES[request.API_KEY], version))
        try:
            self._socket.sendall(frame)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise HungUpError(str(error)) from error

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet. Raises HungUpError: the server closed the connection."""
        correlation, response, version = self._waiting[0]
        answer = response.decode(self.receive_bytes(), version=version, header=True)
        assert answer.header.correlation_id == correlation
        return answer

    def receive_bytes(self) -> bytes:
        """The same as it came, from the header on. Raises HungUpError: the server closed the connection."""
        self._waiting.pop(0)
        try:
            size = self._buffer.read(_SIZE.size)
            body = self._buffer.read(_SIZE.unpack(size)[0]) if len(size) == _SIZE.size else b""
        except ConnectionResetError as error:
            raise HungUpError(str(error)) from error
        if not body:
            raise HungUpError("the server closed the connection")
        return body

    def reconnected(self) -> RawClient:
        """A new connection to the same server, without authentication."""
        self.close()
        return RawClient(self.bootstrap, client_id=self._client_id)

    def close(self) -> None:
        self._buffer.close()
        self._socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log_in(self, name: str, password: str) -> None:
        offered = self.call(sasl.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert offered.error_code == 0, offered
        token = f"\0{name}\0{password}".encode()
        answered = self.call(sasl.SaslAuthenticateRequest(auth_bytes=token), 2)
        assert answered.error_code == 0, answered


def code_of(client: RawClient, batch: bytes, topic: str, *, partition: int = 0) -> int:
    """What the broker answers to a Produce of one batch, of no transaction."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
    request = message(producer.ProduceRequest, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=data)
    (answer,) = client.call(request, 12).responses
    return int(answer.partition_responses[0].error_code)
