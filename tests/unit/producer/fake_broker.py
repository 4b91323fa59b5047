"""A Kafka cluster in threads: real sockets and real messages, answers from a script.

Without a script it behaves: partitions append batches in sequence, answer repetitions as duplicates and gaps as
OUT_OF_ORDER (KIP-98), and the coordinator hands out epochs. A *step* put into the script of an API replaces the answer
to the next request of that API, whichever broker it comes to::

    cluster.script(Api.PRODUCE, lose_answer, answer(Code.NOT_LEADER_OR_FOLLOWER))

so the first Produce is carried out and its connection closed, the second refused, and all others served. The client
under test has one thread, so the order of requests, and with it every test, is the same each time.
"""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.wire.messages import Api
from tests.unit.producer.fake_partitions import FakePartition, PartitionAnswers, Received

_REQUESTS = {
    kind.API_KEY: kind
    for kind in (
        ApiVersionsRequest,
        MetadataRequest,
        FindCoordinatorRequest,
        DescribeConfigsRequest,
        DescribeProducersRequest,
        DescribeTransactionsRequest,
        FetchRequest,
        ListOffsetsRequest,
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        InitProducerIdRequest,
        ListTransactionsRequest,
        ProduceRequest,
        WriteTxnMarkersRequest,
        SaslHandshakeRequest,
        SaslAuthenticateRequest,
    )
}
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY
_LOGIN_DEADLINE_S = 30.0
#: What a real 4.x broker offers of these, as far as it matters; the tests change single entries.
_VERSIONS = {
    Api.PRODUCE: (0, 13),
    Api.FETCH: (4, 17),
    Api.LIST_OFFSETS: (1, 10),
    Api.METADATA: (0, 13),
    Api.FIND_COORDINATOR: (0, 6),
    Api.API_VERSIONS: (0, 4),
    Api.INIT_PRODUCER_ID: (0, 5),
    Api.ADD_PARTITIONS_TO_TXN: (0, 5),
    Api.END_TXN: (0, 5),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.DESCRIBE_PRODUCERS: (0, 0),
    Api.DESCRIBE_TRANSACTIONS: (0, 0),
    Api.LIST_TRANSACTIONS: (0, 2),
    Api.WRITE_TXN_MARKERS: (1, 2),
    _SASL_HANDSHAKE: (0, 1),
    _SASL_AUTHENTICATE: (0, 2),
}


#: Given the request and what would carry it out: returns the response, or None for silence, or raises `HangUpError`.
Step = Callable[[Received, Callable[[int], Any]], Any]


class HangUpError(Exception):
    """Close the connection instead of answering."""


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


def hang_up(_received: Received, _serve: Callable[[int], Any]) -> Any:
    """Close the connection, carrying out nothing."""
    raise HangUpError


def keep_silent(_received: Received, _serve: Callable[[int], Any]) -> Any:
    """Carry out nothing and answer nothing."""
    return None


class FakeCluster(PartitionAnswers):
    """Some brokers, their partitions, and one transactional id's coordinator (broker 0)."""

    def __init__(
        self, *, brokers: int = 1, transaction_version: int | None = 2, topics: dict[str, int] | None = None
    ) -> None:
        self.lock = threading.Lock()
        self.transaction_version = transaction_version
        self.versions = dict(_VERSIONS)
        self.received: list[Received] = []
        self.coordinator = 0
        self.producer_id, self.epoch, self.state = 7, -1, "Empty"
        self.stored_timeout_ms = 0
        self.enable_two_phase = self.keeps_prepared = False
        self.ongoing: tuple[int, int] | None = None
        self.added: set[TopicPartition] = set()
        self.configs: dict[str, str] | None = {"max.message.bytes": "1048588", "message.timestamp.type": "CreateTime"}
        self.broker_configs: dict[str, str] | None = {"transaction.max.timeout.ms": "900000"}
        self.partitions = {
            TopicPartition(name, index): FakePartition(leader=index % brokers)
            for name, count in (topics or {"t": 2}).items()
            for index in range(count)
        }
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.session_lifetimes_ms: list[int] = []
        self.logins = 0
        self.logins_served = threading.Event()
        self.logins_served.set()
        self._scripts: dict[int, deque[Step]] = {}
        self.brokers = [_Listener(self, node_id) for node_id in range(brokers)]

    @property
    def bootstrap(self) -> str:
        """The address of the first broker."""
        return f"127.0.0.1:{self.brokers[0].port}"

    def script(self, api: Api, *steps: Step) -> None:
        """Put steps behind those that the API's script still has."""
        self._scripts.setdefault(api, deque()).extend(steps)

    def of(self, api: Api) -> list[Received]:
        """The requests of one API so far."""
        with self.lock:
            return [request for request in self.received if request.api == api]

    def close(self) -> None:
        """Stop every broker."""
        for broker in self.brokers:
            broker.stop()

    def respond(self, received: Received) -> Any:
        """The response to a request, by script or by behaviour; None for silence.

        Raises:
            HangUpError: the connection is to be closed.
        """
        with self.lock:
            self.received.append(received)
            script = self._scripts.get(received.api)
            step = script.popleft() if script else serve_it
            if received.api in (_SASL_HANDSHAKE, _SASL_AUTHENTICATE):
                return self._serve_sasl(received)
            handler = getattr(self, f"_serve_{Api(received.api).name.lower()}")
            return step(received, lambda code: handler(received, code))

    # --- behaviour -----------------------------------------------------------------------------------------------

    def _serve_api_versions(self, received: Received, code: int) -> Any:
        feature = ApiVersionsResponse.FinalizedFeatureKey
        level = self.transaction_version
        return ApiVersionsResponse(
            version=received.version,
            error_code=code,
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=int(api), min_version=low, max_version=high)
                for api, (low, high) in self.versions.items()
            ],
            finalized_features_epoch=1,
            finalized_features=[]
            if level is None
            else [feature(name="transaction.version", max_version_level=level, min_version_level=level)],
        )

    def _serve_sasl(self, received: Received) -> Any:
        """Each login takes one of `session_lifetimes_ms`, and with none left every password is wrong."""
        if received.api == _SASL_HANDSHAKE:
            self.logins += 1
            return SaslHandshakeResponse(version=received.version, error_code=0, mechanisms=["PLAIN"])
        self.logins_served.wait(_LOGIN_DEADLINE_S)
        right = bool(self.session_lifetimes_ms)
        return SaslAuthenticateResponse(
            version=received.version,
            error_code=Code.NONE if right else Code.SASL_AUTHENTICATION_FAILED,
            error_message=None if right else "wrong password",
            auth_bytes=b"",
            session_lifetime_ms=self.session_lifetimes_ms.pop(0) if right else 0,
        )

    def _serve_metadata(self, received: Received, code: int) -> Any:
        topic, partition = (
            MetadataResponse.MetadataResponseTopic,
            MetadataResponse.MetadataResponseTopic.MetadataResponsePartition,
        )
        topics = []
        for wanted in received.body.topics or ():
            parts = [key for key in self.partitions if key.topic == wanted.name]
            topics.append(
                topic(
                    error_code=code or (Code.NONE if parts else Code.UNKNOWN_TOPIC_OR_PARTITION),
                    name=wanted.name,
                    topic_id=self.topic_ids.get(wanted.name),
                    partitions=[
                        partition(
                            error_code=0,
                            partition_index=key.partition,
                            leader_id=self.partitions[key].leader,
                            leader_epoch=0,
                            replica_nodes=[],
                            isr_nodes=[],
                        )
                        for key in parts
                    ],
                )
            )
        brokers = [
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.node_id, host="127.0.0.1", port=broker.port, rack=None
            )
            for broker in self.brokers
        ]
        return MetadataResponse(
            version=received.version, brokers=brokers, cluster_id="fake-cluster", controller_id=0, topics=topics
        )

    def _serve_find_coordinator(self, received: Received, code: int) -> Any:
        found = FindCoordinatorResponse.Coordinator(
            key=received.body.coordinator_keys[0],
            node_id=self.coordinator,
            host="127.0.0.1",
            port=self.brokers[self.coordinator].port,
            error_code=code,
            error_message=None,
        )
        return FindCoordinatorResponse(version=received.version, coordinators=[found])

    def _serve_init_producer_id(self, received: Received, code: int) -> Any:
        body = received.body
        two_phase = received.version >= 6 and body.enable2_pc
        keep = received.version >= 6 and body.keep_prepared_txn
        if not code and two_phase and not self.enable_two_phase:
            code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not code and keep and not self.keeps_prepared:
            code = Code.UNSUPPORTED_VERSION
        if code:
            return InitProducerIdResponse(version=received.version, error_code=code, producer_id=-1, producer_epoch=-1)
        ongoing = self.ongoing if keep else None
        if not keep:
            self.ongoing, self.state = None, "Empty"
        if self.epoch >= 32766:
            self.producer_id, self.epoch = self.producer_id + 1, -1
        self.epoch += 1
        self.stored_timeout_ms = 2147483647 if two_phase else body.transaction_timeout_ms
        flags = {"ongoing_txn_producer_id": ongoing[0], "ongoing_txn_producer_epoch": ongoing[1]} if ongoing else {}
        return InitProducerIdResponse(
            version=received.version,
            error_code=0,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            **flags,
        )

    def _serve_end_txn(self, received: Received, code: int) -> Any:
        if code:
            return EndTxnResponse(version=received.version, error_code=code, producer_id=-1, producer_epoch=-1)
        self.state = "CompleteCommit" if received.body.committed else "CompleteAbort"
        self.ongoing = None
        if received.version >= 5:
            self.epoch += 1
        return EndTxnResponse(
            version=received.version, error_code=0, producer_id=self.producer_id, producer_epoch=self.epoch
        )

    def _serve_describe_transactions(self, received: Received, code: int) -> Any:
        state = DescribeTransactionsResponse.TransactionState
        described = state(
            error_code=code,
            transactional_id=received.body.transactional_ids[0],
            transaction_state=self.state,
            transaction_timeout_ms=self.stored_timeout_ms,
            transaction_start_time_ms=-1,
            producer_id=self.producer_id if self.ongoing is None else self.ongoing[0],
            producer_epoch=self.epoch if self.ongoing is None else self.ongoing[1],
            topics=[],
        )
        return DescribeTransactionsResponse(version=0, transaction_states=[described])

    def _serve_add_partitions_to_txn(self, received: Received, code: int) -> Any:
        result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        part = result.AddPartitionsToTxnPartitionResult
        asked = {
            TopicPartition(topic.name, index)
            for topic in received.body.v3_and_below_topics
            for index in topic.partitions
        }
        unknown = {key for key in asked if key not in self.partitions}
        if not code and not unknown:
            self.added |= asked

        def code_of(key: TopicPartition) -> int:
            if code or not unknown:
                return code
            return Code.UNKNOWN_TOPIC_OR_PARTITION if key in unknown else Code.OPERATION_NOT_ATTEMPTED

        results = [
            result(
                name=topic,
                results_by_partition=[
                    part(partition_index=key.partition, partition_error_code=code_of(key))
                    for key in asked
                    if key.topic == topic
                ],
            )
            for topic in sorted({key.topic for key in asked})
        ]
        return AddPartitionsToTxnResponse(version=received.version, results_by_topic_v3_and_below=results)


class _Listener:
    """The port of one broker; it stays the same over stop and start."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.node_id = node_id
        self._cluster = cluster
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
                response = self._cluster.respond(Received(self.node_id, api, version, body))
                if response is None:
                    continue
                refused_login = api == _SASL_AUTHENTICATE and response.error_code != Code.NONE
                if refused_login:
                    # As Kafka does: the end of the connection comes together with the answer.
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
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


@contextmanager
def fake_cluster(**arguments: Any) -> Iterator[FakeCluster]:
    """A `FakeCluster` for a ``with`` block."""
    cluster = FakeCluster(**arguments)
    try:
        yield cluster
    finally:
        cluster.close()
