"""Apache Kafka as a local process: one node that is broker and controller (KRaft), started from a folder of jars.

The jars are those that ``docker/kafka/pom.xml`` names; ``make setup`` puts them into ``.cache/``.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from spark_2pc_sink.testing.errors import CapabilityError, ServerError
from spark_2pc_sink.testing.java import find_java_home, java_version
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.processes import ServerProcess
from spark_2pc_sink.testing.tcp_proxy import TcpProxy

LIBS_VARIABLE = "SPARK_2PC_KAFKA_LIBS"
LIBS_DEFAULT = Path(".cache/kafka-4.4.0/libs")
#: A start takes one to four seconds; this is for a machine that is busy with something else.
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 20.0
_FORMAT_DEADLINE_S = 60.0
_REQUEST_DEADLINE_S = 10.0
#: A small heap, and no time spent on optimising code that runs for seconds.
QUICK_START_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# One node, and internal topics of one partition: less to create at the first transaction. After a SIGKILL the
# controller takes the broker back only when its old session has expired, 9 s unless shortened.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2097152",
}
# KIP-939, "Broker Configuration Changes"; InitProducerId v6 is an unstable version in Kafka 4.4.0.
_TWO_PHASE_COMMIT = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}

_LOG4J2 = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n%throwable
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""


class KafkaBroker:
    """One Kafka node on 127.0.0.1, with data of its own.

    The constructor chooses ports and a directory; :meth:`start` starts it, and so does entering a ``with`` block, which
    also ends it and removes its data. Ports stay the same over restarts.

    Args:
        transaction_version: level of the feature ``transaction.version``: 0 or 1 (KIP-98), 2 (KIP-890).
        two_phase_commit: grant ``enable2Pc`` to every client (KIP-939).
        properties: more broker properties, or other values of those set here.
        node_id: its id, unique in a cluster of several.
        libs: folder of the broker's jars; default ``$SPARK_2PC_KAFKA_LIBS``, else ``.cache/kafka-4.4.0/libs``.
        jvm_options: options of the Java process; the default starts fast and optimises little.

    Raises:
        CapabilityError: there is no Java 17, or no jars.
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
        self.transaction_version = transaction_version
        self.two_phase_commit = two_phase_commit
        self.node_id = node_id
        self.cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        self.port, self.controller_port, self._proxied_port, self._proxy_port = (free_port() for _ in range(4))
        #: Read at the first start; a cluster of several sets controller.quorum.voters here before it.
        self.properties = {
            **_PROPERTIES,
            "node.id": str(node_id),
            "controller.quorum.voters": f"{node_id}@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxied_port},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxy_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            **(_TWO_PHASE_COMMIT if two_phase_commit else {}),
            **(properties or {}),
        }
        self._java = _java_command(find_libs(libs), jvm_options)
        self._directory = Path(tempfile.mkdtemp(prefix="spark-2pc-kafka-"))
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """Its address, as ``bootstrap.servers`` takes it."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        return self._running().pid

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Start the broker and wait until it serves.

        Raises:
            ServerError: it ended, or did not serve in time; the text has the end of its log.
        """
        self.launch()
        self.wait_until_ready(deadline_s=deadline_s)

    def launch(self) -> None:
        """Start the process, without waiting: for clusters, where no node is ready before the others are there."""
        if self._process is not None:
            raise ServerError("the broker is running already")
        configuration = self._directory / "server.properties"
        if not configuration.exists():
            self._format(configuration)
        self._process = ServerProcess(
            [*self._java, self._logging(), "kafka.Kafka", str(configuration)],
            log=self._directory / "broker.log",
            folder=self._directory,
        )

    def wait_until_ready(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until the broker answers and every partition that it knows of has a leader.

        Raises:
            ServerError: it ended, or was not ready in time.
        """
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if not self._running().running:
                raise ServerError(f"the broker ended by itself. Its log ends:\n{self._running().log_tail()}")
            if self._serves():
                return
            time.sleep(0.05)
        raise ServerError(
            f"the broker was not ready within {deadline_s} s. Its log ends:\n{self._running().log_tail()}"
        )

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would. :meth:`start` starts it again on the same data."""
        self._running().end(signal.SIGKILL, deadline_s=STOP_DEADLINE_S)
        self._process = None

    def stop(self) -> None:
        """End it in an orderly way; nothing happens if it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.end(signal.SIGTERM, deadline_s=STOP_DEADLINE_S)
            self._process = None

    def restart(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Stop it, if it runs, and start it again."""
        self.stop()
        self.start(deadline_s=deadline_s)

    def pause(self) -> None:
        """Stop the process where it is (SIGSTOP): connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> KafkaBroker:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def proxy(self) -> TcpProxy:
        """A proxy in front of this broker, not yet started; a client that bootstraps from it never gets round it.

        The broker has a listener of its own for it, which tells clients the proxy's address. One at a time.
        """
        return TcpProxy(target_port=self._proxied_port, port=self._proxy_port)

    def create_topic(
        self, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until its partitions have leaders, and return its name."""
        create_topic(self.bootstrap, name, partitions=partitions, replication=replication, config=config)
        return name

    def log_tail(self) -> str:
        """The end of the running broker's log."""
        return self._running().log_tail()

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise ServerError("the broker is not running")
        return self._process

    def _serves(self) -> bool:
        try:
            metadata = _admin(self.bootstrap).list_topics(timeout=1.0)
        except KafkaException:
            return False
        return self.node_id in metadata.brokers and all(has_leaders(metadata, topic) for topic in metadata.topics)

    def _format(self, configuration: Path) -> None:
        self.properties.setdefault("log.dirs", str(self._directory / "data"))
        (self._directory / "log4j2.properties").write_text(_LOG4J2)
        unfinished = configuration.with_suffix(".new")
        unfinished.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))
        command = [
            *self._java,
            self._logging(),
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={self.cluster_id}",
            f"--config={unfinished}",
            f"--feature=transaction.version={self.transaction_version}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_DEADLINE_S, check=False)
        if done.returncode != 0:
            raise ServerError(f"formatting the broker's storage failed:\n{done.stdout}{done.stderr}")
        unfinished.rename(configuration)

    def _logging(self) -> str:
        return f"-Dlog4j2.configurationFile=file:{self._directory / 'log4j2.properties'}"


def create_topic(
    bootstrap: str, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic on any broker, and wait until its partitions have leaders.

    Raises:
        confluent_kafka.KafkaException: the broker refused.
        ServerError: no leaders within ten seconds.
    """
    admin = _admin(bootstrap)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
    admin.create_topics([topic])[name].result(_REQUEST_DEADLINE_S)
    end = time.monotonic() + _REQUEST_DEADLINE_S
    while time.monotonic() < end:
        # Asking for one topic by name gives an answer for it also while it does not exist: with an error.
        if has_leaders(admin.list_topics(name, timeout=_REQUEST_DEADLINE_S), name):
            return
        time.sleep(0.01)
    raise ServerError(f"topic {name} has no leaders within {_REQUEST_DEADLINE_S} s")


def has_leaders(metadata: ClusterMetadata, topic: str) -> bool:
    """True when a topic exists and each of its partitions has a leader."""
    found = metadata.topics[topic]
    return found.error is None and all(partition.leader >= 0 for partition in found.partitions.values())


def find_libs(libs: Path | None = None) -> Path:
    """Return the folder of the broker's jars.

    Raises:
        CapabilityError: it is not there.
    """
    folder = (libs or Path(os.environ.get(LIBS_VARIABLE, LIBS_DEFAULT))).absolute()
    if not any(folder.glob("kafka_2.13-*.jar")):
        raise CapabilityError(f"no Kafka broker in {folder}: run `make setup`, or set {LIBS_VARIABLE}")
    return folder


def class_archive(libs: Path, java_home: Path) -> Path:
    """Where the archive of loaded classes is kept that halves a broker's start (see ``class_archive.py``)."""
    return libs.parent / f"classes-java{java_version(java_home)}.jsa"


def _java_command(libs: Path, jvm_options: Sequence[str]) -> list[str]:
    java_home = find_java_home()
    archive = class_archive(libs, java_home)
    # An archive that does not fit (another Java, other jars) is ignored by the virtual machine, not an error.
    shared = [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable"] if archive.exists() else []
    classpath = ":".join(str(jar) for jar in sorted(libs.glob("*.jar")))
    return [str(java_home / "bin" / "java"), *jvm_options, *shared, "-cp", classpath]


def _admin(bootstrap: str) -> AdminClient:
    # log_level 0: a broker that is not there yet is what we wait for, no news for the log.
    return AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5000, "log_level": 0})
