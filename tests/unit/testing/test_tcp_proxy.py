"""The proxy: it forwards, and each of its faults is the fault that it says."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from spark_2pc_sink.testing import TcpProxy, kafka_request, postgres_query, wait_until

DEADLINE_S = 10.0


@dataclass
class Echo:
    """A server that answers what it gets, and remembers it."""

    port: int
    requests: list[bytes] = field(default_factory=list)


@pytest.fixture
def echo() -> Iterator[Echo]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while request := self.request.recv(65_536):
                running.requests.append(request)
                self.request.sendall(request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A connection that was reset is what these tests make."""

    with Server(("127.0.0.1", 0), Handler) as server:
        running = Echo(port=server.server_address[1])
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        server.shutdown()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(target_port=echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
        yield client


def answer(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return client.recv(65_536)


def test_loses_requests_until_it_is_restored(echo: Echo, proxy: TcpProxy) -> None:
    proxy.lose_requests(lambda request: request == b"two")
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
            assert answer(client, b"one") == b"one"
            with pytest.raises(ConnectionResetError):
                answer(client, b"two")
    assert b"two" not in echo.requests
    proxy.restore()
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
        assert answer(client, b"two") == b"two"


def test_loses_the_answer_but_not_the_request(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    proxy.lose_answer(lambda request: request == b"commit")
    assert answer(client, b"begin") == b"begin"
    with pytest.raises(ConnectionResetError):
        answer(client, b"commit")
    assert proxy.wait_for_lost_answer(deadline_s=DEADLINE_S)
    assert echo.requests == [b"begin", b"commit"]
    assert proxy.answers_lost == 1
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as again:
        assert answer(again, b"commit") == b"commit"


def test_cut_resets_what_there_is_and_what_comes(proxy: TcpProxy, client: socket.socket) -> None:
    assert answer(client, b"one") == b"one"
    proxy.cut()
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        answer(client, b"two")
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as refused:
        assert refused.recv(1) == b""
    proxy.restore()
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as again:
        assert answer(again, b"three") == b"three"


def test_held_answers_come_when_restored(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    proxy.hold_answers()
    client.sendall(b"one")
    wait_until(lambda: echo.requests == [b"one"], deadline_s=DEADLINE_S, what="the request at the server")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1)
    proxy.restore()
    client.settimeout(DEADLINE_S)
    assert client.recv(10) == b"one"


def test_a_server_that_does_not_read_does_not_stop_the_proxy() -> None:
    """A stopped server takes no bytes; commands must still be carried out, and other clients served."""
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        TcpProxy(target_port=deaf.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client,
    ):
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.sendall(bytes(64 << 20))
        proxy.reset_connections()
        client.settimeout(DEADLINE_S)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_the_end_of_a_connection_comes_after_the_last_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, TcpProxy(target_port=server.getsockname()[1]) as proxy:
        proxy.delay_answers(0.1)
        with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
            accepted, _ = server.accept()
            accepted.sendall(b"last words")
            accepted.close()
            assert client.recv(65_536) == b"last words"
            assert client.recv(1) == b""


def test_recognises_requests() -> None:
    end_txn = struct.pack(">ihhi", 8, 26, 5, 1)
    assert kafka_request(26)(end_txn)
    assert not kafka_request(0)(end_txn)
    assert not kafka_request(26)(b"")
    assert postgres_query("COMMIT")(b"Q\x00\x00\x00\x0bCOMMIT\x00")
    assert not postgres_query("COMMIT")(b"Q\x00\x00\x00\x0aBEGIN\x00")
