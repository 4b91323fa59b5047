"""One connection to a broker: what may come of a request, and no credentials in any log."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.producer import EndTxnResponse

from spark_2pc_sink.errors import AuthorizationError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.broker_connections import BrokerConnections
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.testing import ReferenceCoordinator
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.framed_request import end_txn_request
from spark_2pc_sink.wire.messages import KafkaRequest, find_coordinators_request
from tests.harness.login_broker import MECHANISMS, PASSWORD, LoginBroker
from tests.unit.fakes.cluster import FakeCluster
from tests.unit.fakes.wire import Received, answer
from tests.unit.producer.support import options_for

_NEXT = ProducerIdAndEpoch(7, 3)
PEER = "bootstrap-0"
#: What a peer does after a request: given the connection and the correlation id.
Reply = Callable[[socket.socket, int], None]


def request() -> KafkaRequest:
    return end_txn_request("orders", ProducerIdAndEpoch(7, 2), commit=True, version=5)


def framed(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def ended(correlation_id: int) -> bytes:
    response = EndTxnResponse(
        version=5, throttle_time_ms=0, error_code=0, producer_id=_NEXT.producer_id, producer_epoch=_NEXT.epoch
    )
    return framed(correlation_id, b"\0" + response.encode(version=5))


def open_to(connection: socket.socket, correlation_id: int) -> None:
    response = ApiVersionsResponse(error_code=0, api_keys=[], finalized_features_epoch=-1, finalized_features=[])
    connection.sendall(framed(correlation_id, response.encode(version=3)))


def in_pieces(connection: socket.socket, correlation_id: int) -> None:
    for byte in ended(correlation_id):
        connection.sendall(bytes([byte]))


def hang_up(connection: socket.socket, _correlation_id: int) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def hang_up_after_half(connection: socket.socket, correlation_id: int) -> None:
    connection.sendall(ended(correlation_id)[:6])
    hang_up(connection, correlation_id)


def answer_another(connection: socket.socket, correlation_id: int) -> None:
    connection.sendall(ended(correlation_id + 7))


def answer_twice(connection: socket.socket, correlation_id: int) -> None:
    connection.sendall(ended(correlation_id) + ended(correlation_id))


def answer_junk(connection: socket.socket, correlation_id: int) -> None:
    connection.sendall(framed(correlation_id, b"\xff" * 9))


def announce_too_much(connection: socket.socket, _correlation_id: int) -> None:
    connection.sendall(struct.pack(">i", 2**31 - 1))


def announce_less_than_nothing(connection: socket.socket, _correlation_id: int) -> None:
    connection.sendall(struct.pack(">i", -1))


def say_nothing(_connection: socket.socket, _correlation_id: int) -> None:
    return


@contextmanager
def connected_to(*replies: Reply, **options: Any) -> Iterator[BrokerConnections]:
    """Connections to a peer that opens, and then gives these replies, the last one again and again."""

    def serve() -> None:
        with server.accept()[0] as accepted, accepted.makefile("rb") as stream:
            waiting = [open_to, *replies]
            while len(head := stream.read(4)) == 4:
                (correlation_id,) = struct.unpack_from(">i", stream.read(struct.unpack(">i", head)[0]), 4)
                (waiting.pop(0) if len(waiting) > 1 else waiting[0])(accepted, correlation_id)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        connections = BrokerConnections(options_for(f"127.0.0.1:{server.getsockname()[1]}", **options))
        try:
            connections.api_versions(PEER, connections.deadline())
            yield connections
        finally:
            connections.close()
            thread.join(10)


def test_an_answer_is_read_however_it_is_cut() -> None:
    with connected_to(in_pieces) as connections:
        found = connections.request(PEER, request(), connections.deadline())
    assert found.producer == _NEXT


def test_several_requests_are_on_their_way_and_each_gets_its_answer() -> None:
    held: list[int] = []

    def answer_the_third(connection: socket.socket, correlation_id: int) -> None:
        held.append(correlation_id)
        if len(held) == 3:
            connection.sendall(b"".join(map(ended, held)))

    with connected_to(answer_the_third, max_in_flight=3) as connections:
        sent = [connections.send(PEER, request()) for _ in range(3)]
        assert not connections.ready(PEER)
        for each in sent:
            connections.wait(each, connections.deadline())
        assert [each.value.producer for each in sent] == [_NEXT] * 3
        assert connections.ready(PEER)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (hang_up, "socket disconnected"),
        (hang_up_after_half, "socket disconnected"),
        (answer_another, "answered request 9, and 2 was next"),
        (answer_junk, "cannot be decoded"),
        (announce_too_much, "the length 2147483647"),
        (announce_less_than_nothing, "the length -1"),
        (say_nothing, "request timed out after 50 ms"),
    ],
)
def test_without_its_answer_a_request_fails_and_the_connection_is_closed(reply: Reply, says: str) -> None:
    with connected_to(reply, request_timeout_ms=50) as connections:
        with pytest.raises(NodeUnavailableError, match=says):
            connections.request(PEER, request(), connections.deadline())
        assert connections.by_promise([PEER]) == [PEER]
        assert not connections.ready(PEER), "a new connection is on its way"


def test_an_answer_to_no_request_closes_the_connection() -> None:
    with connected_to(answer_twice) as connections:
        connections.request(PEER, request(), connections.deadline())
        while connections.ready(PEER):
            connections.poll(1)
        assert not connections.ready(PEER), "a new connection is on its way"


def test_an_interruption_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a message may have been read."""

    def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    with connected_to(in_pieces) as connections:
        sent = connections.send(PEER, request())
        monkeypatch.setattr("spark_2pc_sink.kafka.connection.io.BytesIO", interrupt)
        with pytest.raises(KeyboardInterrupt):
            connections.wait(sent, connections.deadline())
        assert isinstance(sent.exception, ConnectionResetError)


def test_a_throttled_connection_waits(fake: FakeCluster, cluster: Cluster) -> None:
    """KIP-219: the broker does not read of it meanwhile."""

    def throttled(received: Received, serve: Callable[[int], Any]) -> Any:
        response = serve(0)
        response.throttle_time_ms = 200
        return response

    cluster.node_ids()
    ask = find_coordinators_request(["x"], version=6)
    fake.script(Api.FIND_COORDINATOR, throttled, answer(0))
    cluster.request(0, ask, cluster.deadline())
    began_s = time.monotonic()
    assert not cluster.ready(0)
    cluster.request(0, ask, cluster.deadline())
    assert time.monotonic() - began_s >= 0.19


def test_a_connection_that_was_not_used_for_long_is_made_again(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.coordinator("x", cluster.deadline())
    fake.received.clear()
    ahead_s = cluster.options.connections_max_idle_ms / 1000
    monkeypatch.setattr("spark_2pc_sink.kafka.connection.monotonic", lambda: time.monotonic() + ahead_s)
    cluster.coordinator("y", cluster.deadline())
    assert [Api(each.api) for each in fake.received] == [Api.API_VERSIONS, Api.FIND_COORDINATOR]


# --- logs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[LoginBroker]:
    broker = LoginBroker(ReferenceCoordinator())
    broker.server.properties["connection.failed.authentication.delay.ms"] = "1"
    with broker.server:
        yield broker


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What any logger says at any level."""
    with caplog.at_level(1):
        yield caplog


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login(broker: LoginBroker, logged: pytest.LogCaptureFixture, mechanism: str) -> None:
    with Cluster(KafkaOptions.parse(broker.properties(mechanism))) as cluster:
        cluster.features()
    assert "connected to broker" in logged.text
    assert_hidden(PASSWORD, logged.text)


def test_a_refused_login(broker: LoginBroker, logged: pytest.LogCaptureFixture) -> None:
    wrong = "plänted-" + secrets.token_hex(8)
    options = KafkaOptions.parse(broker.properties("PLAIN", password=wrong))
    with Cluster(options) as cluster, pytest.raises(AuthorizationError) as caught:
        cluster.features()
    assert_hidden(wrong, logged.text)
    assert_hidden(wrong, str(caught.getrepr(chain=True, style="long", showlocals=False)))


def assert_hidden(secret: str, text: str) -> None:
    """Not as text, and not as the repr of its bytes."""
    assert secret not in text
    assert repr(secret.encode())[2:-1] not in text
