"""Apache Kafka in containers: one node, or a cluster of three that survives the loss of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata
from testcontainers.core.network import Network

from spark_2pc_sink.testing import TcpProxy, free_port, wait_until
from spark_2pc_sink.testing.kafka_broker import ONE_NODE, QUICK_START_JVM, TWO_PHASE_COMMIT
from spark_2pc_sink.testing.local_broker import create_topic, has_leaders
from tests.harness.containers import START_DEADLINE_S, ContainerServer, make_network, require_image
from tests.harness.feature_levels import set_transaction_version
from tests.harness.providers import GivenBroker

IMAGE_VARIABLE = "SPARK_2PC_KAFKA_IMAGE"
IMAGE_DEFAULT = "apache/kafka:4.4.0"
#: What a storage is formatted with when nothing is said.
_FORMATTED_TRANSACTION_VERSION = 2
_TRANSACTION_LOG = "__transaction_state"
# Three nodes watch each other: one that is slow, on a machine that is busy, must not pass for one that is gone. This is
# also how long the others take to notice one that is.
_PATIENT = {
    "broker.session.timeout.ms": "5000",
    "controller.quorum.fetch.timeout.ms": "5000",
    "controller.quorum.election.timeout.ms": "3000",
    "controller.quorum.request.timeout.ms": "5000",
}
# Ports in the container. PROXIED is as PLAINTEXT, and tells clients the address of a proxy on this machine.
_PLAINTEXT, _CONTROLLER, _INTERNAL, _PROXIED = 9092, 9093, 9094, 9095


class ContainerBroker(ContainerServer):
    """One Kafka node, broker and controller.

    Args:
        transaction_version: level of the feature ``transaction.version``.
        two_phase_commit: grant ``enable2Pc`` to every client (KIP-939).
        properties: more broker properties, or other values of those set here.
        node_id: its id, and in a cluster its place in ``voters``.
        voters: of a cluster, their names on its network; none for a single node.
        network: of a cluster.
    """

    def __init__(
        self,
        *,
        transaction_version: int = 2,
        two_phase_commit: bool = False,
        properties: Mapping[str, str] | None = None,
        node_id: int = 1,
        voters: tuple[str, ...] = (),
        network: Network | None = None,
    ) -> None:
        self.transaction_version = transaction_version
        self.two_phase_commit = two_phase_commit
        self.node_id = node_id
        self.port, self._proxied_port, self._proxy_port = (free_port() for _ in range(3))
        # A single node must find itself also when it is off its network, where its name is nobody's.
        self_name = voters[node_id - 1] if voters else "localhost"
        numbered = enumerate(voters or (self_name,), start=1 if voters else node_id)
        all_properties = {
            **ONE_NODE,
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(f"{number}@{name}:{_CONTROLLER}" for number, name in numbered),
            "listeners": f"PLAINTEXT://:{_PLAINTEXT},PROXIED://:{_PROXIED},INTERNAL://:{_INTERNAL},"
            f"CONTROLLER://:{_CONTROLLER}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxy_port},"
            f"INTERNAL://{self_name}:{_INTERNAL}",
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,INTERNAL:PLAINTEXT,"
            "CONTROLLER:PLAINTEXT",
            "log.dirs": "/var/lib/kafka/data",
            **(TWO_PHASE_COMMIT if two_phase_commit else {}),
            **(properties or {}),
        }
        super().__init__(
            require_image(IMAGE_VARIABLE, IMAGE_DEFAULT),
            ports={_PLAINTEXT: self.port, _PROXIED: self._proxied_port},
            environment={
                **{environment_name(name): value for name, value in all_properties.items()},
                "KAFKA_HEAP_OPTS": " ".join(QUICK_START_JVM),
            },
            network=network,
            alias=self_name if voters else "kafka",
        )

    @property
    def bootstrap(self) -> str:
        """Its address, as ``bootstrap.servers`` takes it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it serves; after the first start it also gets its transaction.version."""
        first = not self._created
        super().start()
        if first and self.transaction_version != _FORMATTED_TRANSACTION_VERSION:
            # By a request, not when the storage is formatted: the official image formats it as it pleases.
            set_transaction_version(self.bootstrap, self.transaction_version)

    def proxy(self) -> TcpProxy:
        """A proxy in front of it, not yet started; a client that bootstraps from it never gets round it."""
        return TcpProxy(target_port=self._proxied_port, port=self._proxy_port)

    def create_topic(
        self, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until its partitions have leaders, and return its name."""
        create_topic(self.bootstrap, name, partitions=partitions, replication=replication, config=config)
        return name

    def _serves(self) -> bool:
        try:
            metadata = metadata_of(self.bootstrap, deadline_s=2.0)
        except KafkaException:
            return False
        return self.node_id in metadata.brokers and all(has_leaders(metadata, topic) for topic in metadata.topics)


@dataclass(frozen=True)
class ContainerCluster(GivenBroker):
    """Three nodes; each partition is on all of them, and takes writes while two are in sync.

    As a whole it is not stopped or paused: its `nodes` are.
    """

    nodes: tuple[ContainerBroker, ...] = field(default=())

    def create_topic(
        self, name: str, *, partitions: int = 1, replication: int = 3, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic on all nodes, wait until its partitions have leaders, and return its name."""
        return super().create_topic(name, partitions=partitions, replication=replication, config=config)

    def leader(self, topic: str, partition: int) -> ContainerBroker:
        """The node that leads a partition, as the others say while it is away."""
        leader: int = self._partition(topic, partition).leader
        return self.nodes[leader - 1]

    def coordinator(self) -> ContainerBroker:
        """The node that coordinates every transaction: its log has one partition."""
        return self.leader(_TRANSACTION_LOG, 0)

    def in_sync(self, topic: str, partition: int) -> set[int]:
        """The nodes whose copy of a partition is complete."""
        return set(self._partition(topic, partition).isrs)

    def wait_until_whole(self) -> None:
        """Wait until every node has a complete copy of every partition."""
        wait_until(self._whole, deadline_s=START_DEADLINE_S, what="all copies to be complete", interval_s=0.1)

    def _partition(self, topic: str, partition: int) -> Any:
        # Any node may answer, also one that was cut off and has not read yet what was created meanwhile.
        known: Any = wait_until(
            lambda: metadata_of(self.bootstrap).topics.get(topic),
            deadline_s=START_DEADLINE_S,
            what=f"a node that knows {topic}",
            interval_s=0.1,
        )
        return known.partitions[partition]

    def _whole(self) -> bool:
        try:
            topics = metadata_of(self.bootstrap, deadline_s=2.0).topics.values()
        except KafkaException:
            return False
        partitions = [partition for topic in topics for partition in topic.partitions.values()]
        return all(len(partition.isrs) == len(self.nodes) and partition.leader > 0 for partition in partitions)


@contextmanager
def container_cluster() -> Iterator[ContainerCluster]:
    """Three nodes on a network of their own, with two-phase commit granted."""
    names = ("kafka-1", "kafka-2", "kafka-3")
    copies = str(len(names))
    replicated = {
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": "2",
        "min.insync.replicas": "2",
        **_PATIENT,
    }
    network = make_network()
    nodes: list[ContainerBroker] = []
    try:
        for node_id in range(1, len(names) + 1):
            nodes.append(
                ContainerBroker(
                    node_id=node_id, voters=names, network=network, two_phase_commit=True, properties=replicated
                )
            )
            nodes[-1].launch()
        for node in nodes:
            node.wait_until_ready()
        yield ContainerCluster(
            bootstrap=",".join(node.bootstrap for node in nodes),
            transaction_version=2,
            two_phase_commit=True,
            nodes=tuple(nodes),
        )
    finally:
        for node in nodes:
            node.close()
        network.remove()


def environment_name(name: str) -> str:
    """The variable that the image turns into a property of the broker."""
    return "KAFKA_" + name.upper().replace("_", "__").replace("-", "___").replace(".", "_")


def metadata_of(bootstrap: str, *, deadline_s: float = 30.0) -> ClusterMetadata:
    """Brokers, topics, leaders and copies.

    Raises:
        confluent_kafka.KafkaException: nobody answers.
    """
    # log_level 0: a broker that is not there yet is what we wait for, no news for the log.
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5000, "log_level": 0})
    return admin.list_topics(timeout=deadline_s)
