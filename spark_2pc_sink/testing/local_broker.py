"""A Kafka-compatible server as a local process, and the reference coordinator as one."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from spark_2pc_sink.testing.errors import ServerError
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.processes import LocalServer
from spark_2pc_sink.testing.tcp_proxy import TcpProxy
from spark_2pc_sink.testing.wait import poll_until

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
        properties: broker properties, by Kafka's names; read at the first start.
    """

    def __init__(self, *, transaction_version: int, two_phase_commit: bool, node_id: int) -> None:
        super().__init__(f"broker {node_id}", prefix="spark-2pc-kafka-")
        self.transaction_version = transaction_version
        self.two_phase_commit = two_phase_commit
        self.node_id = node_id
        self.port: int = free_port()
        self._proxied_port, self._proxy_port = free_port(), free_port()
        self.properties: dict[str, str] = {
            **SMALL,
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxied_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._proxy_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
            **(TWO_PHASE_COMMIT if two_phase_commit else {}),
        }

    @property
    def bootstrap(self) -> str:
        """Its address, for ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

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
        self.properties.update(
            {
                "transaction.version": str(transaction_version),
                **({"transaction.keep.prepared.enable": "true"} if self.keep_prepared else {}),
                **(properties or {}),
            }
        )

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
