"""One request and its answer by the socket of a connection at rest."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from kafka import errors as kafka_errors
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.producer import EndTxnResponse

from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.producer.direct_exchange import SentRequest, at_rest
from spark_2pc_sink.producer.sockets import PlainSocket
from spark_2pc_sink.wire.framed_request import end_txn_request
from spark_2pc_sink.wire.messages import KafkaRequest
from spark_2pc_sink.wire.responses import KafkaResponse, read_end_txn

_NEXT = ProducerIdAndEpoch(7, 3)


class Connection:
    """kafka-python's, as far as it matters here, and the broker's end of its socket."""

    def __init__(self) -> None:
        ours, self.broker = socket.socketpair()
        ours.setblocking(False)
        self.socket = PlainSocket(fileno=ours.detach())
        self.transport = SimpleNamespace(_sock=self.socket, last_read=0.0)
        self.parser = KafkaProtocol(client_id="test")
        self.connected = True
        self.paused: set[str] = set()
        self.in_flight_requests: deque[object] = deque()
        self._reauth = SimpleNamespace(is_reauthenticating=False)
        self.closed_for: list[BaseException] = []

    def close(self, error: BaseException) -> None:
        self.closed_for.append(error)


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    with made.broker, made.socket:
        yield made


def request() -> KafkaRequest:
    return end_txn_request("orders", ProducerIdAndEpoch(7, 2), commit=True, version=5)


def exchange(connection: Connection, *, timeout_s: float) -> KafkaResponse:
    return SentRequest(connection, request(), timeout_s=timeout_s).answer()


def answer(correlation_id: int = 1) -> bytes:
    body = EndTxnResponse(
        version=5, throttle_time_ms=0, error_code=0, producer_id=_NEXT.producer_id, producer_epoch=_NEXT.epoch
    ).encode(version=5)
    framed: bytes = struct.pack(">iiB", 5 + len(body), correlation_id, 0) + body
    return framed


def test_the_answer_is_read_however_it_is_cut(connection: Connection) -> None:
    whole = answer()
    connection.broker.sendall(whole[:6])
    pieces = [whole[6:]]
    received = connection.socket.recv

    def recv(size: int) -> bytes:
        found = received(size)
        if pieces:
            connection.broker.sendall(pieces.pop())
        return found

    connection.socket.recv = recv  # type: ignore[assignment, method-assign]
    assert read_end_txn(exchange(connection, timeout_s=10)).producer == _NEXT
    assert connection.broker.recv(1000)[4:6] == struct.pack(">h", 26)
    assert not connection.closed_for
    assert connection.transport.last_read > 0
    assert connection.socket.gettimeout() == 0


def hang_up(connection: Connection) -> None:
    connection.broker.close()


def hang_up_behind_half(connection: Connection) -> None:
    connection.broker.sendall(answer()[:6])
    connection.broker.close()


def answer_another(connection: Connection) -> None:
    connection.broker.sendall(answer(9))


@pytest.mark.parametrize("happening", [hang_up, hang_up_behind_half, answer_another])
def test_a_connection_whose_answer_was_not_taken_is_closed(
    connection: Connection, happening: Callable[[Connection], None]
) -> None:
    happening(connection)
    with pytest.raises(kafka_errors.KafkaConnectionError):
        exchange(connection, timeout_s=10)
    assert len(connection.closed_for) == 1


@pytest.mark.parametrize("timeout_s", [0, 0.01])
def test_no_answer_in_time_closes_it(connection: Connection, timeout_s: float) -> None:
    with pytest.raises(kafka_errors.RequestTimedOutError, match="no answer within"):
        exchange(connection, timeout_s=timeout_s)
    assert len(connection.closed_for) == 1


def test_a_connection_that_was_closed_before_the_answer_was_read_has_none(connection: Connection) -> None:
    """The answer is taken when somebody needs it, and the loop may have closed the connection by then."""
    sent = SentRequest(connection, request(), timeout_s=10)
    connection.transport = None  # type: ignore[assignment]
    with pytest.raises(kafka_errors.KafkaConnectionError, match="closed before the answer"):
        sent.answer()


def test_an_interruption_closes_it(connection: Connection) -> None:
    def interrupt(_size: int) -> bytes:
        raise KeyboardInterrupt

    connection.socket.recv = interrupt  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        exchange(connection, timeout_s=10)
    assert len(connection.closed_for) == 1


def test_the_answer_of_an_interrupted_request_is_that_of_no_other(connection: Connection) -> None:
    """A handler of a signal may raise where nobody holds the request yet, or no more."""
    SentRequest(connection, request(), timeout_s=10)
    connection.broker.sendall(answer())
    with pytest.raises(kafka_errors.KafkaConnectionError, match="interrupted"):
        exchange(connection, timeout_s=10)
    assert len(connection.closed_for) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connected", False),
        ("paused", {"throttle"}),
        ("in_flight_requests", deque([1])),
        ("_reauth", SimpleNamespace(is_reauthenticating=True)),
    ],
    ids=["lost", "paused", "asked", "login"],
)
def test_nothing_is_under_way_on_a_connection_at_rest(connection: Connection, name: str, value: object) -> None:
    assert at_rest(connection)
    setattr(connection, name, value)
    assert not at_rest(connection)
