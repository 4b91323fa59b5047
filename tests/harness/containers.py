"""Servers in containers, by testcontainers: the provider ``containers``, and what all its servers can be asked for.

The same as of a local process, and two things that a process has not: pausing takes everything in the container at
once, and a container can be taken off its network, where it runs on and is reached by nobody. A client that came by
the published port is reset then, and finds nobody to connect to; one that came by the container's own address hears
nothing any more. The server itself notices neither.

Needs an engine on this machine, and images: ``tools/containers.sh`` sees to both.
"""

from __future__ import annotations

import os
import secrets
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from confluent_kafka import KafkaException
from docker.errors import APIError, DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from spark_2pc_sink.testing import CapabilityError, ServerError, TcpProxy, free_port, wait_until
from spark_2pc_sink.testing.kafka_broker import ONE_NODE, QUICK_START_JVM, TWO_PHASE_COMMIT, has_leaders
from spark_2pc_sink.testing.processes import Lifetime, poll_until
from tests.harness.kafka_cluster import TRANSACTION_STATE, lagging_partitions, metadata_of
from tests.harness.kafka_tools import set_transaction_version
from tests.harness.providers import DatabasesByUrl, GivenBroker, TopicsByAddress
from tests.harness.sql import run_sql

#: A start takes two to five seconds, of a cluster ten; this is for a machine that is busy with something else.
START_DEADLINE_S = 240.0
STOP_DEADLINE_S = 20
_LOG_TAIL_LINES = 40
#: What containers and networks of one run are labelled with, so that tools/containers.sh finds those that a killed run
#: left on an engine that goes on.
LABEL = "spark-2pc.run"
_LABELS = {LABEL: os.environ.get("SPARK_2PC_CONTAINERS_RUN", "by-hand")}

# The container that would clean up after us comes from a registry, which is not everywhere.
testcontainers_config.ryuk_disabled = True


class ContainerServer(Lifetime):
    """A server in a container of its own, with ports of 127.0.0.1 that stay the same over restarts.

    Args:
        ports: ports in the container, and where on 127.0.0.1 they are published.
        command: of the container; None for the image's.
        network: on which it is reached by ``alias``; None for one of its own.
    """

    def __init__(
        self,
        image: str,
        *,
        ports: Mapping[int, int],
        environment: Mapping[str, str],
        command: Sequence[str] | None = None,
        network: Network | None = None,
        alias: str = "server",
    ) -> None:
        self._network = network or make_network()
        self._owns_network = network is None
        self._alias = alias
        self._container = DockerContainer(image, env=dict(environment), network=self._network)
        self._container.with_network_aliases(alias).with_kwargs(labels=_LABELS)
        # Not by with_bind_ports, which takes no address: published to the whole world then.
        addresses: Any = {f"{inside}/tcp": ("127.0.0.1", outside) for inside, outside in ports.items()}
        self._container.ports = addresses
        if command is not None:
            self._container.with_command(list(command))
        self._created = False
        self._address_before = ""

    @abstractmethod
    def _serves(self) -> bool:
        """Whether clients are let in."""

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it without waiting: for clusters, where no node is ready before the others are there."""
        if self._created:
            self._wrapped.start()
        else:
            self._container.start()
            self._created = True

    def wait_until_ready(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        def serves() -> bool:
            if self._status() == "exited":
                raise ServerError(f"the container ended by itself. Its log ends:\n{self.log_tail()}")
            return self._serves()

        if not poll_until(serves, deadline_s=deadline_s, interval_s=0.1):
            raise ServerError(f"the container did not serve within {deadline_s} s. Its log ends:\n{self.log_tail()}")

    def kill(self) -> None:
        """End everything in it with SIGKILL. :meth:`start` starts it again on the same data."""
        self._wrapped.kill()
        self._wrapped.wait()

    def stop(self) -> None:
        """End it in an orderly way; nothing happens if it does not run."""
        if self._status() == "paused":
            self.resume()
        self._wrapped.stop(timeout=STOP_DEADLINE_S)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze everything in it at once: connections stay open and nothing answers."""
        self._wrapped.pause()

    def resume(self) -> None:
        self._wrapped.unpause()

    def disconnect(self) -> None:
        """Take it off its network. It runs on, reaches nobody, and is reached by nobody."""
        self._address_before = self.address
        self._docker_network.disconnect(self._wrapped)

    def connect(self) -> None:
        """Put it back on its network, at the same address; nothing happens if it is there."""
        if self._on_network():
            return
        self._docker_network.connect(self._wrapped, aliases=[self._alias])
        if self.address != self._address_before:
            raise ServerError(f"the container came back as {self.address}, and was {self._address_before}")

    def heal(self) -> None:
        """Undo every fault that it is still under, and wait until it serves."""
        status = self._status()
        if status == "paused":
            self.resume()
        elif status == "exited":
            self.launch()
        self.connect()
        self.wait_until_ready()

    @property
    def address(self) -> str:
        """Its address on its network, which this machine reaches without the engine's proxy."""
        (address,) = self._on_network()
        return address

    def close(self) -> None:
        self._container.stop()
        if self._owns_network:
            self._network.remove()

    def log_tail(self) -> str:
        text: bytes = self._wrapped.logs(tail=_LOG_TAIL_LINES)
        return text.decode(errors="replace")

    @property
    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()

    @property
    def _docker_network(self) -> Any:
        return self._network._unwrap_network

    def _on_network(self) -> list[str]:
        self._wrapped.reload()
        networks = self._wrapped.attrs["NetworkSettings"]["Networks"]
        return [networks[name]["IPAddress"] for name in networks if name == self._docker_network.name]

    def _status(self) -> str:
        self._wrapped.reload()
        status: str = self._wrapped.status
        return status


def make_network() -> Network:
    """A network for containers, to be removed by the caller."""
    return Network(docker_network_kw={"labels": _LABELS}).create()


def require_image(variable: str, default: str) -> str:
    """The image that ``variable`` names, or the default, fetched if it is not there."""
    image = os.environ.get(variable, default)
    try:
        client = DockerClient().client
    except DockerException as error:
        raise CapabilityError(f"no container engine answers ({error}): run `make containers`") from error
    try:
        client.images.get(image)
    except ImageNotFound:
        try:
            client.images.pull(image)
        except APIError as error:
            raise CapabilityError(
                f"no image {image} ({error.explanation}): see docker/images.sh, or set {variable}"
            ) from error
    finally:
        client.close()
    return image


#: What a storage is formatted with when nothing is said.
_FORMATTED_TRANSACTION_VERSION = 2
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


class ContainerBroker(ContainerServer, TopicsByAddress):
    """One Kafka node, broker and controller.

    Args:
        two_phase_commit: grant ``enable2Pc`` to every client (KIP-939).
        properties: more broker properties, or other values of those set here.
        node_id: its id, and in a cluster its place in ``voters``.
        voters: of a cluster, their names on its network; none for a single node.
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
        self.bootstrap = f"127.0.0.1:{self.port}"
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
            require_image("SPARK_2PC_KAFKA_IMAGE", "apache/kafka:4.4.0"),
            ports={_PLAINTEXT: self.port, _PROXIED: self._proxied_port},
            environment={
                **{environment_name(name): value for name, value in all_properties.items()},
                "KAFKA_HEAP_OPTS": " ".join(QUICK_START_JVM),
            },
            network=network,
            alias=self_name if voters else "kafka",
        )

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
        return super().create_topic(name, partitions=partitions, replication=replication, config=config)

    def leader(self, topic: str, partition: int) -> ContainerBroker:
        """The node that leads a partition, as the others say while it is away."""
        leader: int = self._partition(topic, partition).leader
        return self.nodes[leader - 1]

    def coordinator(self) -> ContainerBroker:
        """The node that coordinates every transaction: its log has one partition."""
        return self.leader(TRANSACTION_STATE, 0)

    def in_sync(self, topic: str, partition: int) -> set[int]:
        return set(self._partition(topic, partition).isrs)

    def wait_until_whole(self) -> None:
        wait_until(self._whole, deadline_s=START_DEADLINE_S, what="all copies to be complete", interval_s=0.1)

    def _partition(self, topic: str, partition: int) -> Any:
        # Any node may answer, also one that was cut off and has not read yet what was created meanwhile.
        known: Any = wait_until(
            lambda: metadata_of(self.bootstrap, deadline_s=30.0).topics.get(topic),
            deadline_s=START_DEADLINE_S,
            what=f"a node that knows {topic}",
            interval_s=0.1,
        )
        return known.partitions[partition]

    def _whole(self) -> bool:
        try:
            return not lagging_partitions(metadata_of(self.bootstrap, deadline_s=2.0))
        except KafkaException:
            return False


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


_PORT = 5432
_USER = "postgres"
# Data of a test need not survive a power failure; they survive every SIGKILL without fsync.
_SETTINGS = {"fsync": "off", "jit": "off", "max_connections": "200"}


class ContainerPostgres(ContainerServer, DatabasesByUrl):
    """One PostgreSQL server. ``settings``: more of ``postgresql.conf``, or other values of those set here."""

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self._password = secrets.token_hex(8)
        self.url: str = self._url("127.0.0.1", self.port, "postgres")
        arguments = [f"-c{name}={value}" for name, value in {**_SETTINGS, **(settings or {})}.items()]
        super().__init__(
            require_image("SPARK_2PC_POSTGRES_IMAGE", "postgres:17"),
            ports={_PORT: self.port},
            environment={"POSTGRES_PASSWORD": self._password, "POSTGRES_INITDB_ARGS": "--no-sync"},
            command=["postgres", *arguments],
            alias="postgres",
        )

    def direct_url(self, name: str) -> str:
        """The URL of a database by the container's own address, for this machine only."""
        return self._url(self.address, _PORT, name)

    def proxy(self) -> TcpProxy:
        """A proxy in front of this server, not yet started; reach a database through it by ``database_url(port=…)``."""
        return TcpProxy(target_port=self.port)

    def _url(self, host: str, port: int, name: str) -> str:
        return f"postgresql+psycopg2://{_USER}:{self._password}@{host}:{port}/{name}"

    def _serves(self) -> bool:
        try:
            run_sql(self.url, "SELECT 1", connect_timeout=5)
        except psycopg2.OperationalError:
            return False
        return True
