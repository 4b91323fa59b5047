"""A Kafka of one node as a local process: the reference coordinator, or Apache Kafka (KRaft), started from jars.

The jars are those that ``docker/kafka/pom.xml`` names; ``make setup`` puts them into ``.cache/``.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from spark_2pc_sink.testing.processes import (
    CapabilityError,
    LocalServer,
    ServerError,
    archive_options,
    find_java_home,
    free_port,
    java_version,
    poll_until,
)
from spark_2pc_sink.testing.tcp_proxy import TcpProxy

_REQUEST_DEADLINE_S = 10.0
#: Internal topics of one partition: less to create at the first transaction. No waiting for members that never arrive.
SMALL = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
#: KIP-939, "Broker Configuration Changes"; InitProducerId v6 is an unstable version in Kafka 4.4.0.
TWO_PHASE_COMMIT = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}
#: Below this transaction.version prepared transactions cannot be kept (KIP-939 builds on KIP-890's epoch bump).
_KEEPING_VERSION = 2


class LocalBroker(LocalServer):
    """One node on 127.0.0.1, with its own data.

    The constructor chooses ports and a directory; :meth:`start` starts it, and so does entering a ``with`` block, which
    also ends it and removes its data.

    Attributes:
        bootstrap: its address, for ``bootstrap.servers``.
        properties: broker properties, by Kafka's names; read at the first start.
    """

    def __init__(self, *, transaction_version: int, two_phase_commit: bool, node_id: int) -> None:
        super().__init__(f"broker {node_id}", prefix="spark-2pc-kafka-")
        self.transaction_version = transaction_version
        self.two_phase_commit = two_phase_commit
        self.node_id = node_id
        self.port: int = free_port()
        self.bootstrap: str = f"127.0.0.1:{self.port}"
        self._proxied_port, self._proxy_port = free_port(), free_port()
        self.properties: dict[str, str] = {
            **SMALL,
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{self.bootstrap},PROXIED://127.0.0.1:{self._proxied_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},PROXIED://127.0.0.1:{self._proxy_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
            **(TWO_PHASE_COMMIT if two_phase_commit else {}),
        }

    def proxy(self) -> TcpProxy:
        """A proxy in front of this broker, not yet started; a client that bootstraps from it never bypasses it.

        The broker has a separate listener for it, which advertises the proxy's address. One at a time.
        """
        return TcpProxy(target_port=self._proxied_port, port=self._proxy_port)

    def create_topic(
        self, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until its partitions have leaders, and return its name."""
        create_topic(self.bootstrap, name, partitions=partitions, replication=replication, config=config)
        return name

    def _serves(self) -> bool:
        try:
            metadata = _admin(self.bootstrap).list_topics(timeout=1.0)
        except KafkaException:
            return False
        return self.node_id in metadata.brokers and all(has_leaders(metadata, topic) for topic in metadata.topics)


class ReferenceCoordinator(LocalBroker):
    """``spark-2pc coordinator`` as a separate process, see `LocalBroker`.

    Args:
        transaction_version: level of the feature ``transaction.version``: 0 or 1 (KIP-98), 2 (KIP-890).
        two_phase_commit: grants ``enable2Pc`` to every client (KIP-939).
        keep_prepared: lets InitProducerId keep a prepared transaction (KIP-939), which no released Kafka does; only
            with ``two_phase_commit``.
        properties: additional broker properties, or overrides of those set here.
        node_id: its id.
    """

    def __init__(
        self,
        *,
        transaction_version: int = 2,
        two_phase_commit: bool = True,
        keep_prepared: bool = True,
        properties: Mapping[str, str] | None = None,
        node_id: int = 1,
    ) -> None:
        super().__init__(transaction_version=transaction_version, two_phase_commit=two_phase_commit, node_id=node_id)
        self.keep_prepared: bool = keep_prepared and two_phase_commit and transaction_version >= _KEEPING_VERSION
        self.properties["transaction.version"] = str(transaction_version)
        if self.keep_prepared:
            self.properties["transaction.keep.prepared.enable"] = "true"
        self.properties.update(properties or {})

    def _command(self) -> list[str]:
        settings = [f"--set={name}={value}" for name, value in self.properties.items()]
        data = f"--data-dir={self._directory / 'data'}"
        return [sys.executable, "-m", "spark_2pc_sink.cli", "coordinator", data, *settings]


def create_topic(
    bootstrap: str, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic on any broker, and wait until its partitions have leaders; ServerError after ten seconds."""
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
    admin = _admin(bootstrap)  # its requests end when it is collected
    admin.create_topics([topic])[name].result(_REQUEST_DEADLINE_S)
    wait_for_leaders(bootstrap, name)


def wait_for_leaders(bootstrap: str, topic: str) -> None:
    """Wait until one of the given brokers knows a leader of each partition; ServerError after ten seconds."""
    admin = _admin(bootstrap)

    def found() -> bool:
        # Requesting one topic by name returns an answer even if it does not exist: with an error.
        return has_leaders(admin.list_topics(topic, timeout=_REQUEST_DEADLINE_S), topic)

    if not poll_until(found, deadline_s=_REQUEST_DEADLINE_S, interval_s=0.01):
        raise ServerError(f"topic {topic} has no leaders within {_REQUEST_DEADLINE_S} s")


def has_leaders(metadata: ClusterMetadata, topic: str) -> bool:
    """True when a topic exists and each of its partitions has a leader."""
    found = metadata.topics[topic]
    return found.error is None and all(partition.leader >= 0 for partition in found.partitions.values())


def _admin(bootstrap: str) -> AdminClient:
    # log_level 0: a broker that is not up yet is expected, and need not be logged.
    return AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5000, "log_level": 0})


LIBS_VARIABLE = "SPARK_2PC_KAFKA_LIBS"
LIBS_DEFAULT = Path(".cache/kafka-4.4.0/libs")
_FORMAT_DEADLINE_S = 60.0
#: A small heap, and no optimisation of code that runs for seconds.
QUICK_START_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

#: One node, and internal topics of one partition: less to create at the first transaction. After a SIGKILL the
#: controller readmits the broker only when its old session has expired, 9 s unless shortened.
ONE_NODE = {
    **SMALL,
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # Metadata log records twice a second for absent followers are a quarter of an idle node's work.
    "metadata.max.idle.interval.ms": "10000",
    "log.cleaner.dedupe.buffer.size": "2097152",
}

_LOG4J2 = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n%throwable
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""


class KafkaBroker(LocalBroker):
    """One Apache Kafka node, see `LocalBroker`.

    Args:
        transaction_version: level of the feature ``transaction.version``: 0 or 1 (KIP-98), 2 (KIP-890).
        two_phase_commit: grants ``enable2Pc`` to every client (KIP-939).
        properties: additional broker properties, or overrides of those set here.
        node_id: its id, unique in a cluster of several.
        libs: directory of the broker's jars; default ``$SPARK_2PC_KAFKA_LIBS``, else ``.cache/kafka-4.4.0/libs``.
        jvm_options: options of the Java process; the default starts fast and optimises little.

    Raises:
        CapabilityError: Java 17 or the jars are missing, or a level above 0 is requested with jars of Kafka 3.
    """

    def __init__(
        self,
        *,
        transaction_version: int = 2,
        two_phase_commit: bool = False,
        properties: Mapping[str, str] | None = None,
        node_id: int = 1,
        libs: Path | None = None,
        jvm_options: Sequence[str] = QUICK_START_JVM,
    ) -> None:
        folder = find_libs(libs)
        java_home = find_java_home()
        shared = archive_options(class_archive(folder, java_home))
        classpath = ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))
        #: Kafka 3 has no such feature: its level is 0, and it rejects the feature's name.
        self._has_levels: bool = not any(folder.glob("kafka_2.13-3.*.jar"))
        if transaction_version and not self._has_levels:
            raise CapabilityError(f"Kafka 3 in {folder} supports only transaction.version 0, not {transaction_version}")
        super().__init__(transaction_version=transaction_version, two_phase_commit=two_phase_commit, node_id=node_id)
        self._data, self._configuration = self._directory / "data", self._directory / "server.properties"
        logging = f"-Dlog4j2.configurationFile=file:{self._directory / 'log4j2.properties'}"
        self._java = [str(java_home / "bin" / "java"), *jvm_options, *shared, logging, "-cp", classpath]
        self.cluster_id: str = _random_id()
        self.controller_port: int = free_port()
        controller = f"127.0.0.1:{self.controller_port}"
        #: A cluster of several nodes sets controller.quorum.voters here before the first start.
        self.properties.update(
            {
                **ONE_NODE,
                "controller.quorum.voters": f"{node_id}@{controller}",
                "listeners": f"{self.properties['listeners']},CONTROLLER://{controller}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
                **(properties or {}),
            }
        )

    def format_as(self, formatted: KafkaBroker) -> None:
        """Copy the storage of a formatted node that has not run yet, with this node's ids.

        The output of ``StorageTool format`` differs between nodes only in three ids; creation takes a virtual machine.
        """
        self._configure()
        source, data = formatted._data, self._data
        shutil.copytree(source, data)
        meta = data / "meta.properties"
        own = {"cluster.id": self.cluster_id, "node.id": str(self.node_id), "directory.id": _random_id()}
        lines = [line.partition("=") for line in meta.read_text().splitlines()]
        meta.write_text("".join(f"{name}{equals}{own.get(name, value)}\n" for name, equals, value in lines))

    def format(self) -> None:
        """Create its storage, unless it exists; :meth:`launch` does so too.

        Raises:
            ServerError: the tool rejected the properties.
        """
        if not self.formatted:
            self._configure()
            command = [
                *self._java,
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={self.cluster_id}",
                f"--config={self._configuration}",
                *([f"--feature=transaction.version={self.transaction_version}"] if self._has_levels else []),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_DEADLINE_S, check=False)
            if done.returncode != 0:
                shutil.rmtree(self._data, ignore_errors=True)
                raise ServerError(f"formatting the broker's storage failed:\n{done.stdout}{done.stderr}")

    @property
    def formatted(self) -> bool:
        """True when it has storage."""
        return self._data.exists()

    def _command(self) -> list[str]:
        self.format()
        return [*self._java, "kafka.Kafka", str(self._configuration)]

    def _configure(self) -> None:
        self.properties.setdefault("log.dirs", str(self._data))
        (self._directory / "log4j2.properties").write_text(_LOG4J2)
        self._configuration.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))


def _random_id() -> str:
    """As Kafka writes ids: 16 bytes in base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def find_libs(libs: Path | None = None) -> Path:
    """The directory of the broker's jars; CapabilityError if it does not exist."""
    folder = (libs or Path(os.environ.get(LIBS_VARIABLE, LIBS_DEFAULT))).absolute()
    if not any(folder.glob("kafka_2.13-*.jar")):
        raise CapabilityError(f"no Kafka broker in {folder}: run `make setup`, or set {LIBS_VARIABLE}")
    return folder


def class_archive(libs: Path, java_home: Path) -> Path:
    """Path of the class archive that halves a broker's start time, if it has been created."""
    return libs.parent / f"classes-java{java_version(java_home)}.jsa"
