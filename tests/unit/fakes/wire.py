"""The wire of the fake Kafka: ports that take real requests, steps of a script, and what brokers say of themselves."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin import DescribeConfigsResponse
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.protocol import read_head, read_request, write_response
from spark_2pc_sink.wire.api_versions import Api
from tests.unit.reference.batches import message

if TYPE_CHECKING:
    from tests.unit.fakes.cluster import FakeLog


@dataclass(frozen=True)
class Received:
    node_id: int
    api: int
    version: int
    body: Any
    #: For a step that sends bytes of its own.
    connection: socket.socket
    correlation_id: int


class HangUpError(Exception):
    """Close the connection instead of answering."""


#: Given the request and what would carry it out: returns the response, or None for silence, or raises `HangUpError`.
Step = Callable[[Received, Callable[[int], Any]], Any]


def answer(code: int) -> Step:
    """Refuse with ``code``; nothing is carried out."""
    return lambda _received, serve: serve(code)


def serve_it(_received: Received, serve: Callable[[int], Any]) -> Any:
    return serve(Code.NONE)


def lose_answer(_received: Received, serve: Callable[[int], Any]) -> Any:
    """Carry it out, and close the connection instead of answering."""
    serve(Code.NONE)
    raise HangUpError


def after(act: Callable[[], object], code: int = Code.NONE) -> Step:
    """Something happens when a request has come, right before it is served, or refused with ``code``."""

    def step(_received: Received, serve: Callable[[int], Any]) -> Any:
        act()
        return serve(code)

    return step


def changed(change: Callable[[Any], object], code: int = Code.NONE) -> Step:
    """Serve, or refuse with ``code``, and then change the response."""

    def step(_received: Received, serve: Callable[[int], Any]) -> Any:
        response = serve(code)
        change(response)
        return response

    return step


def hang_up(_received: Received, _serve: Callable[[int], Any]) -> Any:
    """Close the connection, carrying out nothing."""
    raise HangUpError


def keep_silent(_received: Received, _serve: Callable[[int], Any]) -> Any:
    """Carry out nothing and answer nothing."""
    return None


class Listener:
    """The port of one broker; it stays the same over stop and start.

    Args:
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
                head = read_head(frame)
                api, version, number = head.api_key, head.version, head.correlation_id
                if api == Api.SASL_HANDSHAKE:
                    return  # a client that asks whether a listener wants a login
                body = read_request(frame, head).body
                response = self._respond(Received(self.node_id, api, version, body, connection, number))
                if response is not None:
                    connection.sendall(b"".join(write_response(response, number, version=version)))


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """Length-prefixed frames until the other side closes."""
    stream = connection.makefile("rb")
    with stream:
        while len(head := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", head)[0])


STATE_TOPIC: Final = "__transaction_state"
#: What a real 4.x broker offers of these, as far as it matters; the tests change single entries.
_VERSIONS: Final[dict[int, tuple[int, int]]] = {
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
}
_TOPIC_RESOURCE: Final = 2


class Topology:
    """The brokers and what they show.

    Args:
        transaction_version: finalized feature transaction.version; None where the feature is unknown.

    Attributes:
        coordinator: the broker that coordinates every id that is not in ``coordinators``.
        configs: of every topic; None where they may not be read. ``broker_configs`` likewise.
        state_partitions: leader and leader epoch of each partition of the transaction log; None where there is none.
    """

    partitions: dict[TopicPartition, FakeLog]
    coordinators: dict[str, int]

    def __init__(self, transaction_version: int | None, brokers: list[Listener]) -> None:
        self.transaction_version = transaction_version
        self.features_epoch = 1
        self.versions = dict(_VERSIONS)
        self.coordinator = 0
        self.configs: dict[str, str] | None = {"max.message.bytes": "1048588", "message.timestamp.type": "CreateTime"}
        self.broker_configs: dict[str, str] | None = {"transaction.max.timeout.ms": "900000"}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.state_partitions: list[tuple[int, int]] | None = [(0, 0)]
        self.topology: dict[int, Callable[[Received, int], Any]] = {
            Api.API_VERSIONS: self._serve_api_versions,
            Api.METADATA: self._serve_metadata,
            Api.FIND_COORDINATOR: self._serve_find_coordinator,
            Api.DESCRIBE_CONFIGS: self._serve_describe_configs,
        }
        self.brokers = brokers

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.brokers[0].port}"

    def coordinator_of(self, transactional_id: str) -> int:
        return self.coordinators.get(transactional_id, self.coordinator)

    def leader(self, partition: TopicPartition) -> int | None:
        """The broker that leads a partition; None where there is no such partition."""
        if partition.topic == STATE_TOPIC:
            return (self.state_partitions or [])[partition.partition][0]
        log = self.partitions.get(partition)
        return None if log is None else log.leader

    def _serve_api_versions(self, received: Received, code: int) -> Any:
        level, ranges = self.transaction_version, self.versions.items()
        feature = {"name": "transaction.version", "max_version_level": level, "min_version_level": level}
        return message(
            ApiVersionsResponse,
            error_code=code,
            api_keys=[{"api_key": int(api), "min_version": low, "max_version": high} for api, (low, high) in ranges],
            finalized_features_epoch=self.features_epoch,
            finalized_features=[] if level is None else [feature],
        )

    def _serve_metadata(self, received: Received, code: int) -> Any:
        topics = None if received.body.topics is None else {wanted.name for wanted in received.body.topics}
        everything = {key.topic for key in self.partitions} | ({STATE_TOPIC} if self.state_partitions else set())
        return message(
            MetadataResponse,
            brokers=[{"node_id": each.node_id, "host": "127.0.0.1", "port": each.port} for each in self.brokers],
            cluster_id="fake-cluster",
            controller_id=0,
            topics=[self._topic(name, code) for name in sorted(everything if topics is None else topics)],
        )

    def _topic(self, name: str, code: int) -> dict[str, Any]:
        leaders = (
            dict(enumerate(self.state_partitions or ()))
            if name == STATE_TOPIC
            else {key.partition: (log.leader, 0) for key, log in self.partitions.items() if key.topic == name}
        )
        parts = [
            {
                "error_code": Code.NONE if leader >= 0 else Code.LEADER_NOT_AVAILABLE,
                "partition_index": index,
                "leader_id": leader,
                "leader_epoch": epoch,
                "replica_nodes": [leader] if leader >= 0 else [],
            }
            for index, (leader, epoch) in leaders.items()
        ]
        missing = Code.NONE if parts else Code.UNKNOWN_TOPIC_OR_PARTITION
        return {"error_code": code or missing, "name": name, "topic_id": self.topic_ids.get(name), "partitions": parts}

    def _serve_find_coordinator(self, received: Received, code: int) -> Any:
        found = []
        for key in received.body.coordinator_keys:
            node_id = self.coordinator_of(key)
            port = self.brokers[node_id].port
            found.append({"key": key, "node_id": node_id, "host": "127.0.0.1", "port": port, "error_code": code})
        return message(FindCoordinatorResponse, coordinators=found)

    def _serve_describe_configs(self, received: Received, code: int) -> Any:
        (asked,) = received.body.resources
        values = self.configs if asked.resource_type == _TOPIC_RESOURCE else self.broker_configs
        found = {
            "error_code": code or (Code.TOPIC_AUTHORIZATION_FAILED if values is None else Code.NONE),
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
            "configs": [{"name": name, "value": value, "config_source": 1} for name, value in (values or {}).items()],
        }
        return message(DescribeConfigsResponse, results=[found])
