"""Connections to brokers: refused, silent, killed or cut; deadlines; a log without credentials.

Covers B24 (features re-read), B25 (no hang).
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from kafka.protocol.producer import EndTxnResponse

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, KafkaError, KafkaTimeoutError, UnknownTopicError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.broker_connections import BrokerConnections
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.connection_failures import NodeUnavailableError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.testing import ReferenceCoordinator, free_port, wait_until
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.api_versions import Api
from spark_2pc_sink.wire.framed_request import RequestTemplate, end_txn_request
from spark_2pc_sink.wire.messages import OffsetSpec, find_coordinators_request
from tests.harness.secure_kafka import MECHANISMS, PASSWORD, LoginBroker
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.cluster import FakeCluster, fake_cluster
from tests.unit.fakes.wire import HangUpError, Received, Step, answer, changed, hang_up, keep_silent, lose_answer
from tests.unit.kafka.support import T0, T1, options_for
from tests.unit.reference.batches import client_batch

_NEXT = ProducerIdAndEpoch(7, 3)
PEER = "bootstrap-0"


def request() -> RequestTemplate:
    return end_txn_request("orders", ProducerIdAndEpoch(7, 2), commit=True)


def framed(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def ended(correlation_id: int) -> bytes:
    response = EndTxnResponse(
        version=5, throttle_time_ms=0, error_code=0, producer_id=_NEXT.producer_id, producer_epoch=_NEXT.epoch
    )
    return framed(correlation_id, b"\0" + response.encode(version=5))


def sends(made: Callable[[int], bytes]) -> Step:
    """Send what is made of the correlation id, byte by byte."""

    def step(received: Received, _serve: Callable[[int], Any]) -> None:
        for byte in made(received.correlation_id):
            received.connection.sendall(bytes([byte]))

    return step


def stop_halfway(received: Received, serve: Callable[[int], Any]) -> None:
    sends(lambda number: ended(number)[:6])(received, serve)
    raise HangUpError


@contextmanager
def connected_to(fake: FakeCluster, *steps: Step, **options: Any) -> Iterator[BrokerConnections]:
    """Connections to a broker that answers EndTxn by these steps."""
    fake.script(Api.END_TXN, *steps)
    connections = BrokerConnections(options_for(fake, **options))
    try:
        connections.api_versions(PEER, connections.deadline())
        yield connections
    finally:
        connections.close()


def test_an_answer_is_read_however_it_is_cut(fake: FakeCluster) -> None:
    with connected_to(fake, sends(ended)) as connections:
        found = connections.request(PEER, request(), connections.deadline())
    assert found[1:] == (_NEXT.producer_id, _NEXT.epoch)


def test_several_requests_are_on_their_way_and_each_gets_its_answer(fake: FakeCluster) -> None:
    third = sends(lambda number: b"".join(map(ended, range(number - 2, number + 1))))
    with connected_to(fake, keep_silent, keep_silent, third, max_in_flight=3) as connections:
        sent = [connections.send(PEER, request(), connections.deadline()) for _ in range(3)]
        assert not connections.ready(PEER)
        while not sent[-1].is_done:
            connections.poll(1.0)
        assert [each.value[1:] for each in sent] == [(_NEXT.producer_id, _NEXT.epoch)] * 3
        assert connections.ready(PEER)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (hang_up, "socket disconnected"),
        (stop_halfway, "socket disconnected"),
        (sends(lambda number: ended(number + 7)), "answered request 9 instead of 2"),
        (sends(lambda number: framed(number, b"\xff" * 9)), "cannot be decoded"),
        (sends(lambda _: struct.pack(">i", 2**31 - 1)), "the length 2147483647"),
        (sends(lambda _: struct.pack(">i", -1)), "the length -1"),
        (keep_silent, "request timed out after 50 ms"),
    ],
)
def test_without_its_answer_a_request_fails_and_the_connection_is_closed(
    fake: FakeCluster, step: Step, says: str
) -> None:
    with connected_to(fake, step, request_timeout_ms=50) as connections:
        with pytest.raises(NodeUnavailableError, match=says):
            connections.request(PEER, request(), connections.deadline())
        assert connections.most_promising_first([PEER]) == [PEER]
        assert not connections.ready(PEER), "a new connection is on its way"


def test_a_throttled_connection_waits(fake: FakeCluster, cluster: Cluster) -> None:
    """KIP-219: the broker does not read of it meanwhile."""

    def throttle(response: Any) -> None:
        response.throttle_time_ms = 200

    cluster.node_ids()
    ask = find_coordinators_request(["x"])
    fake.script(Api.FIND_COORDINATOR, changed(throttle))
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


def cut_short() -> KafkaTimeoutError:
    return KafkaTimeoutError(operation="METADATA", deadline_ms=1, last_error="not answered in time")


@pytest.mark.parametrize(
    ("failures", "limit_ms", "reported"),
    [
        ([NodeUnavailableError("refused"), NodeUnavailableError("loading")], 110, "asking .* 110 ms: loading"),
        ([NodeUnavailableError("loading"), NodeUnavailableError("cut short")], 70, "asking .* 70 ms: loading"),
        ([NodeUnavailableError("loading"), cut_short()], 90, "asking .* 90 ms: loading"),
        ([NodeUnavailableError("not answered")], 30, "asking .* 30 ms: not answered"),
        ([cut_short()], 90, "METADATA .* not answered in time"),
        ([], 0, "asking .* 0 ms: no broker has answered yet"),
    ],
)
def test_the_newest_reason_is_reported_unless_the_deadline_cut_the_attempt_short(
    failures: list[Exception], limit_ms: int, reported: str
) -> None:
    clock, waiting = FakeClock(), list(failures)

    def attempt() -> None:
        clock.now += 0.04
        raise waiting.pop(0)

    connections = BrokerConnections(options_for("127.0.0.1:1"))
    with pytest.raises(KafkaTimeoutError, match=reported):
        connections.until_answered("asking", attempt, Deadline(clock, limit_ms))


def ends_of(*partitions: TopicPartition) -> RequestTemplate:
    return messages.list_offsets_request(dict.fromkeys(partitions, OffsetSpec.LATEST))


def test_an_answer_that_nobody_takes_is_not_given_to_the_next_request(fake: FakeCluster, cluster: Cluster) -> None:
    """Answers come in the order of the requests, and each belongs to its own."""
    fake.partitions[T1].put(client_batch([b"x"] * 9))
    cluster.partition_counts(["t"])
    cluster.api_versions(0, cluster.deadline())
    left = cluster.begin(0, ends_of(T0), cluster.deadline())
    assert left is not None
    answer = messages.by_partition(cluster.request(0, ends_of(T1), cluster.deadline()))
    assert {partition: found.offset for partition, found in answer.items()} == {T1: 9}
    assert messages.by_partition(left()).keys() == {T0}


def test_several_brokers_are_asked_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with fake_cluster(brokers=2) as fake, Cluster(options_for(fake)) as cluster:
        fake.partitions[T1].put(client_batch([b"x"] * 3))
        cluster.partition_counts(["t"])
        for partition in (T0, T1):
            cluster.request(cluster.leaders[partition], ends_of(partition), cluster.deadline())
        asked = {cluster.leaders[each]: ends_of(each) for each in (T0, T1)}
        answers = cluster.request_at_once(asked, cluster.deadline())
        found = {key: end for answer in answers.values() for key, end in messages.by_partition(answer).items()}
        assert {partition: end.offset for partition, end in found.items()} == {T0: 0, T1: 3}
        fake.script(Api.LIST_OFFSETS, hang_up)
        assert len(cluster.request_at_once(asked, cluster.deadline())) == 1
        assert "retrying" in caplog.text


@contextmanager
def swallowing(address: str, port: int) -> Iterator[None]:
    """An address that answers no attempt to connect: its queue of connections that nobody accepts is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield


def test_an_absent_feature_is_level_zero() -> None:
    """KIP-1022: a feature that is not finalized is at level 0."""
    with fake_cluster(transaction_version=None) as fake, Cluster(options_for(fake)) as cluster:
        assert cluster.features().transaction_version == 0


def test_a_refused_connection_names_bootstrap_servers_in_time() -> None:
    port = free_port()
    began_s = time.monotonic()
    with (
        Cluster(options_for(f"127.0.0.1:{port}", max_block_ms=2_000)) as cluster,
        pytest.raises(KafkaTimeoutError, match=rf"bootstrap\.servers=127\.0\.0\.1:{port}.*2000 ms.*ECONNREFUSED"),
    ):
        cluster.features()
    assert time.monotonic() - began_s < 15


def test_an_address_that_swallows_packets_leaves_time_for_the_next(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B25: a name with several addresses (KIP-302), the first of which leads nowhere, always in this order."""
    port, resolve = fake.brokers[0].port, socket.getaddrinfo

    def both(host: str, *arguments: Any) -> list[Any]:
        hosts = ("127.0.0.2", "127.0.0.1") if host == "several.test" else (host,)
        return [found for each in hosts for found in resolve(each, *arguments)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    options = options_for(f"several.test:{port}", socket_connection_setup_timeout_ms=2_000)
    with swallowing("127.0.0.2", port), Cluster(options) as cluster:
        assert cluster.features().transaction_version == 2


@pytest.mark.parametrize(
    "steps",
    [
        (hang_up, hang_up),
        (lose_answer, lose_answer),
        # The topic appears a moment later.
        (answer(Code.NONE), answer(Code.UNKNOWN_TOPIC_OR_PARTITION), answer(Code.NONE)),
    ],
)
def test_metadata_is_asked_again(fake: FakeCluster, cluster: Cluster, steps: tuple[Step, ...]) -> None:
    fake.script(Api.METADATA, *steps)
    assert cluster.partition_counts(["t"]) == {"t": 2}


def test_a_broker_that_failed_last_is_asked_last() -> None:
    """B25: one that swallows packets would cost socket.connection.setup.timeout.ms each time it is chosen."""
    with fake_cluster(brokers=3) as fake, Cluster(options_for(fake)) as cluster:
        deadline = cluster.deadline()
        cluster.refresh((), deadline)
        fake.brokers[2].stop()
        with pytest.raises(NodeUnavailableError):
            cluster.api_versions(2, deadline)
        assert 2 not in {cluster.any_node(deadline) for _ in range(100)}
        fake.brokers[2].start()
        wait_until(lambda: answers(cluster, 2), what="broker 2 to answer again")
        # One other was asked for addresses meanwhile, so that it has a connection too. The third has none.
        found = {cluster.any_node(deadline) for _ in range(100)}
        assert 2 in found
        assert len(found) == 2


def answers(cluster: Cluster, node_id: int) -> bool:
    try:
        cluster.api_versions(node_id, cluster.deadline())
    except NodeUnavailableError:
        return False
    return True


def test_brokers_that_have_another_address_now_are_found_before_metadata_is_old() -> None:
    """B25: as where a cluster is moved while a job waits for its next batch."""
    with fake_cluster() as old, fake_cluster() as new:
        options = options_for(old, bootstrap_servers=(old.bootstrap, new.bootstrap), max_block_ms=2_000)
        new.brokers[0].stop()
        with Cluster(options) as cluster:
            cluster.features()
            old.brokers[0].stop()
            new.brokers[0].start()
            assert cluster.features(age_ms_max=0).cluster_id == "fake-cluster"
            assert len(new.of(Api.API_VERSIONS)) > 0


def test_call_ends_at_its_deadline(fake: FakeCluster, cluster: Cluster) -> None:
    cluster.node_ids()
    fake.script(Api.FIND_COORDINATOR, *[hang_up] * 1000)
    with pytest.raises(KafkaTimeoutError, match=r"FIND_COORDINATOR.*300 ms.*broker 0"):
        cluster.call(find_coordinators_request(["x"]), cluster.deadline(300))


def test_a_broker_too_old_for_us_is_an_error_at_once(fake: FakeCluster, cluster: Cluster) -> None:
    """D7: named by request and code, before anything is written."""
    fake.versions[Api.FIND_COORDINATOR] = (0, 3)
    with pytest.raises(KafkaError, match="FIND_COORDINATOR answered UNSUPPORTED_VERSION, code 35"):
        cluster.coordinator("x", cluster.deadline())


def test_a_topic_that_no_broker_knows_is_an_error(fake: FakeCluster, cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError, match=r"'nowhere'.*never created"):
        cluster.partition_counts(["t", "nowhere"])
    assert not any(request.body.allow_auto_topic_creation for request in fake.of(Api.METADATA))


def test_the_coordinator_may_be_a_broker_that_metadata_did_not_know() -> None:
    with fake_cluster(brokers=2) as fake, Cluster(options_for(fake)) as cluster:
        hidden = fake.brokers.pop()
        cluster.node_ids()
        fake.brokers.append(hidden)
        fake.coordinator = 1
        assert cluster.coordinator("x", cluster.deadline()) == 1
        assert cluster.node_ids() == (0, 1)
