"""Apache Kafka as several local processes: every node is broker and controller (KRaft), every log has three copies."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM, KafkaBroker, create_topic, wait_for_leaders
from spark_2pc_sink.testing.processes import Lifetime, ServerError, poll_until

NODES = 3
#: The topic of the transaction coordinators. It has one partition here, so that its leader coordinates every id.
TRANSACTION_STATE = "__transaction_state"
#: A start takes about six seconds; this is for a machine that is busy with something else.
CLUSTER_DEADLINE_S = 180.0
_POLL_S = 0.05
# An acknowledged record is on two nodes at least, so the death of one loses nothing. A leader is replaced when its
# session has expired (2 s, see KafkaBroker); leaders stay where they are after that, or tests could not rely on them.
_PROPERTIES = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "auto.leader.rebalance.enable": "false",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
}
_SMALL_HEAP = tuple("-Xmx256m" if option.startswith("-Xmx") else option for option in QUICK_START_JVM)


class KafkaCluster(Lifetime):
    """Three Apache Kafka nodes on 127.0.0.1. Use it with ``with``, or :meth:`start` and :meth:`close`.

    One node can be harmed at a time without the cluster losing anything; each is a `KafkaBroker` of :attr:`nodes`,
    which can be killed, started again, paused and resumed.

    Args:
        properties: more broker properties, or other values of those set here.

    Attributes:
        nodes: the brokers, by their ids from 1 on.
    """

    transaction_version = 2
    two_phase_commit = False

    def __init__(self, *, properties: Mapping[str, str] | None = None) -> None:
        self.nodes = {
            node_id: KafkaBroker(
                node_id=node_id,
                properties={**_PROPERTIES, **(properties or {})},
                jvm_options=_SMALL_HEAP,
            )
            for node_id in range(1, NODES + 1)
        }
        voters = ",".join(f"{node_id}@127.0.0.1:{node.controller_port}" for node_id, node in self.nodes.items())
        for node in self.nodes.values():
            node.cluster_id = self.nodes[1].cluster_id
            node.properties["controller.quorum.voters"] = voters

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> None:
        """Start all nodes and wait until each of them knows the others."""
        first = self.nodes[1]
        first.format()
        for node in self.nodes.values():
            if not node.formatted:
                node.format_as(first)
            node.launch()
        end_s = time.monotonic() + CLUSTER_DEADLINE_S
        for node in self.nodes.values():
            node.wait_until_ready(deadline_s=max(0.0, end_s - time.monotonic()))
        self.wait_until_whole(deadline_s=max(0.0, end_s - time.monotonic()))

    def wait_until_whole(self, *, deadline_s: float = CLUSTER_DEADLINE_S) -> None:
        """Wait until all nodes are there, and every partition has a leader and all its copies in sync."""
        if poll_until(self._is_whole, deadline_s=deadline_s, interval_s=_POLL_S):
            return
        logs = "".join(f"\nThe log of node {node.node_id} ends:\n{node.log_tail()}" for node in self._started())
        raise ServerError(f"the cluster was not whole within {deadline_s} s: {self._lagging()}{logs}")

    def leader(self, topic: str, partition: int = 0) -> KafkaBroker:
        found = metadata_of(self.bootstrap, topic).topics[topic]
        leads = found.partitions[partition].leader if found.error is None and partition in found.partitions else -1
        if leads not in self.nodes:
            raise ServerError(f"{topic}-{partition} has no leader")
        return self.nodes[leads]

    def coordinator(self) -> KafkaBroker:
        """The node that coordinates all transactions; there must have been one before."""
        return self.leader(TRANSACTION_STATE)

    def create_topic(
        self, name: str, *, partitions: int = 1, replication: int = NODES, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until every node that runs knows leaders of its partitions, and return its name."""
        create_topic(self.bootstrap, name, partitions=partitions, replication=replication, config=config)
        for node in self._started():
            wait_for_leaders(node.bootstrap, name)
        return name

    def close(self) -> None:
        for node in self._started():
            # Nothing is kept, so nothing is handed over: an orderly end waits for the others, which end too.
            node.kill()
        for node in self.nodes.values():
            node.close()

    def _started(self) -> list[KafkaBroker]:
        return [node for node in self.nodes.values() if node.started]

    def _is_whole(self) -> bool:
        for node in self._started():
            node.check_alive()
        return all(self._sees_all(node) for node in self.nodes.values())

    def _sees_all(self, node: KafkaBroker) -> bool:
        """Whether a node's own picture is of a whole cluster; asked of each, because they learn of news one by one."""
        try:
            metadata = metadata_of(node.bootstrap)
        except KafkaException:
            return False
        return set(metadata.brokers) == set(self.nodes) and not lagging_partitions(metadata)

    def _lagging(self) -> str:
        try:
            metadata = metadata_of(self.bootstrap)
        except KafkaException as error:
            return str(error)
        return f"nodes {sorted(metadata.brokers)}, not in sync: {lagging_partitions(metadata)}"


def metadata_of(bootstrap: str, topic: str | None = None, *, deadline_s: float = 5.0) -> ClusterMetadata:
    # A client for one question: one that is kept would answer from what it has learnt before. log_level 0: a broker
    # that is not there yet is what tests wait for, no news for the log.
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5000, "log_level": 0})
    return admin.list_topics(topic, timeout=deadline_s)


def lagging_partitions(metadata: ClusterMetadata) -> list[str]:
    """Partitions without a leader, or with a copy that is not in sync."""
    return [
        f"{name}-{number}"
        for name, topic in metadata.topics.items()
        for number, partition in topic.partitions.items()
        if partition.leader < 0 or set(partition.isrs) != set(partition.replicas)
    ]
