"""A Kafka-compatible server as a local process, and the reference coordinator as one."""

from __future__ import annotations

import signal
import sys
from abc import abstractmethod
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from spark_2pc_sink.testing.errors import ServerError
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.processes import START_DEADLINE_S, STOP_DEADLINE_S, LocalServer, ServerProcess, pause_all
from spark_2pc_sink.testing.tcp_proxy import TcpProxy
from spark_2pc_sink.testing.wait import poll_until

_REQUEST_DEADLINE_S = 10.0
# As for the Kafka broker: internal topics of one partition, no waiting for members that never arrive.
_PROPERTIES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# KIP-939, "Broker Configuration Changes"; as in Kafka, InitProducerId v6 is offered with unstable versions only.
_TWO_PHASE_COMMIT = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}
_KEEP_PREPARED = {"transaction.keep.prepared.enable": "true"}
#: Below this transaction.version prepared transactions cannot be kept (KIP-939 builds on KIP-890's epoch bump).
_KEEPING_VERSION = 2


class LocalBroker(LocalServer):
    """One node on 127.0.0.1, with its own data.

    The constructor chooses ports and a directory; :meth:`start` starts it, and so does entering a ``with`` block, which
    also ends it and removes its data. Ports stay the same across restarts.

    Args:
        transaction_version: level of the feature ``transaction.version``: 0 or 1 (KIP-98), 2 (KIP-890).
        two_phase_commit: grants ``enable2Pc`` to every client (KIP-939).
        node_id: its id, unique in a cluster of several.

    Attributes:
        properties: broker properties, by Kafka's names; read at the first start.
    """

    properties: dict[str, str]

    def __init__(self, *, transaction_version: int, two_phase_commit: bool, node_id: int) -> None:
        super().__init__("the broker", prefix="spark-2pc-kafka-")
        self.transaction_version = transaction_version
        self.two_phase_commit = two_phase_commit
        self.node_id = node_id
        self.port: int = free_port()
        self._proxied_port, self._proxy_port = free_port(), free_port()

    @abstractmethod
    def _command(self) -> list[str]:
        """Program and arguments that start the server with its data."""

    @property
    def bootstrap(self) -> str:
        """Its address, for ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Start the broker and wait until it serves.

        Raises:
            ServerError: it ended, or did not serve in time; the text contains the end of its log.
        """
        self.launch()
        self.wait_until_ready(deadline_s=deadline_s)

    def launch(self) -> None:
        """Start the process, without waiting: for clusters, where no node is ready before the others exist."""
        if self._process is not None:
            raise ServerError("the broker is running already")
        command = self._command()
        self._process = ServerProcess(command, log=self._directory / "broker.log", folder=self._directory)

    def wait_until_ready(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until the broker answers and every partition known to it has a leader.

        Raises:
            ServerError: it ended, or was not ready in time.
        """
        if poll_until(self._lives_and_serves, deadline_s=deadline_s, interval_s=0.05):
            return
        raise ServerError(f"the broker was not ready within {deadline_s} s. Its log ends:\n{self.log_tail()}")

    def check_alive(self) -> None:
        """Check that the started process has not ended by itself.

        Raises:
            ServerError: it has, or it was never started; the text contains the end of its log.
        """
        if not self._running().running:
            raise ServerError(f"broker {self.node_id} ended by itself. Its log ends:\n{self.log_tail()}")

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would. :meth:`start` starts it again on the same data."""
        self._running().end(signal.SIGKILL, deadline_s=STOP_DEADLINE_S)
        self._process = None

    def stop(self) -> None:
        """End it gracefully; no-op if it is not running."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.end(signal.SIGTERM, deadline_s=STOP_DEADLINE_S)
            self._process = None

    def pause(self) -> None:
        """Suspend the process (SIGSTOP): connections stay open and nothing answers."""
        pause_all([self._running().pid])

    def resume(self) -> None:
        """Resume a paused process."""
        self._running().send_signal(signal.SIGCONT)

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

    def _lives_and_serves(self) -> bool:
        self.check_alive()
        return self._serves()

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
        self.properties: dict[str, str] = {
            **_PROPERTIES,
            "node.id": str(node_id),
            "transaction.version": str(transaction_version),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxied_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxy_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
            **(_TWO_PHASE_COMMIT if two_phase_commit else {}),
            **(_KEEP_PREPARED if self.keep_prepared else {}),
            **(properties or {}),
        }

    def _command(self) -> list[str]:
        settings = [f"--set={name}={value}" for name, value in self.properties.items()]
        data = f"--data-dir={self._directory / 'data'}"
        return [sys.executable, "-m", "spark_2pc_sink.cli", "coordinator", data, *settings]


def create_topic(
    bootstrap: str, name: str, *, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic on any broker, and wait until its partitions have leaders; ServerError after ten seconds."""
    admin = _admin(bootstrap)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
    admin.create_topics([topic])[name].result(_REQUEST_DEADLINE_S)
    _wait_for_leaders(admin, name)


def wait_for_leaders(bootstrap: str, topic: str) -> None:
    """Wait until one of the given brokers knows a leader of each partition; ServerError after ten seconds."""
    _wait_for_leaders(_admin(bootstrap), topic)


def _wait_for_leaders(admin: AdminClient, topic: str) -> None:
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
